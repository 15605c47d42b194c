"""**INT8 checkpoints**: rounded once a snapshot, never inside the recurrence.

``python -m demos.int8`` opens this page alone.
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
from kdalab.lessons import Int8Run, play_int8, rounded_with, scale_lines, shrunk
from kdalab.memory import Int8CheckpointPool
from kdalab.units import format_bytes
from kdalab.viz.bytes_bars import Bar, bytes_bars_svg
from kdalab.viz.rounding import curves_figure, errors_svg, rounding_svg
from kdalab.viz.svg import esc
from kdalab.viz.tables import Table

_STEPS = ("native", "store", "bytes", "restore", "decode")
_ZERO_BELOW = 3.8e-6  # a channel maximum / 127 under half of fp16's least number


class Int8Film(Film):
    """A state, its rounding, its bytes, the restore, and what decoding makes of the error."""

    def __init__(self, run: Int8Run, layer: int, head: int, breaks: tuple[str, ...]) -> None:
        self.run, self.layer, self.head = run, layer, head
        self.kinds = [*_STEPS, *breaks]
        self.last = len(self.kinds) - 1
        self.opening = self.last if breaks else self.kinds.index("decode")

    def _values(self, lang: str) -> dict[str, Any]:
        run = self.run
        state, error = run.state[self.layer, self.head], run.error[self.layer, self.head]
        values: dict[str, Any] = {
            "layer": self.layer + 1, "head": self.head + 1, "channels": state.shape[-1],
            "largest": f"{np.abs(state).max():.3g}", "error": f"{error.max():.2g}",
            "least": f"{error.min():.2g}", "all": f"{run.error.max():.2g}",
            "share": f"{(run.error / run.largest).max():.2%}".replace("%", " %"),
            "native": format_bytes(run.recurrent_bytes + run.conv_bytes),
            "int8": format_bytes(run.int8_bytes), "conv": format_bytes(run.conv_bytes),
            "saved": f"{(run.recurrent_bytes + run.conv_bytes) / run.int8_bytes:.2f}",
            "ratio": f"{run.recurrent_bytes / (run.int8_bytes - run.conv_bytes):.2f}",
            "n": len(run.once), "first": f"{run.once[0]:.2g}",
            "once": f"{np.median(run.once):.2g}", "once_worst": f"{max(run.once):.2g}",
            "every": f"{np.median(run.every):.2g}", "every_worst": f"{max(run.every):.2g}",
            "times": f"{np.median(run.every) / np.median(run.once):.1f}",
            "state_once": f"{run.state_once[-1]:.2g}", "state_every": f"{run.state_every[-1]:.2g}",
            "margin": f"{run.margin:.2g}", "smallest": f"{run.largest.min():.2g}",
        }  # fmt: skip
        for name, served in run.served.items():
            values |= {
                f"served_{name}": f"{served.median:.2g}", f"worst_{name}": f"{served.worst:.2g}",
                f"wrong_{name}": t(lang, "int8.right")
                if served.wrong is None
                else t(lang, "int8.wrong", place=served.wrong + 1),
            }  # fmt: skip
        return values

    def sentence(self, step: int, lang: str) -> str:
        return t(lang, f"int8.step-{self.kinds[step]}", **self._values(lang))

    def tone(self, step: int) -> str:
        tones = {"store": "snapshot", "restore": "copy", "decode": "compute"}
        return tones.get(self.kinds[step], "evict" if step >= len(_STEPS) else "plain")

    def picture(self, step: int, lang: str) -> str:
        run, kind = self.run, self.kinds[step]
        values = self._values(lang)
        label = self.sentence(step, lang)
        if kind == "bytes":
            scales = run.int8_bytes - run.conv_bytes
            bars = [
                Bar(
                    t(lang, f"int8.bar-{name}"),
                    (
                        ("s", recurrent, t(lang, "int8.bar-s")),
                        ("c", run.conv_bytes, t(lang, "int8.bar-c")),
                    ),
                    t(lang, f"int8.note-{name}", **values),
                    name == "int8",
                )
                for name, recurrent in (("native", run.recurrent_bytes), ("int8", scales))
            ]
            shown = bytes_bars_svg(bars, label=label, scale_word=t(lang, "int8.scale"))
            return f'<div class="kd-scroll">{shown}</div>'
        if kind in ("decode", "every-step"):
            return f'<div class="kd-scroll">{self._bars(kind, label, values, lang)}</div>'
        state = run.state[self.layer, self.head]
        rounded: np.ndarray | None = run.rounded[self.layer, self.head]
        if kind == "native":
            rounded = None
        if kind == "fp16-scale":
            state, rounded = shrunk(state, 4 * _ZERO_BELOW)
        back = state if rounded is None else rounded
        values |= {
            "largest": f"{np.abs(state).max():.2g}",
            "difference": f"{np.abs(back - state).max():.2g}",
        }
        names = ("state", "rounded", "difference", "largest", "error", "channels")
        words = {n: t(lang, f"int8.word-{n}", **values) for n in names}
        return f'<div class="kd-scroll">{rounding_svg(state, rounded, words, label=label)}</div>'

    def _bars(self, kind: str, label: str, values: dict[str, Any], lang: str) -> str:
        """Rounded once beside rounded at every token."""
        run = self.run

        def rows(once: float, every: float) -> list[tuple[str, float]]:
            return [(t(lang, "int8.bars-once"), once), (t(lang, "int8.bars-every"), every)]

        logits = rows(float(np.median(run.once)), float(np.median(run.every)))
        state = rows(run.state_once[-1], run.state_every[-1])
        margin = run.margin, t(lang, "int8.bars-margin", **values)
        both = [
            (t(lang, "int8.bars-logits", **values), logits, margin),
            (t(lang, "int8.bars-state", **values), state, None),
        ]
        return errors_svg(both if kind == "decode" else both[::-1], label=label)

    def why(self, step: int, lang: str) -> str:
        reason = t(lang, f"int8.why-{self.kinds[step]}", **self._values(lang))
        return why_panel(
            (t(lang, "common.in-step"), f'<p class="now">{esc(self.sentence(step, lang))}</p>'),
            (t(lang, "int8.why"), f"<p>{esc(reason)}</p>"),
        )

    def tables(self, step: int, lang: str) -> Sequence[Table]:
        run = self.run
        layers = tuple(
            (
                i + 1, f"{run.largest[i].max():.3g}", f"{run.largest[i].min():.3g}",
                f"{run.error[i].max():.3g}", f"{(run.error[i] / run.largest[i]).max():.3%}",
            )
            for i in range(len(run.error))
        )  # fmt: skip
        served = tuple(
            (
                t(lang, f"int8.served-{name}"), f"{s.median:.3g}", f"{s.worst:.3g}",
                t(lang, "int8.right")
                if s.wrong is None
                else t(lang, "int8.wrong", place=s.wrong + 1),
            )
            for name, s in run.served.items()
        )  # fmt: skip
        at = sorted({0, *range(7, len(run.once), 8), len(run.once) - 1})
        tokens = tuple(
            (
                i + 1, f"{run.once[i]:.3g}", f"{run.every[i]:.3g}", f"{run.state_once[i]:.3g}",
                f"{run.state_every[i]:.3g}",
            )
            for i in at
        )  # fmt: skip
        return tuple(
            Table(
                t(lang, f"int8.table-{name}"),
                tuple(t(lang, f"int8.column-{c}") for c in columns),
                rows,
            )
            for name, columns, rows in (
                ("layers", ("layer", "largest", "smallest", "error", "relative"), layers),
                ("served", ("run", "median", "worst", "wrong"), served),
                ("tokens", ("token", "once", "every", "state-once", "state-every"), tokens),
            )
        )

    def figures(self, lang: str) -> Sequence[Any]:
        run, values = self.run, self._values(lang)
        x = list(range(1, len(run.once) + 1))
        decoded, scales = (
            {k: t(lang, f"int8.{name}-{k}", **values) for k in ("title", "subtitle", "x", "y")}
            for name in ("decoded", "scales")
        )
        lines = [
            (t(lang, "int8.line-once"), x, run.once),
            (t(lang, "int8.line-every"), x, run.every),
        ]
        by_dtype = [
            (t(lang, "int8.line-scale", dtype=s.dtype), s.largest, s.error) for s in scale_lines()
        ]
        return [
            curves_figure(
                lines, decoded, line_at=(run.margin, t(lang, "int8.line-margin", **values))
            ),
            curves_figure(
                by_dtype, scales, log_x=True, mark_x=(_ZERO_BELOW, t(lang, "int8.mark-zero"))
            ),
        ]

    def data(self) -> dict[str, Any]:
        run = self.run
        return {
            "bytes": {
                "recurrent": run.recurrent_bytes, "conv": run.conv_bytes, "int8": run.int8_bytes,
            },
            "error_by_channel": run.error.tolist(),
            "largest_by_channel": run.largest.tolist(),
            "conv_equal": run.conv_equal,
            "logits_once": list(run.once),
            "logits_every_step": list(run.every),
            "served": {
                n: {"median": s.median, "worst": s.worst, "wrong": s.wrong}
                for n, s in run.served.items()
            },
            "scales": {
                s.dtype: {"largest": list(s.largest), "error": list(s.error)} for s in scale_lines()
            },
        }  # fmt: skip


def film(settings: Settings) -> Film:
    """The film of one setting."""
    breaks = settings["breaks"]
    run = play_int8(settings["tokens"], "every-step" in breaks)
    return Int8Film(run, settings["layer"] - 1, settings["head"] - 1, breaks)


LESSON = Lesson(
    slug="int8",
    group="sharing",
    controls=(
        Choice("layer", (1, 2, 3, 4, 5, 6), 1),
        Choice("head", (1, 2, 3, 4), 1),
        Number("tokens", 8, 64, 24, 8),
        Switches("breaks", ("every-step", "fp16-scale")),
    ),
    film=film,
    figures=2,
    legend=False,
    terms=(
        ("INT8 checkpoint pool", "`MambaCheckpointPool`, `--enable-int8-mamba-checkpoint`", "-"),
        ("size of the pool", "`--int8-mamba-ckpt-size`, default 2 x active pool", "-"),
        ("store", "`store_from_active`", "-"),
        ("load", "`load_to_active`: takes the place of the plain COW copy", "-"),
        ("scale", "one a (layer, slot, head, k channel), maximum over d_v", "-"),
    ),
    code=(("code-pool", Int8CheckpointPool), ("code-scale", rounded_with)),
    notebook="int8",
    exercises=("ex14",),
    next=("joint", "sizes", "restore"),
)


def build(page: gr.Blocks | None = None) -> gr.Blocks:
    """Build the page into ``page``, or into a Blocks of its own."""
    return _page.build_lesson(LESSON, page)


if __name__ == "__main__":
    _page.launch_alone(build())
