"""A block's bytes, page by page: real data, padding, and places that no layer lies in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kdalab.viz import svg

_LEFT, _RIGHT, _ROW, _BAR = 150.0, 756.0, 46.0, 22.0
_TAGS = {"kv": "KV", "s": "S", "c": "C"}


@dataclass(frozen=True, slots=True)
class Piece:
    """``nbytes`` of one look: "kv", "s", "c", "pad" (inside a page) or "empty" (no layer there)."""

    look: str
    nbytes: int
    title: str = ""


@dataclass(frozen=True, slots=True)
class BlockRow:
    """A line of pieces with its name, a note under the name, and the sum written behind it."""

    name: str
    note: str
    pieces: Sequence[Piece]
    total: str
    marked: bool = False


def block_bytes_svg(
    parts: Sequence[tuple[str, Sequence[BlockRow]]], *, top: int, scale: str, label: str
) -> str:
    """Rows under headings, all to one scale.

    Args:
        parts: (heading, rows).
        top: bytes of the whole width.
        scale: what the scale is, in the reader's language.
        label: the text alternative.
    """
    drawn = [svg.text(_LEFT, 12, scale, "small muted")]
    y = 24.0
    for heading, rows in parts:
        drawn.append(svg.text(6, y + 8, heading, "strong"))
        y += 18
        for row in rows:
            drawn.append(_row(y, row, top))
            y += _ROW
        y += 4
    return svg.document("".join(drawn), y + 4, label, css_class="kd-block-bytes")


def _row(y: float, row: BlockRow, top: int) -> str:
    parts = [
        svg.text(6, y + 11, row.name, "small strong"),
        svg.text(6, y + 25, row.note, "small muted"),
    ]
    x = _LEFT
    for piece in row.pieces:
        width = (_RIGHT - _LEFT) * piece.nbytes / max(1, top)
        inset = min(0.6, width / 8)
        inner = max(0.3, width - 2 * inset)
        if piece.look == "pad":
            shape = svg.rect(x + inset, y, inner, _BAR, "padding") + svg.hatch(
                x + inset, y, inner, _BAR
            )
        elif piece.look == "empty":
            shape = svg.rect(x + inset, y, inner, _BAR, "free")
        else:
            shape = svg.rect(x + inset, y, inner, _BAR, piece.look)
            if width > 18:
                tag = _TAGS[piece.look]
                shape += svg.text(x + width / 2, y + 15, tag, f"tiny mid on{piece.look}")
        parts.append(svg.group(shape, title=piece.title))
        x += width
    if row.marked:
        parts.append(svg.rect(_LEFT - 3, y - 3, x - _LEFT + 6, _BAR + 6, "now", radius=4))
    parts.append(svg.text(min(x, _RIGHT) + 8, y + 15, row.total, "small strong"))
    return "".join(parts)
