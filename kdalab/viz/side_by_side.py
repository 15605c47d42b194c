"""Requests one under the other, each as both ways of caching found it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kdalab.viz import svg
from kdalab.viz.css import hue_class

_LEFT, _RIGHT, _BAR, _LINE, _ROW, _TOP = 150.0, 720.0, 14.0, 27.0, 70.0, 34.0


@dataclass(frozen=True, slots=True)
class SideRow:
    """One prompt of ``n_tokens``; ``found`` are (name of the way, match, restore), in tokens.
    ``different`` marks a request that the two restore at different boundaries."""

    name: str
    n_tokens: int
    found: Sequence[tuple[str, int, int]]
    different: bool = False


def side_by_side_svg(
    rows: Sequence[SideRow], upto: int, *, label: str, words: Mapping[str, str]
) -> str:
    """Two bars a prompt on one scale of tokens; those after ``upto`` have not arrived yet.

    Args:
        upto: index of the last request that has run; that one is framed.
        words: "scale", "restored", "replay" and "new" in the reader's language.
    """
    axis = svg.TokenAxis(max(r.n_tokens for r in rows), _LEFT, _RIGHT)
    parts = [svg.text(_LEFT, 14, words["scale"], "small muted")]
    for i, row in enumerate(rows):
        y = _TOP + i * _ROW
        shown = i <= upto
        lines = [svg.badge(18, y + 20, row.name[-2:].strip(), i)]
        for k, (way, match, restore) in enumerate(row.found):
            lines.append(
                _line(way, match, restore, row.n_tokens, y + k * _LINE, axis, shown, words)
            )
        if shown and row.different:
            lines.append(svg.text(38, y + 24, "≠", "strong"))
        if i == upto:
            lines.append(svg.rect(3, y - 11, svg.WIDTH - 6, _ROW - 6, "now", radius=5))
        parts.append(svg.group("".join(lines), hue_class(i)))
    bottom = _TOP + len(rows) * _ROW
    x, key = _LEFT, []
    for css, name in (("tok restored", "restored"), ("tok done", "replay"), ("tok planned", "new")):
        key.append(svg.rect(x, bottom, 11, 11, css) + svg.text(x + 16, bottom + 10, words[name]))
        x += 42 + sum(12.5 if ord(c) > 0x2E7F else 6.6 for c in words[name])
    parts.append(svg.group("".join(key), hue_class(max(0, min(upto, len(rows) - 1)))))
    return svg.document("".join(parts), bottom + 20, label, css_class="kd-side")


def _line(
    way: str, match: int, restore: int, n: int, y: float, axis: svg.TokenAxis, shown: bool,
    words: Mapping[str, str],
) -> str:  # fmt: skip
    out = [svg.text(_LEFT - 10, y + 12, way, "end small")]
    out.append(svg.rect(axis.x(0), y, axis.width(n), _BAR, "tok waiting"))
    if not shown:
        return "".join(out)
    known = max(match, restore)
    for a, b, css, name in (
        (0, restore, "tok restored", "restored"),
        (restore, known, "tok done", "replay"),
        (known, n, "tok planned", "new"),
    ):
        if b > a:
            title = f"{words[name]}: {a:,} - {b:,}"
            out.append(svg.rect(axis.x(a), y, axis.width(b - a), _BAR, css, title=title))
    if known > restore:
        x, width = axis.x(restore), axis.width(known - restore)
        count = min(12, int(width // 12))
        step = width / (count + 1)
        marks = (
            f"M{x + step * (i + 1) - 2:.1f} {y + 3.5:.1f} l4 3.5 l-4 3.5" for i in range(count)
        )
        out.append(svg.path(" ".join(marks), "chevron done"))
    if match:
        x1 = axis.x(match)
        out.append(svg.path(f"M{axis.x(0):.1f} {y - 2:.1f} v-4 H{x1:.1f} v4", "bracket"))
    x = axis.x(restore)
    if restore:
        out.append(svg.path(f"M{x:.1f} {y + _BAR:.1f} V{y - 7:.1f}", "pole"))
        out.append(svg.path(f"M{x:.1f} {y - 7:.1f} l7 3 l-7 3 z", "pennant"))
    out.append(svg.text(axis.x(n) + 10, y + 12, f"{restore:,} / {n:,}", "small strong"))
    return "".join(out)
