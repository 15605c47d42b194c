"""**Unified memory**: latent pages and states in one buffer, each growing from its own end.

``python -m demos.unified`` opens this page alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import gradio as gr

from demos import _page
from demos._controls import Choice, Number, Settings, Switches
from demos._engine_film import EngineFilm, said_table
from demos._film import Film, why_panel
from demos._lesson import Lesson
from demos._text import t
from kdalab.engine import events as ev
from kdalab.engine import room
from kdalab.engine.core import Engine
from kdalab.lessons import WORKLOADS, UnifiedRun, play_unified
from kdalab.memory import UnifiedBuffer, UnifiedSlots
from kdalab.phrases import say
from kdalab.units import format_bytes
from kdalab.viz.svg import esc
from kdalab.viz.tables import Table, request_table, table_html
from kdalab.viz.unified import frontiers_svg, unified_svg

_COUNTS = (
    "free_bytes", "moves", "moved_bytes", "evicted_states", "evicted_pages", "skipped",
    "retracted", "refused", "tokens",
)  # fmt: skip
_WORDS = ("unified", "split", "padding", "free", "gate", "cut", "cached")


class UnifiedFilm(EngineFilm):
    """The unified run step by step; the split run beside it."""

    def __init__(self, found: UnifiedRun, free: UnifiedRun | None) -> None:
        super().__init__(found.run)
        self.found, self.free = found, free  # ``free``: the same with every move allowed
        holes = max(range(self.last + 1), key=lambda i: found.layouts[i].holes)
        worst = max(range(self.last + 1), key=lambda i: len(self._moved(i)))
        held = [i for i, s in enumerate(found.run.steps) if s.kind == "Released"]
        taken = [i for i in range(1, self.last + 1) if self._taken(i)]
        self.opening = (held or [holes] * (free is not None) or taken or [worst])[0]

    def _evicted(self, step: int) -> ev.Evicted | None:
        """What this step evicts, if that is what it does."""
        steps = self.run.steps
        past = self.run.events[steps[step - 1].event_index if step else 0 :]
        head = past[0] if past and steps[step].kind == "Evicted" else None
        return head if isinstance(head, ev.Evicted) else None

    def _crossing(self, step: int) -> str:
        """ "to-kv": a state goes for an admission that asks for latent pages as well; "to-state":
        latent pages go for a state; else ""."""
        event = self._evicted(step)
        if event is None:
            return ""
        if event.reason.startswith("latent pages"):
            return "to-kv" if event.state_bytes and self._admission(step) else ""
        return "to-state" if event.kv_bytes and "slot" in event.reason else ""

    def _taken(self, step: int) -> bool:
        """Whether a request is admitted that did not fit before a state went, one step before."""
        return self.run.steps[step].kind == "Admitted" and self._crossing(step - 1) == "to-kv"

    def _admission(self, step: int) -> ev.Admitted | None:
        """The admission that the eviction of this step makes room for, if it does."""
        steps = self.run.steps
        event = self._evicted(step)
        later = self.run.events[steps[step].event_index : steps[step].event_index + 1]
        head = later[0] if later else None
        fits = event is not None and isinstance(head, ev.Admitted) and head.request == event.request
        return head if fits and isinstance(head, ev.Admitted) else None

    def _sum(self, evicting: int) -> dict[str, Any]:
        """What an admission needs, what was free before step ``evicting``, and what it freed.

        ``once`` are bytes that latent pages have after the admission and states had at
        the step that the bar calls ``at``.
        """
        found, layouts = self.found, self.found.layouts
        event, admitted = self._evicted(evicting), self._admission(evicting)
        if event is None or admitted is None:
            return {}
        pages = len(admitted.private_pages)
        size = pages * found.page_bytes
        state = (1 + len(admitted.spare_slots)) * found.state_bytes
        before, after = layouts[evicting - 1], layouts[evicting + 1]
        at = min(range(evicting + 1), key=lambda i: layouts[i].high)
        return {
            "pages": pages, "at": at + 1,  # the step bar counts from 1
            **{k: format_bytes(v) for k, v in {
                "size": size, "state": state, "need": size + state,
                "free": before.gap + before.holes,
                "freed": event.state_bytes + event.kv_bytes,
                "once": max(0, after.low - layouts[at].high),
            }.items()},
        }  # fmt: skip

    def _moved(self, step: int) -> list[ev.Moved]:
        steps = self.run.steps
        first = steps[step - 1].event_index if step else 0
        past = self.run.events[first : steps[step].event_index]
        return [e for e in past if isinstance(e, ev.Moved)]

    def sentence(self, step: int, lang: str) -> str:
        kind = self.run.steps[step].kind
        moved = self._moved(step)
        size = format_bytes(sum(m.bytes for m in moved))
        tail = t(lang, "unified.moved", n=len(moved), size=size) if moved else ""
        gap = "" if lang == "zh" else " "
        if kind in ("Held", "Released", "End"):
            return gap.join(filter(None, [t(lang, f"unified.step-{kind}"), tail]))
        return gap.join(filter(None, [self._told(step, lang), tail]))

    def _told(self, step: int, lang: str) -> str:
        """An eviction is told in bytes of both kinds; all else as everywhere."""
        event = self._evicted(step)
        need = "" if event is None else "pages" if event.reason.startswith("latent") else "state"
        if event is None or (need == "state" and "slot" not in event.reason):
            return super().sentence(step, lang)
        states = sum(d.state is not None for d in event.dropped)
        pages = sum(len(d.pages) for d in event.dropped)
        what = "both" if states and pages else "states" if states else "pages"
        given = t(lang, f"unified.what-{what}", **_only(what, states, pages))
        size = format_bytes(event.kv_bytes + event.state_bytes)
        if need == "pages" and (sums := self._sum(step)):
            both = {"need": sums["need"], "free": sums["free"]}
            return t(
                lang, "unified.evicted-admission", who=event.request, what=given, size=size, **both
            )
        return t(lang, f"unified.evicted-{need}", who=event.request, what=given, size=size)

    def tone(self, step: int) -> str:
        own = super().tone(step)
        return "copy" if own in ("plain", "compute") and self._moved(step) else own

    def picture(self, step: int, lang: str) -> str:
        return _picture(self, step, lang)

    def posed(self, step: int, lang: str) -> str:
        """The picture without what comes after the step."""
        return _picture(self, step, lang, ahead=False)

    def why(self, step: int, lang: str) -> str:
        found, layout = self.found, self.found.layouts[step]
        parts: list[tuple[str, str] | str] = [
            (
                t(lang, "common.in-step"),
                f'<p class="now">{esc(self.sentence(step, lang))}</p>',
            )
        ]
        parts.append((t(lang, "unified.why"), f"<p>{esc(self._because(step, lang))}</p>"))
        parts.append((t(lang, "unified.sides"), self._sides(step, lang)))
        gap = t(
            lang, "unified.gap", gap=format_bytes(layout.gap), holes=format_bytes(layout.holes),
            pages=layout.gap // found.page_bytes, states=layout.gap // found.state_bytes,
        )  # fmt: skip
        parts.append((t(lang, "unified.room"), f"<p>{esc(gap)}</p>"))
        if self.free is not None:
            mine, other = found.tallies[-1][0], self.free.tallies[-1][0]
            damage = t(
                lang, "unified.damage", holes=format_bytes(max(x.holes for x in found.layouts)),
                a=mine.evicted_states, b=other.evicted_states,
                free=format_bytes(mine.free_bytes), less=format_bytes(other.free_bytes),
            )  # fmt: skip
            parts.append((t(lang, "unified.damage-title"), f"<p>{esc(damage)}</p>"))
        parts.append(table_html(self._tally(step, lang)))
        stands = [what for at, what in found.refusals if at <= step]
        if stands:
            said = "".join(f"<p><code>{esc(say(lang, w))}</code></p>" for w in stands)
            parts.append((t(lang, "unified.refused-by-split"), said))
        return why_panel(*parts)

    def _because(self, step: int, lang: str) -> str:
        who = self.run.steps[step].request
        sums = self._sum(step - 1 if self._taken(step) else step)
        return t(lang, self._reason(step), who=who, **sums)

    def _sides(self, step: int, lang: str) -> str:
        """What either side has taken or given back in this step, and how much each has now."""
        found, here = self.found, self.found.layouts[step]
        before = found.layouts[step - 1] if step else here
        changes = (("kv", here.low - before.low), ("s", before.high - here.high))
        lines = "".join(
            f"<li>{esc(t(lang, f'unified.{kind}-{what}', size=format_bytes(abs(n))))}</li>"
            for kind, n in changes
            if n
            for what in ("takes" if n > 0 else "gives",)
        )
        reach = t(
            lang, "unified.reach", kv=format_bytes(here.low - found.padding),
            kv_cut=format_bytes(found.split_pages * found.page_bytes),
            s=format_bytes(found.total - here.high),
            s_cut=format_bytes(found.split_states * found.state_bytes),
        )  # fmt: skip
        return (f"<ul>{lines}</ul>" if lines else "") + f"<p>{esc(reach)}</p>"

    def _reason(self, step: int) -> str:
        kind, moved = self.run.steps[step].kind, self._moved(step)
        layout = self.found.layouts[step]
        if kind in ("Held", "Released"):
            return f"unified.why-{kind}"
        if layout.gated and layout.holes:
            return "unified.why-held-holes"
        if layout.gated:
            return "unified.why-Held"
        if crossing := self._crossing(step):
            return f"unified.why-{crossing}"
        if self._taken(step):
            return "unified.why-taken"
        if moved:
            return "unified.why-moves"
        if layout.holes:
            return "unified.why-lazy"
        return {"Evicted": "unified.why-evicted", "Start": "unified.why-start"}.get(
            kind, "unified.why-grow"
        )

    def _tally(self, step: int, lang: str) -> Table:
        mine, other = self.found.tallies[step]
        rows = []
        for name in _COUNTS:
            a, b = getattr(mine, name), getattr(other, name)
            bytes_ = name.endswith("bytes")
            shown = (format_bytes(a), format_bytes(b)) if bytes_ else (f"{a:,}", f"{b:,}")
            rows.append((t(lang, f"unified.count-{name}"), *shown))
        heads = tuple(t(lang, f"unified.column-{c}") for c in ("what", "unified", "split"))
        return Table(t(lang, "unified.table"), heads, tuple(rows))

    def tables(self, step: int, lang: str) -> Sequence[Table]:
        layout = self.found.layouts[step]
        rows = tuple(
            (kind, p.slot, p.byte // size, p.byte, p.owner)
            for kind, size, held in (
                ("KV", self.found.page_bytes, layout.pages),
                ("S", self.found.state_bytes, layout.states),
            )
            for p in held
        )
        names = ("kind", "slot", "row", "byte", "owner")
        return (
            self._tally(step, lang),
            Table(
                t(lang, "unified.table-slots"),
                tuple(t(lang, f"unified.column-{n}") for n in names),
                rows,
            ),
            said_table(request_table(self.run.view(step)), lang),
        )

    def pick(self, step: int, name: str, lang: str) -> None:
        return None

    def data(self) -> dict[str, Any]:
        mine, other = self.found.tallies[-1]
        return super().data() | {
            "total_bytes": self.found.total,
            "unified": {n: getattr(mine, n) for n in _COUNTS},
            "split": {n: getattr(other, n) for n in _COUNTS},
            "frontiers": [[x.low, x.high, x.holes] for x in self.found.layouts],
            "refused": [what for _, what in self.found.refusals],
        }


def _only(what: str, states: int, pages: int) -> dict[str, int]:
    counts = {"states": states, "pages": pages}
    return counts if what == "both" else {what: counts[what]}


@lru_cache(maxsize=64)
def _picture(film: UnifiedFilm, step: int, lang: str, ahead: bool = True) -> str:
    found = film.found
    layout, split = found.layouts[step], found.splits[step]
    words = {w: t(lang, f"unified.word-{w}") for w in _WORDS if w not in ("unified", "split")}
    for which in ("unified", "split"):
        words[which] = t(lang, f"unified.word-{which}", size=format_bytes(found.total))
    sizes = {"latent pages": found.page_bytes, "states": found.state_bytes}
    moves = [
        (m.pool == "latent pages", m.source * sizes[m.pool], m.target * sizes[m.pool])
        for m in film._moved(step)
    ]
    # A question shows no refusal: the note tells what the unified buffer does.
    stands = ahead and any(at <= step for at, _ in found.refusals)
    tally = found.tallies[step][1]
    notes = [t(lang, "unified.note-refused")] if stands else []
    if tally.retracted:
        notes.append(t(lang, "unified.note-retracted", n=tally.retracted))
    if tally.skipped:
        notes.append(t(lang, "unified.note-skipped", n=tally.skipped))
    shown = unified_svg(
        layout.pages, layout.states, layout.low, layout.high, total=found.total,
        padding=found.padding, page_bytes=found.page_bytes, state_bytes=found.state_bytes,
        names=list(film.run.texts), words=words, label=t(lang, "unified.label"),
        split_pages=split.pages, split_states=split.states, moves=moves, gated=layout.gated,
        note=("" if lang == "zh" else " ").join(notes),
    )  # fmt: skip
    past = frontiers_svg(
        [x.low for x in found.layouts], [x.high for x in found.layouts], step, total=found.total,
        words={
            "history": t(lang, "unified.figure-title"),
            "kv": t(lang, "unified.word-kv"),
            "state": t(lang, "unified.figure-state"),
        },
        label=t(lang, "unified.figure-title"), ahead=ahead,
    )  # fmt: skip
    return f'<div class="kd-scroll">{shown}{past}</div>'


def film(settings: Settings) -> Film:
    """The film of one setting."""
    given = settings["workload"], settings["holes"] == "lazy", settings["share"]
    if "gate" in settings["breaks"]:
        return UnifiedFilm(play_unified(*given, "forever"), play_unified(*given, "none"))
    return UnifiedFilm(play_unified(*given, settings["gate"]), None)


LESSON = Lesson(
    slug="unified",
    group="sharing",
    controls=(
        Choice("workload", tuple(WORKLOADS), "mixed", width=240),
        Number("share", 30, 90, 70, 10),
        Choice("holes", ("eager", "lazy"), "eager"),
        Choice("gate", ("none", "second"), "none"),
        Switches("breaks", ("gate",)),
    ),
    film=film,
    terms=(
        ("unified memory", "`--enable-unified-memory`, two-ended pool", "one block pool"),
        ("virtual id, row", "`virtual_to_physical`, `physical_to_virtual`", "block id"),
        ("padding", "`min_slot_index`, the padding sink", "null block"),
        ("lazy compaction", "`SGLANG_DISABLE_LAZY_COMPACTION`", "-"),
        ("gate", "pages gated during PD transfers", "deferred free of blocks"),
        ("retraction", "retract on out-of-memory", "preemption"),
    ),
    code=(
        ("code-missing", UnifiedBuffer.missing),
        ("code-compact", UnifiedSlots.compact),
        ("code-make", room.make),
        ("code-hold", Engine.hold_moves),
    ),
    notebook="unified",
    exercises=("ex15",),
    next=("sharing", "restore", "tree"),
)


def build(page: gr.Blocks | None = None) -> gr.Blocks:
    """Build the page into ``page``, or into a Blocks of its own."""
    return _page.build_lesson(LESSON, page)


if __name__ == "__main__":
    _page.launch_alone(build())
