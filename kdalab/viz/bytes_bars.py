"""Bytes as bars of one scale: what each kind of state takes, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kdalab.units import format_bytes
from kdalab.viz import svg

_LEFT, _RIGHT, _ROW, _BAR = 168.0, 748.0, 52.0, 24.0


@dataclass(frozen=True, slots=True)
class Bar:
    """A row: its name, parts of (CSS class "kv", "s" or "c", bytes, tooltip), and a note."""

    name: str
    parts: Sequence[tuple[str, int, str]]
    note: str = ""
    marked: bool = False

    @property
    def total(self) -> int:
        """Bytes of all parts."""
        return sum(size for _, size, _ in self.parts)


def bytes_bars_svg(bars: Sequence[Bar], *, label: str, scale_word: str) -> str:
    """Bars on one linear scale; every one has its bytes written beside it.

    A part thinner than half a unit still shows as a hairline; ``scale_word`` says that all bars
    have one scale, in the reader's language.
    """
    top = max((bar.total for bar in bars), default=1) or 1
    parts = [svg.text(_LEFT, 12, scale_word, "small muted")]
    for number, bar in enumerate(bars):
        y = 22 + number * _ROW
        parts.append(svg.text(_LEFT - 10, y + 17, bar.name, "end strong" if bar.marked else "end"))
        x = _LEFT
        for css, size, title in bar.parts:
            width = max(0.6, (_RIGHT - _LEFT) * size / top) if size else 0.0
            shape = svg.rect(x, y, width, _BAR, css, title=title)
            parts.append(shape)
            tag = {"kv": "KV", "s": "S", "c": "C"}[css]
            if width > 22:
                parts.append(svg.text(x + width / 2, y + 16, tag, f"tiny mid on{css}"))
            x += width
        parts.append(svg.text(x + 8, y + 17, format_bytes(bar.total), "strong"))
        if bar.note:
            parts.append(svg.text(_LEFT, y + 40, bar.note, "small muted"))
        if bar.marked:
            width = x - _LEFT + 6
            parts.append(svg.rect(_LEFT - 3, y - 3, width, _BAR + 6, "now", radius=4))
    return svg.document("".join(parts), 26 + len(bars) * _ROW, label, css_class="kd-bytes-bars")
