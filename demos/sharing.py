"""**COW, snapshot, donate**: two requests from one checkpoint, and who owns which slot.

``python -m demos.sharing`` opens this page alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import gradio as gr

from demos import _engine_draw as draw
from demos import _page
from demos._controls import Choice, Number, Settings, Switches
from demos._engine_film import EngineFilm, said_table
from demos._film import Film, why_panel
from demos._lesson import Lesson
from demos._text import t
from kdalab.engine import checkpointing, copies, shared_state, strategy
from kdalab.engine import events as ev
from kdalab.lessons import SHARING_STRATEGIES, SharingRun, play_sharing
from kdalab.memory import ActivePool, CheckpointPool
from kdalab.phrases import say, say_html
from kdalab.units import format_bytes
from kdalab.viz.prompt import prompt_svg
from kdalab.viz.sharing import history_svg, owners_svg, seen_of
from kdalab.viz.svg import TokenAxis, esc
from kdalab.viz.tables import Table, request_table
from kdalab.viz.why import difference_html, format_difference

_WORDS = (
    "pool", "active-pool", "checkpoint-pool", "queued", "given", "history", "active", "spare",
    "kept", "waiting", "cached", "free", "alias", "overwritten", "seen", "checkpoint",
)  # fmt: skip


class SharingFilm(EngineFilm):
    """Slots and owners, step by step."""

    def __init__(self, found: SharingRun, strategy_name: str, cow: bool) -> None:
        super().__init__(found.run)
        self.found, self.strategy, self.cow = found, strategy_name, cow
        self.copied = _copies(found)
        kinds = [s.kind for s in found.run.steps]
        faults = [i for i, s in enumerate(found.run.steps) if s.kind == "FaultInjected"]
        copied = [i for i, k in enumerate(kinds) if k == "CopiedOnWrite"]
        told = [i for i in faults if "overwritten" in found.run.steps[i].sentence]
        self.opening = (told or copied[1:] or copied or [self.last])[0]

    def sentence(self, step: int, lang: str) -> str:
        """The step's sentence; a copy is told when it is queued and again when it is made."""
        said, here = super().sentence(step, lang), self.run.steps[step]
        if here.kind == "CopiedOnWrite":
            return self._copy(step, here.request, "queued", lang)
        made = [self._copy(step, name, "made", lang) for name in self.made(step)]
        return " ".join([*made, said])

    def made(self, step: int) -> list[str]:
        """Requests whose queued copy this step made."""
        queued = self.found.queued
        return sorted(set(queued[step - 1] if step else ()) - set(queued[step]))

    def _copy(self, step: int, who: str, what: str, lang: str) -> str:
        past = self.run.events[: self.run.steps[step].event_index]
        event = [e for e in past if isinstance(e, ev.CopiedOnWrite) and e.request == who][-1]
        return t(
            lang, f"sharing.step-{what}", who=who, source=event.checkpoint_slot,
            tokens=event.boundary, slot=event.active_slot,
        )  # fmt: skip

    def picture(self, step: int, lang: str) -> str:
        return _picture(self, step, lang)

    def posed(self, step: int, lang: str) -> str:
        """The picture without what comes after the step."""
        return _picture(self, step, lang, ahead=False)

    def why(self, step: int, lang: str) -> str:
        found, here = self.found, self.run.steps[step]
        ledger = found.ledgers[step]
        reason = _reason(self, step)
        if reason:  # the sentence stands under the picture; here is why
            text = t(lang, f"sharing.{reason}", who=here.request)
            wrong = [m.request for m in self.run.measured if m.first_difference is not None]
            if reason == "why-read" and wrong:
                told = t(lang, "sharing.wrong-tokens", names=", ".join(wrong))
                text += ("" if lang == "zh" else " ") + told
            parts = [(t(lang, "sharing.why"), f"<p>{esc(text)}</p>")]
        else:
            text = f'<p class="now">{esc(self.sentence(step, lang))}</p>'
            parts = [(t(lang, "common.in-step"), text)]
        if here.kind == "Measured":
            shown = "".join(say_html(lang, difference_html(m)) for m in self.run.measured)
            if not self.cow:
                shown = self._damage(lang) + shown
            return why_panel(*parts, shown)
        sums = t(
            lang, f"sharing.sum-{self.strategy}", held=found.held, need=found.per_request,
            two=2 * found.per_request, total=found.total,
        )  # fmt: skip
        sums += ("" if lang == "zh" else " ") + self._outcome(lang)
        parts.append((t(lang, "sharing.per-request"), f"<p>{esc(sums)}</p>"))
        moved = t(
            lang, "sharing.moved", copied=ledger.copied, size=format_bytes(ledger.bytes_copied),
            given=ledger.given, used=ledger.used, most=ledger.most_used, total=found.total,
        )  # fmt: skip
        parts.append((t(lang, "sharing.so-far"), f"<p>{esc(moved)}</p>"))
        if not self.cow and step >= self.opening:
            parts.append((t(lang, "sharing.caught"), f"<p>{self._caught(lang)}</p>"))
        return why_panel(*parts)

    def _caught(self, lang: str) -> str:
        said = f"<code>{esc(self.found.refusal)}</code>"
        return f"{esc(t(lang, 'sharing.caught-by'))} {said}"

    def _outcome(self, lang: str) -> str:
        """What this many slots have meant for B and C, and for the cache."""
        events = self.run.events
        ended = next(i for i, e in enumerate(events) if _is(e, ev.Finished, "B"))
        began = next(i for i, e in enumerate(events) if _is(e, ev.Admitted, "C"))
        dropped = [d for e in events if isinstance(e, ev.Evicted) for d in e.dropped]
        return t(
            lang, f"sharing.outcome-{'together' if began < ended else 'waits'}",
            skipped=sum(isinstance(e, ev.SnapshotSkipped) for e in events),
            evicted=sum(d.state is not None for d in dropped),
        )  # fmt: skip

    def _damage(self, lang: str) -> str:
        """Who read whose state, the first wrong token of each, and the check that would see it."""
        pairs = [
            e.what for e in self.run.events
            if isinstance(e, ev.FaultInjected) and "overwritten" in e.what
        ]  # fmt: skip
        lines = [esc(say(lang, p)) for p in pairs]
        for m in self.run.measured:
            if m.first_difference is None:
                lines.append(esc(t(lang, "sharing.first-none", who=m.request)))
            else:
                lines.append(
                    esc(t(lang, "sharing.first", who=m.request, at=m.first_difference + 1))
                )
        off = format_difference(self.found.spoiled)
        lines.append(esc(t(lang, "sharing.off", off=off)))
        body = "".join(f"<li>{line}</li>" for line in lines)
        return (
            f"<h3>{esc(t(lang, 'sharing.poison'))}</h3><ul>{body}</ul>"
            f"<h3>{esc(t(lang, 'sharing.caught'))}</h3><p>{self._caught(lang)}</p>"
        )

    def tables(self, step: int, lang: str) -> Sequence[Table]:
        names = tuple(t(lang, f"sharing.column-{c}") for c in ("slot", "role", "owner", "tokens"))
        rows = tuple(
            (
                s.name.replace(":", " "),
                t(lang, f"sharing.word-{s.role}"),
                s.owner or "-",
                seen_of(s) or 0,
            )
            for s in self.found.slots[step]
        )
        return (
            Table(t(lang, "sharing.table-slots"), names, rows),
            _sums_table(lang),
            said_table(request_table(self.run.view(step)), lang),
            said_table(draw.measured_table(self.run), lang),
        )

    def data(self) -> dict[str, Any]:
        last = self.found.ledgers[-1]
        return super().data() | {
            "states_copied": last.copied,
            "states_donated": last.given,
            "bytes_copied": last.bytes_copied,
            "most_slots_used": last.most_used,
            "shared_state_off_by": self.found.spoiled,
        }


