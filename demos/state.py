"""**What a state is**: one matrix against a list, and what can still be read back.

``python -m demos.state`` opens this page alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gradio as gr
import numpy as np

from demos import _page
from demos._controls import Choice, Number, Settings, Switches
from demos._film import Film, why_panel
from demos._lesson import Lesson
from demos._text import t
from kdalab.lessons import (
    RECALL_EPISODES,
    RECALL_SIMILARITY,
    STATE_CHANNELS,
    StateRun,
    play_state,
    recall_rows,
)
from kdalab.recall import CHANCE, TITLES
from kdalab.units import format_bytes
from kdalab.viz.pairs import error_figure, pairs_svg, recall_figure
from kdalab.viz.svg import esc
from kdalab.viz.tables import Table
from kdalab_kernels import naive_recurrent_kda

_NUMBERS = STATE_CHANNELS * STATE_CHANNELS
_KINDS = {"kda": "kda_recurrent", "hybrid": "", "mla": "mla_kv"}


class StateFilm(Film):
    """Nothing, one write after the other, then all questions at once."""

    def __init__(self, run: StateRun, other: StateRun) -> None:
        self.run = run
        self.other = other  # the same pairs by the other rule
        self.last = run.pairs + 1
        self.opening = self.last
        self.limit = max(float(np.abs(w.state).max()) for w in run.writes)
        self.most = max(max(w.error) for w in run.writes)

    def _key(self, step: int) -> str:
        run = self.run
        if step == 0:
            return "start"
        if step == self.last:
            return "ask" if run.delta else "ask-plain"
        if run.rewritten and step == run.pairs:
            return "rewrite" if run.delta else "rewrite-plain"
        return "write" if run.delta else "write-plain"

    def _why_key(self, step: int) -> str:
        """Why the answers are as they are: the strongest reason of this run."""
        run, key = self.run, self._key(step)
        if not key.startswith("ask"):
            return key
        if run.rewritten:
            return "rewrite" if run.delta else "rewrite-plain"
        if not run.delta:
            return "ask-plain"
        if run.pairs > STATE_CHANNELS:
            return "full"
        if run.decay < 1:
            return "fade"
        return "similar" if run.cosine > 1e-9 else "apart"

    def _values(self, step: int) -> dict[str, Any]:
        run = self.run
        stored = min(step, run.pairs)
        values: dict[str, Any] = {
            "pairs": run.pairs, "stored": stored, "channels": STATE_CHANNELS,
            "cosine": f"{run.cosine:.2f}", "decay": f"{run.decay:g}", "numbers": _NUMBERS,
            "list": 2 * STATE_CHANNELS * stored,
            "left": f"{run.decay ** (run.pairs - 1):.0%}".replace("%", " %"),
        }  # fmt: skip
        if stored:
            write = run.writes[stored - 1]
            values |= {
                "found": sum(write.found), "mean": _percent(float(np.mean(write.error))),
                "worst": _percent(max(write.error)), "before": _percent(write.before),
                "own": _percent(write.error[-1]), "first": _percent(write.error[0]),
                "listed": _percent(run.list_error),
            }  # fmt: skip
        return values

    def sentence(self, step: int, lang: str) -> str:
        return t(lang, f"state.step-{self._key(step)}", **self._values(step))

    def tone(self, step: int) -> str:
        if step in (0, self.last):
            return "plain" if step == 0 else "finish"
        return "compute" if self.run.delta else "evict"

    def picture(self, step: int, lang: str) -> str:
        run, stored = self.run, min(step, self.run.pairs)
        values = self._values(step)
        names = ("list", "matrix", "error", "key", "value", "size-list", "size-matrix")
        words = {n: t(lang, f"state.word-{n}", **values) for n in names}
        write = run.writes[stored - 1] if stored else None
        state = write.state if write else np.zeros((STATE_CHANNELS, STATE_CHANNELS))
        words["title"] = t(lang, "state.word-title", largest=f"{np.abs(state).max():.3g}")
        picture = pairs_svg(
            run.keys, run.values, state, write.error if write else (),
            write.found if write else (), words, label=self.sentence(step, lang),
            limit=self.limit, most=self.most, now=step - 1 if 0 < step < self.last else None,
        )  # fmt: skip
        return f'<div class="kd-scroll">{picture}</div>'

    def why(self, step: int, lang: str) -> str:
        key = self._why_key(step)
        reason = t(lang, f"state.why-{key}", **self._values(step))
        if key == "fade" and self.run.cosine > 1e-9:  # both take their share
            reason += " " + t(lang, "state.why-similar", **self._values(step))
        parts = [
            (t(lang, "common.in-step"), f'<p class="now">{esc(self.sentence(step, lang))}</p>'),
            (t(lang, "state.why"), f"<p>{esc(reason)}</p>"),
        ]
        if step == self.last:
            listed = t(lang, "state.why-list", **self._values(step))
            parts.append((t(lang, "state.beside"), f"<p>{esc(listed)}</p>"))
        return why_panel(*parts)

    def tables(self, step: int, lang: str) -> Sequence[Table]:
        stored = min(step, self.run.pairs)
        error, found = (
            (self.run.writes[stored - 1].error, self.run.writes[stored - 1].found)
            if stored
            else ((), ())
        )
        pairs = tuple(
            (i + 1, _percent(e), t(lang, "state.yes" if f else "state.no"))
            for i, (e, f) in enumerate(zip(error, found, strict=True))
        )
        recalled = tuple(
            (TITLES[r.network], r.pairs, f"{r.accuracy:.0%}", format_bytes(r.memory_bytes))
            for r in recall_rows()
        )
        return (
            Table(
                t(lang, "state.table-pairs"),
                tuple(t(lang, f"state.column-{c}") for c in ("pair", "error", "nearest")),
                pairs,
            ),
            Table(
                t(lang, "state.table-recall"),
                tuple(t(lang, f"state.column-{c}") for c in ("network", "stored", "right", "held")),
                recalled,
            ),
        )

    def figures(self, lang: str) -> Sequence[Any]:
        values = self._values(self.last) | {
            "episodes": RECALL_EPISODES,
            "similarity": f"{RECALL_SIMILARITY:g}",
        }
        errors, recall = (
            {
                k: t(lang, f"state.{name}-{k}", **values)
                for k in ("title", "subtitle", "x", "y", extra)
            }
            for name, extra in (("errors", "channels"), ("recall", "chance"))
        )
        rules = sorted((self.run, self.other), key=lambda r: not r.delta)
        lines = [
            (
                t(lang, f"state.rule-{'delta' if r.delta else 'plain'}"),
                [float(np.mean(w.error)) for w in r.writes],
            )
            for r in rules
        ]
        curves = [
            (
                title, _KINDS[name],
                [
                    (r.pairs, r.accuracy, format_bytes(r.memory_bytes))
                    for r in recall_rows() if r.network == name
                ],
            )
            for name, title in TITLES.items()
        ]  # fmt: skip
        return [error_figure(lines, STATE_CHANNELS, errors), recall_figure(curves, CHANCE, recall)]

    def data(self) -> dict[str, Any]:
        run = self.run
        return {
            "pairs": run.pairs, "mean_cosine": run.cosine, "decay": run.decay,
            "delta_rule": run.delta, "error": list(run.writes[-1].error),
            "found": list(run.writes[-1].found), "state": run.writes[-1].state.tolist(),
            "mean_error_by_pairs": [float(np.mean(w.error)) for w in run.writes],
            "recall": [r.as_dict() for r in recall_rows()],
        }  # fmt: skip


def _percent(value: float) -> str:
    return f"{value:.0%}".replace("%", " %")


def film(settings: Settings) -> Film:
    """The film of one setting, by both rules."""
    delta = "no-delta" not in settings["breaks"]
    runs = [
        play_state(
            settings["pairs"], settings["similarity"], settings["decay"], delta=rule,
            rewrite=settings["last"] == "rewrite",
        )
        for rule in (delta, not delta)
    ]  # fmt: skip
    return StateFilm(*runs)


def _preset(pairs: int, similarity: float, decay: float, last: str = "new") -> dict[str, Any]:
    return {"pairs": pairs, "similarity": similarity, "decay": decay, "last": last}


PRESETS = {
    "similar": _preset(12, 0.5, 1.0),
    "apart": _preset(12, 0.0, 1.0),
    "full": _preset(24, 0.0, 1.0),
    "fade": _preset(12, 0.0, 0.9),
    "rewrite": _preset(6, 0.0, 1.0, "rewrite"),
}

LESSON = Lesson(
    slug="state",
    group="state",
    controls=(
        Choice("preset", tuple(PRESETS), "similar", width=200),
        Number("pairs", 1, 32, 12),
        Number("similarity", 0.0, 0.95, 0.5, 0.05),
        Number("decay", 0.8, 1.0, 1.0, 0.01),
        Choice("last", ("new", "rewrite"), "new", width=200),
        Switches("breaks", ("no-delta",)),
    ),
    film=film,
    presets={k: {"preset": k, **v} for k, v in PRESETS.items()},
    figures=2,
    legend=False,
    terms=(
        ("list of pairs", "KV pool, one slot a token", "KV blocks of the MLA group"),
        ("matrix S", "`MambaPool`: temporal state", "recurrent state of `MambaSpec`"),
        (
            "one token's write",
            "`fused_recurrent_kda_packed_decode`",
            "`fused_recurrent_kda`, `fused_recurrent_kda_packed_decode`",
        ),
        ("decay, beta", "`g`, `beta` of the KDA layer", "`g`, `beta` of the KDA layer"),
    ),
    code=(("code-step", naive_recurrent_kda), ("code-run", play_state)),
    notebook="mental",
    next=("chunks", "sizes", "joint"),
)


def build(page: gr.Blocks | None = None) -> gr.Blocks:
    """Build the page into ``page``, or into a Blocks of its own."""
    return _page.build_lesson(LESSON, page)


if __name__ == "__main__":
    _page.launch_alone(build())
