"""Two eviction orders as rows of chips, oldest first: what goes next stands at the left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kdalab.viz import svg

_CHIP, _ROW, _LEFT = 46.0, 40.0, 168.0


def orders_svg(
    rows: Sequence[tuple[str, str, Sequence[int]]],
    locked: Mapping[int, tuple[int, int]],
    *,
    titles: Mapping[str, str],
    label: str,
    highlight: Sequence[int] = (),
) -> str:
    """Rows of (kind, name, node ids); ``kind`` is "kv" or "s".

    ``locked`` maps a node to its (KV, state) lock counts: such nodes stand apart, with a lock.
    ``titles`` says "next", "locked" and "none" in the reader's language.
    """
    parts = []
    for number, (kind, name, nodes) in enumerate(rows):
        y = 6 + number * _ROW
        parts.append(svg.text(0, y + 19, name, "strong"))
        x = _LEFT
        if not nodes:
            parts.append(svg.text(x, y + 19, titles["none"], "small muted"))
            x += 80
        for place, node in enumerate(nodes):
            parts.append(svg.rect(x, y + 4, _CHIP - 8, 22, f"{kind} own", radius=4))
            ink = "onkv" if kind == "kv" else "ons"
            parts.append(svg.text(x + (_CHIP - 8) / 2, y + 19, f"#{node}", f"mid {ink}"))
            if place == 0:
                parts.append(
                    svg.text(x + (_CHIP - 8) / 2, y + 36, titles["next"], "small mid muted")
                )
            if node in highlight:
                parts.append(svg.rect(x - 3, y + 1, _CHIP - 2, 28, "now", radius=6))
            x += _CHIP
        held = [n for n, (kv, state) in locked.items() if (kv if kind == "kv" else state)]
        if held:
            x += 16
            parts.append(svg.text(x, y + 19, titles["locked"], "small muted"))
            x += 52
        for node in held:
            parts.append(svg.rect(x, y + 4, _CHIP - 8, 22, "shared", radius=4))
            parts.append(svg.text(x + 22, y + 19, f"#{node}", "mid"))
            parts.append(svg.lock(x + 2, y + 10, 8))
            x += _CHIP
    return svg.document("".join(parts), 14 + len(rows) * _ROW, label, css_class="kd-orders")
