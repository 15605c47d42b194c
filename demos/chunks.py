"""**Chunks**: a span of tokens is one map of the state; the order matters, the grouping does not.

``python -m demos.chunks`` opens this page alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gradio as gr

from demos import _page
from demos._controls import Choice, Number, Settings, Switches
from demos._film import Film, why_panel
from demos._lesson import Lesson
from demos._text import t
from kdalab.lessons import DECAYS, ChunkRun, Span, play_chunks
from kdalab.viz.chunks import Labelled, chunks_svg
from kdalab.viz.svg import esc
from kdalab.viz.tables import Table
from kdalab.viz.why import format_difference
from kdalab_kernels import chunk_summary, compose


class ChunkFilm(Film):
    """Piece after piece, then the same pieces composed from the left, in pairs, and swapped."""

    def __init__(self, run: ChunkRun, broken: bool) -> None:
        self.run = run
        self.n = len(run.spans)
        self.kinds = ["start", *["piece"] * self.n, "left", "tree", *["swap"] * broken]
        self.last = len(self.kinds) - 1
        self.opening = self.last if broken else 2

    def _values(self, step: int) -> dict[str, Any]:
        run, kind = self.run, self.kinds[step]
        values: dict[str, Any] = {"pieces": self.n, "tokens": run.spans[-1].end}
        if kind == "piece":
            span = run.spans[step - 1]
            values |= {"piece": step, "start": span.start, "end": span.end}
        elif kind != "start":
            span = {"left": run.left, "tree": run.tree, "swap": run.swapped}[kind]
            values |= {
                "difference": format_difference(run.difference(span)),
                "size": f"{run.size:.3g}",
                "first": run.swap + 1,
                "second": run.swap + 2,
            }
        return values

    def sentence(self, step: int, lang: str) -> str:
        return t(lang, f"chunks.step-{self.kinds[step]}", **self._values(step))

    def tone(self, step: int) -> str:
        tones = {"start": "plain", "tree": "finish", "swap": "evict"}
        return tones.get(self.kinds[step], "compute")

    def picture(self, step: int, lang: str) -> str:
        run, kind = self.run, self.kinds[step]
        cuts = [0, *(s.end for s in run.spans)]
        order = list(range(self.n))
        groups: list[tuple[int, int]] = []
        marked: list[int] = []
        if kind == "start":
            formula: list[Labelled | str] = [self._matrix("S", run.states[0], lang)]
        elif kind == "piece":
            span = run.spans[step - 1]
            marked, groups = [step - 1], [(step - 1, step - 1)]
            formula = [
                self._matrix(f"S({span.end:,})", run.states[step], lang),
                "=", self._matrix(f"M{step}", span.M, lang),
                "·", self._matrix(f"S({span.start:,})", run.states[step - 1], lang),
                "+", self._matrix(f"b{step}", span.b, lang),
            ]  # fmt: skip
        else:
            whole = {"left": run.left, "tree": run.tree, "swap": run.swapped}[kind]
            marked = order
            groups = [(0, self.n - 1)]
            if kind == "tree":
                groups = [(i, min(i + 1, self.n - 1)) for i in range(0, self.n, 2)]
            if kind == "swap":
                i = run.swap
                order = [*order[:i], i + 1, i, *order[i + 2 :]]
                marked = [i, i + 1]
            formula = self._whole(whole, lang)
        return '<div class="kd-scroll">' + chunks_svg(
            cuts, groups, order, marked, formula,
            label=self.sentence(step, lang), tokens_word=t(lang, "chunks.tokens-word"),
        ) + "</div>"  # fmt: skip

    def _matrix(self, name: str, values: Any, lang: str, limit: float = 0.0) -> Labelled:
        largest = f"{abs(values).max():.3g}" if values.size else "0"
        title = t(lang, "chunks.matrix", name=name, largest=largest)
        return Labelled(name, title, values, limit)

    def _whole(self, span: Span, lang: str) -> list[Labelled | str]:
        size = self.run.size
        wrong = span.b - self.run.direct
        return [
            self._matrix("M", span.M, lang),
            ",", self._matrix("b", span.b, lang, size),
            "vs", self._matrix(t(lang, "chunks.recurrence"), self.run.direct, lang, size),
            ":", self._matrix(t(lang, "chunks.difference"), wrong, lang, size),
        ]  # fmt: skip

    def why(self, step: int, lang: str) -> str:
        reason = t(lang, f"chunks.why-{self.kinds[step]}", **self._values(step))
        now = f'<p class="now">{esc(self.sentence(step, lang))}</p>'
        return why_panel(
            (t(lang, "common.in-step"), now),
            (t(lang, "chunks.why"), f"<p>{esc(reason)}</p>"),
        )

    def tables(self, step: int, lang: str) -> Sequence[Table]:
        run = self.run
        rows = [
            (t(lang, f"chunks.row-{name}"), format_difference(run.difference(span)))
            for name, span in (("left", run.left), ("tree", run.tree), ("swap", run.swapped))
        ]
        pieces = [
            (i + 1, s.start, s.end, f"{abs(s.M).max():.4g}", f"{abs(s.b).max():.4g}")
            for i, s in enumerate(run.spans)
        ]
        columns = [t(lang, f"chunks.column-{c}") for c in ("piece", "start", "end", "m", "b")]
        return (
            Table(
                t(lang, "chunks.table-whole"),
                (t(lang, "chunks.column-how"), "max |Δ|"),
                tuple(rows),
            ),
            Table(t(lang, "chunks.table-pieces"), tuple(columns), tuple(pieces)),
        )

    def data(self) -> dict[str, Any]:
        run = self.run
        return {
            "pieces": [{"start": s.start, "end": s.end} for s in run.spans],
            "difference": {
                "from_the_left": run.difference(run.left),
                "in_pairs": run.difference(run.tree),
                "swapped": run.difference(run.swapped),
            },
            "largest_value": run.size,
            "state": run.direct.tolist(),
        }


def film(settings: Settings) -> Film:
    """The film of one setting."""
    pieces = settings["pieces"]
    run = play_chunks(settings["tokens"], pieces, settings["decay"], swap=pieces - 2)
    return ChunkFilm(run, "swap" in settings["breaks"])


LESSON = Lesson(
    slug="chunks",
    group="state",
    controls=(
        Number("tokens", 16, 256, 128, 8),
        Number("pieces", 2, 8, 4),
        Choice("decay", tuple(DECAYS), "slow"),
        Switches("breaks", ("swap",)),
    ),
    film=film,
    legend=False,
    terms=(
        ("summary (M, b)", "`chunk_kda` with context parallelism", "-"),
        ("piece", "chunk of 64 tokens in FLA's KDA kernels", "the same kernels"),
        ("composition", "inter-chunk scan", "inter-chunk scan"),
    ),
    code=(("code-summary", chunk_summary), ("code-compose", compose)),
    notebook="chunk",
    exercises=("ex03", "ex04"),
    next=("sizes", "joint", "restore"),
)


def build(page: gr.Blocks | None = None) -> gr.Blocks:
    """Build the page into ``page``, or into a Blocks of its own."""
    return _page.build_lesson(LESSON, page)


if __name__ == "__main__":
    _page.launch_alone(build())
