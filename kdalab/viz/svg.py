"""Small pieces that every SVG picture is made of. All text goes through ``esc``."""

from __future__ import annotations

import html
from dataclasses import dataclass

from kdalab.viz.css import hue_class, stylesheet

WIDTH = 860
"""Width of every picture's view box; a page scales the picture to its column."""


def esc(text: object) -> str:
    """Text made safe for element content and attributes; control characters become dots."""
    shown = "".join(c if c.isprintable() else "·" for c in str(text))
    return html.escape(shown, quote=True)


def document(
    content: str, height: float, label: str, *, css_class: str = "", targets: bool = False
) -> str:
    """A whole picture with a text alternative; ``height`` in view-box units.

    ``targets`` says that shapes inside can be reached and picked. The parts of a plain "img" are
    hidden from a screen reader, so such a picture is a graphics document first.
    """
    role = "graphics-document img" if targets else "img"
    return (
        f'<svg class="kd-svg {css_class}" viewBox="0 0 {WIDTH} {_n(height)}" role="{role}" '
        f'aria-label="{esc(label)}" xmlns="http://www.w3.org/2000/svg">{content}</svg>'
    )


def standalone(picture: str, theme_name: str = "light") -> str:
    """The same picture with its style sheet inside, for a file of its own."""
    head, _, rest = picture.partition(">")
    return f'{head} data-theme="{esc(theme_name)}"><style>{stylesheet()}</style>{rest}'


def text(x: float, y: float, content: object, css_class: str = "") -> str:
    """A line of text; (x, y) is its baseline."""
    return f'<text x="{_n(x)}" y="{_n(y)}" class="{css_class}">{esc(content)}</text>'


def rect(
    x: float,
    y: float,
    width: float,
    height: float,
    css_class: str,
    *,
    radius: float = 0,
    title: str = "",
) -> str:
    """A rectangle, with a tooltip when ``title`` is given."""
    inside = f"<title>{_lines(title)}</title>" if title else ""
    return (
        f'<rect x="{_n(x)}" y="{_n(y)}" width="{_n(max(width, 0))}" height="{_n(max(height, 0))}" '
        f'rx="{_n(radius)}" class="{css_class}">{inside}</rect>'
    )


def path(d: str, css_class: str) -> str:
    """A path from numbers of our own making."""
    return f'<path d="{d}" class="{css_class}"/>'


def group(content: str, css_class: str = "", *, title: str = "", pick: str = "") -> str:
    """Shapes that belong together. ``pick`` ("node:3") makes the group a keyboard-reachable target
    whose tooltip, ``title``, is also its name for a screen reader."""
    spoken = "; ".join(title.split("\n"))
    target = (
        f' tabindex="0" role="button" data-pick="{esc(pick)}" aria-label="{esc(spoken)}"'
        if pick
        else ""
    )
    inside = f"<title>{_lines(title)}</title>" if title else ""
    return f'<g class="{css_class}{" pick" if pick else ""}"{target}>{inside}{content}</g>'


def badge(x: float, y: float, letter: str, index: int, radius: float = 9) -> str:
    """A request's letter in its hue; (x, y) is the centre."""
    return (
        f'<g class="{hue_class(index)}"><circle cx="{_n(x)}" cy="{_n(y)}" r="{_n(radius)}" '
        f'class="badge"/><text x="{_n(x)}" y="{_n(y + radius * 0.42)}" class="onbadge" '
        f'style="font-size:{_n(radius * 1.25)}px">{esc(letter)}</text></g>'
    )


def lock(x: float, y: float, size: float = 9) -> str:
    """A small padlock, its top left corner at (x, y): shared and read by someone."""
    w, h = size, size * 0.62
    arc = (
        f"M{_n(x + w * 0.22)} {_n(y + size * 0.45)} v{_n(-size * 0.18)} "
        f"a{_n(w * 0.28)} {_n(w * 0.28)} 0 0 1 {_n(w * 0.56)} 0 v{_n(size * 0.18)}"
    )
    return path(arc, "lock") + rect(x, y + size * 0.42, w, h, "lockbody", radius=1)


def state_box(
    x: float, y: float, size: float, *, shared: bool, conv_stale: bool = False, stale: bool = False
) -> str:
    """Recurrent state (rounded square, S) with the conv state (thin strip, C) under it.

    (x, y) is the top left corner; the whole is ``size`` wide and ``state_height(size)`` high.
    ``stale`` hatches both, ``conv_stale`` the strip only.
    """
    strip = size * 0.34
    gap = 2.0
    parts = []
    if shared:
        parts.append(
            rect(x - 2.6, y - 2.6, size + 5.2, state_height(size) + 5.2, "shared", radius=6)
        )
    parts.append(rect(x, y, size, size, "s", radius=size * 0.2))
    parts.append(rect(x, y + size + gap, size, strip, "c", radius=1.5))
    if stale:
        parts.append(hatch(x, y, size, size))
    if stale or conv_stale:
        parts.append(hatch(x, y + size + gap, size, strip))
    middle = x + size / 2
    parts.append(
        f'<text x="{_n(middle)}" y="{_n(y + size * 0.7)}" class="ons mid" '
        f'style="font-size:{_n(size * 0.58)}px">S</text>'
        f'<text x="{_n(middle)}" y="{_n(y + size + gap + strip * 0.84)}" class="onc mid" '
        f'style="font-size:{_n(strip * 0.95)}px">C</text>'
    )
    return "".join(parts)


def empty_box(x: float, y: float, size: float, css_class: str) -> str:
    """The outline that a state box would fill: a tombstone ("tomb") or a free slot ("free")."""
    return rect(x, y, size, state_height(size), css_class, radius=size * 0.2)


def state_height(size: float) -> float:
    """Height of a state box of that width."""
    return size * 1.34 + 2.0


def hatch(x: float, y: float, width: float, height: float) -> str:
    """Diagonal purple lines over a rectangle that is dimmed for them: stale or poisoned."""
    lines = []
    step = 5.5
    offset = step / 2
    while offset < width + height:
        x0, y0 = (x + offset, y) if offset <= width else (x + width, y + offset - width)
        x1, y1 = (x, y + offset) if offset <= height else (x + offset - height, y + height)
        lines.append(f"M{_n(x0)} {_n(y0)} L{_n(x1)} {_n(y1)}")
        offset += step
    dimmed = rect(x, y, width, height, "dimmed", radius=2)
    return dimmed + path(" ".join(lines), "hatch")


@dataclass(frozen=True, slots=True)
class TokenAxis:
    """Positions in tokens to positions in a picture; one scale for everything drawn on it."""

    span: int
    left: float = 44.0
    right: float = 840.0

    @classmethod
    def for_tokens(cls, longest: int, cell: int = 32) -> TokenAxis:
        """An axis that holds ``longest`` tokens, rounded up to whole cells."""
        return cls(max(1, -(-longest // cell)) * cell)

    def x(self, token: float) -> float:
        """Where boundary ``token`` stands."""
        return self.left + (self.right - self.left) * token / self.span

    def width(self, tokens: float) -> float:
        """How wide ``tokens`` tokens are."""
        return (self.right - self.left) * tokens / self.span


def _n(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _lines(title: str) -> str:
    return "\n".join(esc(line) for line in title.split("\n"))