@lru_cache(maxsize=64)
def _picture(film: SharingFilm, step: int, lang: str, ahead: bool = True) -> str:
    found, run = film.found, film.run
    here, names = run.steps[step], list(run.texts)
    words = {w: t(lang, f"sharing.word-{w}") for w in _WORDS if w not in ("seen", "pool")}
    words["seen"] = t(lang, "sharing.word-seen", tokens="{tokens}")
    words["pool"] = t(lang, "sharing.word-pool", size=format_bytes(run.checkpoint_bytes))
    moves = [m for m in here.moves if here.kind != "CopiedOnWrite"]
    queued = []
    for slot in found.slots[step]:
        for reader in slot.readers:
            at = run.view(step).requests[reader].active_slot
            queued.append((slot.name, _private(found, at)))
    for name in film.made(step):
        source = _copied_from(run, name)
        moves.append(
            (f"checkpoint:{source}", f"active:{run.view(step - 1).requests[name].active_slot}")
        )
    wrong = [s.owner for s in found.slots[step] if s.role == "alias"]
    owners = owners_svg(
        found.slots[step], names, words=words, label=t(lang, "sharing.label-slots"),
        moves=moves, queued=queued, highlight=_slots_of(here.highlight), wrong=wrong,
    )  # fmt: skip
    past = history_svg(
        found.slots, names, step, words=words, label=t(lang, "sharing.label-history"),
        copies=film.copied, ahead=ahead,
    )  # fmt: skip
    longest = max(len(run.texts[p.name]) + p.max_new_tokens for p in run.scenario.prompts)
    prompts = prompt_svg(
        run.view(step), run.texts, TokenAxis.for_tokens(longest),
        spacing=run.scenario.spacing, page_tokens=run.page_tokens, focus="",
        faults=dict.fromkeys(run.faulty_at(step), "no copy before the first write"),
    )  # fmt: skip
    return f'<div class="kd-scroll">{owners}{past}{say_html(lang, prompts)}</div>'


