"""**Sliding windows**: why SWA's fixed checkpoints do not carry over to KDA.

``python -m demos.swa`` opens this page alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import gradio as gr

from demos import _page
from demos._controls import Choice, Number, Settings, Switches
from demos._film import Film, why_panel
from demos._lesson import Lesson
from demos._text import t
from kdalab.lessons import DECAYS
from kdalab.lessons.window import WindowRun, play_window
from kdalab.viz.svg import esc
from kdalab.viz.tables import Table
from kdalab.viz.window import WINDOW_WORDS, WindowRow, window_figure, window_svg
from kdalab_kernels import naive_recurrent_kda

_STEPS = ("held", "short", "swa", "kda", "longer", "whole", "checkpoint")


class WindowFilm(Film):
    """The same replay for both kinds of layer, then what KDA needs instead."""

    def __init__(self, run: WindowRun, decay: str, carried: bool) -> None:
        self.run, self.decay = run, decay
        self.kinds = [*_STEPS, *["carried"] * carried]
        self.last = len(self.kinds) - 1
        self.opening = self.last if carried else _STEPS.index("kda")
        self.longer = max(n for n in run.replayed if n < run.tokens)
        self.short = max((n for n in run.replayed if n < run.reach), default=run.reach)

    def _values(self) -> dict[str, Any]:
        run = self.run
        return {
            "tokens": run.tokens,
            "window": run.window,
            "keys": run.window - 1,
            "layers": run.layers,
            "reach": run.reach,
            "short": self.short,
            "longer": self.longer,
            "swa_short": _shown(run.at(self.short)[0]),
            "swa": _shown(run.at(run.reach)[0]),
            "kda": _shown(run.at(run.reach)[1]),
            "kda_longer": _shown(run.at(self.longer)[1]),
            "resumed": _shown(run.resumed),
        }

    def _forgot(self, step: int) -> bool:
        return self.kinds[step] == "kda" and self.run.at(self.run.reach)[1] < 1e-12

    def sentence(self, step: int, lang: str) -> str:
        key = "kda-forgot" if self._forgot(step) else self.kinds[step]
        return t(lang, f"swa.step-{key}", **self._values())

    def tone(self, step: int) -> str:
        if self._forgot(step):
            return "restore"
        tones = {"swa": "restore", "kda": "evict", "carried": "evict", "longer": "compute",
                 "whole": "compute", "checkpoint": "snapshot"}  # fmt: skip
        return tones.get(self.kinds[step], "plain")

    def picture(self, step: int, lang: str) -> str:
        run, kind = self.run, self.kinds[step]
        error = t(lang, "swa.word-error")
        replayed = {"held": 0, "short": self.short, "longer": self.longer, "whole": run.tokens}
        only = kind in ("short", "swa")  # KDA's turn comes after SWA's
        n = replayed.get(kind, run.reach)
        swa, kda = run.at(n) if n else (0.0, 0.0)
        kda = run.resumed if kind == "checkpoint" else kda
        names = [t(lang, f"swa.row-{k}") for k in ("swa", "kda")]
        rows = (
            WindowRow(
                names[0], n, False, f"{error} {_shown(swa)}" if n else "", swa > 1e-9,
                only,
            ),
            WindowRow(
                names[1], 0 if only else n, kind == "checkpoint",
                f"{error} {_shown(kda)}" if n and not only else "", kda > 1e-9 and not only,
                kind != "held" and not only, only,
            ),
        )  # fmt: skip
        words = {k: t(lang, f"swa.word-{k}", **self._values())
                 for k in ("scale", "boundary", "keys", "state")}  # fmt: skip
        shown = window_svg(
            *rows, run.tokens, run.reach, run.window - 1,
            label=self.sentence(step, lang), words=words,
        )  # fmt: skip
        return f'<div class="kd-scroll">{shown}</div>'

    def why(self, step: int, lang: str) -> str:
        values = self._values()
        now = f'<p class="now">{esc(self.sentence(step, lang))}</p>'
        reason = f"<p>{esc(t(lang, f'swa.why-{self.kinds[step]}', **values))}</p>"
        return why_panel((t(lang, "common.in-step"), now), (t(lang, "swa.why"), reason))

    def tables(self, step: int, lang: str) -> Sequence[Table]:
        run = self.run
        columns = tuple(t(lang, f"swa.column-{c}") for c in ("replayed", "swa", "kda"))
        rows = tuple(
            (n, _shown(a), _shown(b))
            for n, a, b in zip(run.replayed, run.swa, run.kda, strict=True)
        )
        return (Table(t(lang, "swa.table", **self._values()), columns, rows),)

    def figures(self, lang: str) -> Sequence[Any]:
        words = {key: t(lang, f"swa.figure-{key}") for key in WINDOW_WORDS}
        run = self.run
        return [window_figure(run.replayed, run.swa, run.kda, run.reach, words=words)]

    def data(self) -> dict[str, Any]:
        return {**asdict(self.run), "decay": self.decay}


def _shown(error: float) -> str:
    return "0" if error == 0 else f"{error:.2g}"


def film(settings: Settings) -> Film:
    """The film of one setting.

    Raises:
        KdalabError: as ``play_window``.
    """
    decay = settings["decay"]
    run = play_window(settings["tokens"], settings["window"], settings["layers"], decay)
    return WindowFilm(run, decay, "carried" in settings["breaks"])


LESSON = Lesson(
    slug="swa",
    group="prefix",
    controls=(
        Number("window", 4, 64, 32, 4),
        Choice("layers", (1, 2, 3), 2, width=120),
        Choice("decay", tuple(DECAYS), "slow", width=240),
        Choice("tokens", (256, 512), 256, width=120),
        Switches("breaks", ("carried",)),
    ),
    film=film,
    figures=1,
    legend=False,
    terms=(
        ("window state", "SWA radix cache, `sliding_window_size`", "`SlidingWindowSpec`"),
        ("recurrent state", "`MambaRadixCache`", "`MambaSpec`"),
    ),
    code=(("code-window", play_window), ("code-kda", naive_recurrent_kda)),
    notebook="mental",
    next=("restore", "density"),
)


def build(page: gr.Blocks | None = None) -> gr.Blocks:
    """Build the page into ``page``, or into a Blocks of its own."""
    return _page.build_lesson(LESSON, page)


if __name__ == "__main__":
    _page.launch_alone(build())
