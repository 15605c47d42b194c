"""Shares as bars of one scale: what was measured, filled, beside what is possible, as outlines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kdalab.viz import svg
from kdalab.viz.css import hue_class

_LEFT, _RIGHT, _ROW, _BAR = 300.0, 790.0, 34.0, 20.0


@dataclass(frozen=True, slots=True)
class Share:
    """A row: its name, and a share of 0 to 1. ``possible``: a yardstick, not a replay. ``marked``:
    the row that the step is about."""

    name: str
    share: float
    possible: bool = False
    marked: bool = False


def share_bars_svg(rows: Sequence[Share], *, label: str, scale_word: str) -> str:
    """One bar a row from 0 %, on one linear scale that ends at the largest share; ``scale_word``
    says of what they are shares, in the reader's language."""
    top = max((row.share for row in rows), default=0.0) or 1.0
    parts = [svg.text(_LEFT, 12, scale_word, "small muted")]
    for number, row in enumerate(rows):
        y = 22 + number * _ROW
        width = max(0.6, (_RIGHT - _LEFT) * row.share / top)
        parts.append(svg.text(_LEFT - 10, y + 15, row.name, "end strong" if row.marked else "end"))
        css = "tok waiting" if row.possible else "tok made"
        title = f"{row.name}: {row.share:.2%}"
        parts.append(svg.rect(_LEFT, y, width, _BAR, css, title=title))
        parts.append(svg.text(_LEFT + width + 8, y + 15, f"{row.share:.1%}", "strong"))
        if row.marked:
            parts.append(svg.rect(_LEFT - 3, y - 3, width + 6, _BAR + 6, "now", radius=4))
    content = svg.group("".join(parts), hue_class(0))
    return svg.document(content, 26 + len(rows) * _ROW, label, css_class="kd-share-bars")
