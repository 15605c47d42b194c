"""**Speculative verify**: every intermediate state kept, one committed, rollback for nothing.

``python -m demos.verify`` opens this page alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import gradio as gr

from demos import _page
from demos._controls import Number, Settings, Switches
from demos._engine_film import EngineFilm, said_table
from demos._film import Film, why_panel
from demos._lesson import Lesson
from demos._text import t
from kdalab.engine import events as ev
from kdalab.engine import speculate
from kdalab.lessons import MAX_DRAFTS, KnowingDrafter, VerifyRun, play_verify
from kdalab.lessons.player import shown_token
from kdalab.lessons.verify import BOUNDARY, VERIFY_NEW
from kdalab.model import verify_tokens
from kdalab.units import format_bytes
from kdalab.viz.svg import esc
from kdalab.viz.tables import Table, request_table
from kdalab.viz.verify import verify_svg
from kdalab.viz.why import format_difference

_WORDS = (
    "answer", "boundary", "known", "right", "rejected", "committed", "passed", "caught", "active",
    "checkpoint", "none", "model", "draft", "off",
)  # fmt: skip


class VerifyFilm(EngineFilm):
    """One step for each forward that generates."""

    def __init__(self, found: VerifyRun, fault: bool) -> None:
        super().__init__(found.run)
        self.found, self.fault = found, fault
        caught = [i for i, v in found.verifies.items() if any(k.fate == "boundary" for k in v.kept)]
        damaged = [i for i, v in found.verifies.items() if v.committed_off and fault]
        self.opening = (damaged or caught or [*found.verifies, self.last])[0]

    def _values(self, step: int) -> dict[str, Any]:
        found = self.found.verifies.get(step)
        generated = len(self.run.view(step).requests["A"].generated) if step else 0
        values: dict[str, Any] = {
            "tokens": len(self.run.texts["A"]),
            "total": VERIFY_NEW,
            "boundary": BOUNDARY,
            "generated": generated,
            "forwards": self.found.forwards,
            "plain": VERIFY_NEW - 1,
        }
        if found is not None:
            n = len(found.drafted)
            values |= {
                "drafts": n,
                "accepted": found.accepted,
                "rejected": n - found.accepted,
                "new": found.accepted + 1,
                "states": n + 1,
                "size": format_bytes((n + 1) * self.run.checkpoint_bytes),
                "seen": found.position + found.accepted + 1,
                "off": format_difference(found.committed_off),
            }
        return values

    def _key(self, step: int) -> str:
        kind, found = self.run.steps[step].kind, self.found.verifies.get(step)
        if found is None:
            return kind.lower()
        if self.fault and found.accepted < len(found.drafted):
            return "spoiled"
        if any(k.fate == "boundary" for k in found.kept):
            return "boundary"
        if found.accepted == 0:
            return "none"
        return "all" if found.accepted == len(found.drafted) else "some"

    def sentence(self, step: int, lang: str) -> str:
        return t(lang, f"verify.step-{self._key(step)}", **self._values(step))

    def picture(self, step: int, lang: str) -> str:
        return _picture(self, step, lang)

    def why(self, step: int, lang: str) -> str:
        values, key = self._values(step), self._key(step)
        parts = [
            (
                t(lang, "common.in-step"),
                f'<p class="now">{esc(self.sentence(step, lang))}</p>',
            ),
            (t(lang, "verify.why"), f"<p>{esc(t(lang, f'verify.why-{key}', **values))}</p>"),
        ]
        if step in self.found.verifies:
            kept = t(lang, "verify.kept", **values)
            parts.append((t(lang, "verify.numbers"), f"<p>{esc(kept)}</p>"))
        sums = self._sums(step)
        parts.append((t(lang, "verify.so-far"), f"<p>{esc(t(lang, 'verify.sums', **sums))}</p>"))
        if step == self.last or self.fault:
            parts.append((t(lang, "verify.outcome"), self._outcome(lang)))
        return why_panel(*parts)

    def _sums(self, step: int) -> dict[str, int]:
        past = [v for i, v in self.found.verifies.items() if i <= step]
        plain = sum(s.kind == "Decoded" for s in self.run.steps[: step + 1])
        drafted = sum(len(v.drafted) for v in past)
        accepted = sum(v.accepted for v in past)
        return {
            "forwards": len(past) + plain,
            "drafted": drafted,
            "accepted": accepted,
            "rejected": drafted - accepted,
            "made": sum(v.accepted + 1 for v in past) + plain,
        }

    def _outcome(self, lang: str) -> str:
        found = self.found
        lines = []
        if found.first_wrong is None:
            text = t(lang, "verify.same", n=len(found.generated), plain=len(found.truth) - 1,
                     forwards=found.forwards)  # fmt: skip
            lines.append(f'<span class="kd-good">{esc(text)}</span>')
        else:
            text = t(lang, "verify.wrong-at", at=found.first_wrong, n=len(found.truth))
            lines.append(f'<span class="kd-bad">{esc(text)}</span>')
        if found.caught_off is not None:
            off = format_difference(found.caught_off)
            lines.append(esc(t(lang, "verify.caught-off", boundary=BOUNDARY, off=off)))
        if self.fault:
            lines.append(esc(t(lang, "verify.check")))
        return "".join(f"<p>{line}</p>" for line in lines)

    def tables(self, step: int, lang: str) -> Sequence[Table]:
        heads = ("position", "drafted", "accepted", "rejected", "states", "committed", "off")
        rows = tuple(
            (
                v.position,
                len(v.drafted),
                v.accepted,
                len(v.drafted) - v.accepted,
                len(v.kept),
                next(k.seen for k in v.kept if k.fate == "committed"),
                format_difference(v.committed_off),
            )
            for v in self.found.verifies.values()
        )
        return (
            Table(
                t(lang, "verify.table"), tuple(t(lang, f"verify.column-{h}") for h in heads), rows
            ),
            said_table(request_table(self.run.view(step)), lang),
        )

    def pick(self, step: int, name: str, lang: str) -> None:
        return None

    def data(self) -> dict[str, Any]:
        return super().data() | {
            "forwards": self.found.forwards,
            "plain": VERIFY_NEW - 1,
            "generated": list(self.found.generated),
            "plain_decoding": list(self.found.truth),
            "first_wrong": self.found.first_wrong,
            "checkpoint_off_by": self.found.caught_off,
            "steps_verified": [
                {
                    "position": v.position,
                    "drafted": list(v.drafted),
                    "accepted": v.accepted,
                    "committed_off_by": v.committed_off,
                }
                for v in self.found.verifies.values()
            ],
        }


@lru_cache(maxsize=64)
def _picture(film: VerifyFilm, step: int, lang: str) -> str:
    found, run = film.found, film.run
    view = run.view(step)
    request = view.requests.get("A")
    made = request.generated if request is not None else ()
    past = [i for i in found.verifies if i <= step]
    now = found.verifies.get(step)
    off = found.verifies[past[-1]].committed_off if past else 0.0
    words = {w: t(lang, f"verify.word-{w}") for w in _WORDS}
    inputs = [k.token for k in now.kept] if now else []
    events = run.events[: run.steps[step].event_index]
    shown = verify_svg(
        n_prompt=len(run.texts["A"]), n_new=VERIFY_NEW, made=[_text(x) for x in made],
        wrong=[a != b for a, b in zip(made, found.truth, strict=False)], boundary=BOUNDARY,
        tokens=[_text(x) for x in inputs], accepted=now.accepted if now else 0,
        kept=now.kept if now else (), chosen=[_text(x) for x in now.chosen] if now else (),
        slot_seen=request.computed if request else 0, slot_off=off,
        checkpoint=any(isinstance(e, ev.Snapshotted) and e.boundary == BOUNDARY for e in events),
        words=words, label=t(lang, "verify.label"),
    )  # fmt: skip
    return f'<div class="kd-scroll">{shown}</div>'


def _text(token: int) -> str:
    """The token as text; its id where it cannot be printed."""
    text = shown_token(token)
    return f"[{token}]" if text == "·" else text


def film(settings: Settings) -> Film:
    """The film of one setting."""
    fault = "keep" in settings["breaks"]
    return VerifyFilm(play_verify(settings["drafts"], settings["wrong"], fault), fault)


LESSON = Lesson(
    slug="verify",
    group="systems",
    controls=(
        Number("drafts", 1, MAX_DRAFTS, 4),
        Number("wrong", 0, 100, 30, 10),
        Switches("breaks", ("keep",)),
    ),
    film=film,
    terms=(
        ("verify", "target verify", "scoring of draft tokens"),
        (
            "the state after each draft",
            "`[L, spec_slots, draft, H, d_v, d_k]`",
            "speculative blocks",
        ),
        ("boundary inside the accepted run", "`mamba_steps_to_track`", "block boundary"),
        ("commit", "state of the last accepted step gathered into the slot", "accepted column"),
        ("replay instead of keeping", "ReplaySSM ring", "RecoverSSM"),
    ),
    code=(
        ("code-verify", verify_tokens),
        ("code-commit", speculate._commit),
        ("code-accepted", speculate.n_accepted),
        ("code-drafter", KnowingDrafter.propose),
    ),
    notebook="cow",
    next=("sharing", "restore", "chunks"),
)


def build(page: gr.Blocks | None = None) -> gr.Blocks:
    """Build the page into ``page``, or into a Blocks of its own."""
    return _page.build_lesson(LESSON, page)


if __name__ == "__main__":
    _page.launch_alone(build())