def _is(event: ev.Event, kind: type[ev.Event], who: str) -> bool:
    return isinstance(event, kind) and event.request == who


def _private(found: SharingRun, slot: int) -> str:
    return found.slots[0][slot].name if found.one_pool else f"active:{slot}"


def _slots_of(highlight: Sequence[str]) -> list[str]:
    return [h for h in highlight if h.startswith(("active:", "checkpoint:"))]


def _copied_from(run: Any, name: str) -> int:
    found = [
        e.checkpoint_slot for e in run.events
        if isinstance(e, ev.CopiedOnWrite) and e.request == name
    ]  # fmt: skip
    return found[-1]


def _copies(found: SharingRun) -> list[tuple[int, int, int]]:
    """(step, row from, row to) of every copy of a state that was made."""
    run = found.run
    base = 0 if found.one_pool else len(run.start.active)
    marks = []
    for step, here in enumerate(run.steps):
        before = found.queued[step - 1] if step else ()
        for name in set(before) - set(found.queued[step]):
            to = run.view(step - 1).requests[name].active_slot
            marks.append((step, base + _copied_from(run, name), to))
        for source, target in here.moves:
            kind, a = source.split(":")
            b = int(target.split(":")[1])
            if kind == "active" and not (found.one_pool and int(a) == b):
                marks.append((step, int(a), base + b))
    return marks


def _reason(film: SharingFilm, step: int) -> str:
    """The key of the paragraph that says why this step is as it is."""
    here = film.run.steps[step]
    if here.kind == "FaultInjected":
        return "why-read" if "overwritten" in here.sentence else "why-shared"
    if here.kind == "CopiedOnWrite":
        return "why-queued"
    group = film.run.events[film.run.steps[step - 1].event_index if step else 0 : here.event_index]
    if any(isinstance(e, ev.Donated) for e in group):
        return "why-donate"
    if any(isinstance(e, ev.Snapshotted) for e in group):
        return "why-snapshot"
    if film.made(step):
        return "why-made"
    admitted = "why-admitted-copy" if film.found.held == 1 else "why-admitted"
    return {"Admitted": admitted, "Finished": "why-finished"}.get(here.kind, "")


def _sums_table(lang: str) -> Table:
    """Slots that one request can need at once, by strategy."""
    rows = []
    for name in SHARING_STRATEGIES:
        how = strategy.parse_strategy(name)
        held, need = strategy.held_slots(how), strategy.slots_per_request(how)
        rows.append((t(lang, f"sharing.strategy-{name}"), held, 1, 1, need, 2 * need))
    columns = ("strategy", "own", "locked", "in-flight", "sum", "two")
    return Table(
        t(lang, "sharing.table-sums"),
        tuple(t(lang, f"sharing.column-{c}") for c in columns),
        tuple(rows),
    )


def film(settings: Settings) -> Film:
    """The film of one setting."""
    cow = "cow" not in settings["breaks"]
    found = play_sharing(settings["strategy"], settings["slots"], cow)
    return SharingFilm(found, settings["strategy"], cow)


LESSON = Lesson(
    slug="sharing",
    group="sharing",
    controls=(
        Choice("strategy", SHARING_STRATEGIES, "extra_buffer", width=260),
        Number("slots", 5, 14, 12),
        Switches("breaks", ("cow",)),
    ),
    film=film,
    terms=(
        ("COW, deferred", "COW queued, copied in the forward stream", "private COW block"),
        ("snapshot (`copy`)", "`no_buffer`: copied out of the active slot", "-"),
        ("donate (`extra_buffer`)", "`donate_mamba_ping_pong_slot`", "the running block is cached"),
        ("spare slots", "ping-pong track buffer", "speculative and checkpoint blocks"),
        ("`extra_buffer_lazy`", "`mamba_lazy_prealloc_at_boundary`", "-"),
        ("slots per request: 3, 4, 5", "ratio of slots to `--max-running-requests`", "2 + spec"),
    ),
    code=(
        ("code-settle", copies.settle),
        ("code-donate", checkpointing._donate_and_go_on),
        ("code-adopt", CheckpointPool.adopt),
        ("code-writable", ActivePool._writable),
        ("code-slots", strategy.slots_per_request),
        ("code-fault", shared_state.before_reading),
    ),
    notebook="cow",
    exercises=("ex12", "ex13"),
    next=("restore", "tree", "chunks"),
)


def build(page: gr.Blocks | None = None) -> gr.Blocks:
    """Build the page into ``page``, or into a Blocks of its own."""
    return _page.build_lesson(LESSON, page)


if __name__ == "__main__":
    _page.launch_alone(build())
