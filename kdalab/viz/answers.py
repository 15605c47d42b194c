"""Pictures of one small case: rows of cells on a common axis, or matrices side by side.

Plain data in; an SVG for a notebook, and lines of text for a terminal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from kdalab.viz import svg

_LEFT = 170.0
_ROW = 46.0
_CELL = 18.0
_BOX = 15.0
_INK = {"kv": "onkv", "s": "ons", "c": "onc"}


class Picture(Protocol):
    """What an outcome shows beside its text."""

    def svg(self) -> str:
        """One picture with a text alternative."""
        ...

    def text(self) -> str:
        """The same in lines of text."""
        ...


class Cell(NamedTuple):
    """[start, end) on the row's axis. ``look`` is a class of ``pictures.css``: kv, s, c, free,
    tomb, padding."""

    start: float
    end: float
    look: str = "kv"
    label: str = ""


class Flag(NamedTuple):
    """A named place on the axis; ``good`` says whether it is as it should be."""

    at: float
    label: str
    good: bool = True


class Row(NamedTuple):
    """One line of the picture: cells, states (boxes) and tombstones under them, flags over them."""

    caption: str
    cells: tuple[Cell, ...] = ()
    states: tuple[float, ...] = ()
    tombs: tuple[float, ...] = ()
    flags: tuple[Flag, ...] = ()


class Rows(NamedTuple):
    """Rows on one axis, from 0 to the largest number in them."""

    rows: tuple[Row, ...]
    unit: str = "tokens"

    def svg(self) -> str:
        """Captions on the left, the axis' end on the right."""
        ends = [c.end for r in self.rows for c in r.cells]
        ends += [x for r in self.rows for x in (*r.states, *r.tombs, *(f.at for f in r.flags))]
        top = max([1.0, *ends])
        scale = (svg.WIDTH - _LEFT - 70) / top
        parts = []
        y = 20.0
        for row in self.rows:
            parts.append(_row(row, y, scale))
            y += _ROW + (12 if row.states or row.tombs else 0)
        parts.append(svg.text(_LEFT, y, f"0 to {top:,g} {self.unit}", "small muted"))
        return svg.document("".join(parts), y + 8, self.text(), css_class="kd-answer")

    def text(self) -> str:
        """One line a row: every cell with its ends, states as S, tombstones as (), flags as >."""
        wide = max(len(r.caption) for r in self.rows)
        return "\n".join(f"{r.caption:<{wide}}  {_line(r)}" for r in self.rows)


class Heats(NamedTuple):
    """Matrices of one colour scale, each with a title; ``values`` rows by columns."""

    parts: tuple[tuple[str, Any], ...]

    def svg(self) -> str:
        """Squares side by side."""
        import numpy as np

        from kdalab.viz.heat import heat

        values = [(title, np.atleast_2d(np.asarray(v, dtype=float))) for title, v in self.parts]
        finite = [abs(v[np.isfinite(v)]).max() for _, v in values if np.isfinite(v).any()]
        limit, side = max([1e-9, *finite]), min(150.0, svg.WIDTH / len(values) - 30)
        drawn = "".join(
            svg.text(10 + i * (side + 30), 14, title, "small strong")
            + heat(v, 10 + i * (side + 30), 22, side, _numbers(v), limit=limit)
            for i, (title, v) in enumerate(values)
        )
        return svg.document(drawn, side + 34, self.text(), css_class="kd-answer")

    def text(self) -> str:
        """Titles and numbers."""
        return "\n".join(f"{title}: {_numbers(value)}" for title, value in self.parts)


def _row(row: Row, y: float, scale: float) -> str:
    parts = [svg.text(0, y + 13, row.caption, "small strong")]
    for cell in row.cells:
        x, width = _LEFT + cell.start * scale + 1, (cell.end - cell.start) * scale - 2
        tip = f"{cell.label} [{cell.start:g}, {cell.end:g})"
        parts.append(svg.rect(x, y, width, _CELL, cell.look, radius=2, title=tip))
        if cell.label and width > 5.2 * len(cell.label):
            ink = _INK.get(cell.look, "")
            parts.append(svg.text(x + width / 2, y + 12.5, cell.label, f"tiny mid {ink}"))
    for at in row.states:
        parts.append(svg.state_box(_LEFT + at * scale - _BOX / 2, y + 22, _BOX, shared=False))
    for at in row.tombs:
        parts.append(svg.empty_box(_LEFT + at * scale - _BOX / 2, y + 22, _BOX, "tomb"))
    for flag in row.flags:
        x = _LEFT + flag.at * scale
        parts.append(svg.path(f"M{x:.1f} {y - 6:.1f} V{y + _CELL + 3:.1f}", "pole"))
        ink = "kd-good-ink" if flag.good else "hatchink"
        parts.append(svg.text(x + 3, y - 4, flag.label, f"small halo {ink}"))
    return "".join(parts)


def _line(row: Row) -> str:
    words = [f"{c.label or c.look} [{c.start:g}, {c.end:g})" for c in row.cells]
    words += [f"S at {at:g}" for at in row.states]
    words += [f"no state at {at:g}" for at in row.tombs]
    words += [f"> {f.label} at {f.at:g}" for f in row.flags]
    return "  ".join(words) if words else "nothing"


def _numbers(value: Any, most: int = 64) -> str:
    import numpy as np

    array = np.asarray(value, dtype=float)
    if array.size > most:
        return f"{' x '.join(map(str, array.shape))} numbers, largest {abs(array).max():.6g}"
    return str(np.array2string(array, precision=6, separator=", ").replace("\n", ""))


def number_rows(unit: str, *named: tuple[str, float]) -> Rows:
    """A bar for each named number, on one axis."""
    looks: Sequence[str] = ("kv", "s", "c")
    return Rows(
        tuple(
            Row(name, (Cell(0, max(float(value), 0.0), looks[i % 3], f"{value:,g}"),))
            for i, (name, value) in enumerate(named)
        ),
        unit,
    )
