"""The radix tree on the token axis: an edge is as long as its tokens, a state stands at its end."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from kdalab.engine.view import NodeView, View
from kdalab.units import format_bytes
from kdalab.viz import svg
from kdalab.viz.css import hue_class
from kdalab.viz.svg import TokenAxis

_SIZE = 18.0
_HEAD = 12.0
_ROW = 79.0
_LABEL = 14.0
_BOX_Y = 22.0
_PAGE_Y = 56.0
_PAGE_H = 11.0


def tree_svg(
    view: View,
    texts: Mapping[str, Sequence[str]],
    axis: TokenAxis,
    *,
    page_tokens: int,
    page_bytes: int,
    state_bytes: int,
    spacing: int | None = None,
    highlight: Collection[str] = (),
    owners: Mapping[int, str] | None = None,
) -> str:
    """The tree as it stands in ``view``, to the scale of ``axis`` in tokens.

    Pages are blue squares along the edge; the node's state stands above the boundary it belongs
    to, and a tombstone has an empty dashed outline there. A line in a request's hue under the
    pages shows what it reads; what someone reads is locked.

    Args:
        view: what has happened so far.
        texts: printable text of each token of each prompt.
        axis: the scale, shared with ``prompt_svg``.
        page_tokens: tokens of one page.
        page_bytes: bytes of one page, all MLA layers.
        state_bytes: bytes of one checkpoint, all KDA layers.
        spacing: tokens between checkpoints; drawn as dotted lines when given.
        highlight: what the step marks ("node:3").
        owners: node -> a request whose prompt runs through it, for the text in the tooltip.
    """
    rows = _layout(view)
    height = _HEAD + _ROW * max(1, len(set(rows.values()))) + 6
    parts = []
    if spacing:
        for at in range(spacing, axis.span + 1, spacing):
            parts.append(svg.path(f"M{axis.x(at):.1f} {_HEAD + 6:.0f} V{height:.0f}", "gridpoint"))
    parts.append(svg.text(0, 12, "Radix tree", "strong"))
    parts.append(svg.text(78, 12, "an edge is as long as its tokens", "small muted"))
    root_y = _HEAD + _PAGE_Y + _PAGE_H / 2
    parts.append(f'<circle cx="{axis.x(0):.1f}" cy="{root_y}" r="4" class="pennant"/>')
    parts.append(svg.text(axis.x(0) - 8, root_y + 4, "root", "small muted end"))
    if not rows:
        parts.append(svg.text(axis.x(0) + 14, root_y + 4, "the tree is empty", "small muted"))
    names = list(texts)
    for node in sorted(view.nodes.values(), key=lambda n: n.start):
        tip = _tip(node, view, texts, (owners or {}).get(node.id), page_bytes, state_bytes)
        shape = _node(node, view, rows, axis, page_tokens, names, f"node:{node.id}" in highlight)
        parts.append(_elbow(node, rows, axis))
        parts.append(svg.group(shape, "kd-node", title=tip, pick=f"node:{node.id}"))
    tombs = sum(n.is_tombstone for n in view.nodes.values())
    label = (
        f"Radix tree with {len(view.nodes)} nodes, {len(view.nodes) - tombs} of them with a "
        f"checkpoint and {tombs} without."
    )
    return svg.document("".join(parts), height, label, css_class="kd-tree", targets=True)


def node_text(node: NodeView, texts: Sequence[str], limit: int = 60) -> str:
    """The text of a node's edge, cut in the middle when it is longer than ``limit`` characters."""
    whole = "".join(texts[node.start : node.end])
    if len(whole) <= limit:
        return whole
    half = limit // 2 - 1
    return f"{whole[:half]} … {whole[-half:]}"


def _layout(view: View) -> dict[int, int]:
    """Row of each node: the first child goes on in its parent's row, the others below."""
    children: dict[int, list[int]] = {}
    for node in view.nodes.values():
        children.setdefault(node.parent, []).append(node.id)
    rows: dict[int, int] = {}
    free = 0

    def place(parent: int, row: int) -> None:
        nonlocal free
        for number, child in enumerate(sorted(children.get(parent, []))):
            if number:
                free += 1
                row = free
            rows[child] = row
            place(child, row)

    place(0, 0)
    return rows


def _elbow(node: NodeView, rows: Mapping[int, int], axis: TokenAxis) -> str:
    row, above = rows[node.id], rows.get(node.parent, 0)
    if row == above:
        return ""
    x = axis.x(node.start)
    y0 = _HEAD + above * _ROW + _PAGE_Y + _PAGE_H
    y1 = _HEAD + row * _ROW + _PAGE_Y + _PAGE_H / 2
    return svg.path(f"M{x:.1f} {y0:.1f} V{y1 - 6:.1f} q0 6 6 6", "line")


def _node(
    node: NodeView,
    view: View,
    rows: Mapping[int, int],
    axis: TokenAxis,
    page: int,
    names: Sequence[str],
    marked: bool,
) -> str:
    y = _HEAD + rows[node.id] * _ROW
    readers = view.readers(node.id)
    parts = []
    x0, x1 = axis.x(node.start), axis.x(node.end)
    parts.append(svg.rect(x0, y + _PAGE_Y - 3, x1 - x0, _PAGE_H + 6, "hit", radius=3))
    for number in range(len(node.pages)):
        at = node.start + number * page
        x, width = axis.x(at) + 1, axis.width(page) - 2
        parts.append(svg.rect(x, y + _PAGE_Y, width, _PAGE_H, "kv"))
        parts.append(svg.rect(x + 1.8, y + _PAGE_Y + 1.8, width - 3.6, _PAGE_H - 3.6, "kv-in"))
    if axis.width(page) > 15:
        first = axis.x(node.start) + axis.width(page) / 2
        parts.append(svg.rect(first - 7.5, y + _PAGE_Y, 15, _PAGE_H, "kv"))
        parts.append(svg.text(first, y + _PAGE_Y + 8.7, "KV", "tiny onkv mid"))
    for number, name in enumerate(readers):
        line_y = y + _PAGE_Y + _PAGE_H + 4 + 3.4 * number
        line = svg.path(f"M{x0 + 1:.1f} {line_y:.1f} H{x1 - 1:.1f}", "reader")
        parts.append(svg.group(line, hue_class(_index(names, name))))
    bx, by = x1 - _SIZE / 2, y + _BOX_Y
    parts.append(svg.path(f"M{x1:.1f} {y + _PAGE_Y} v-5", "line"))
    if node.is_tombstone:
        parts.append(svg.empty_box(bx, by, _SIZE, "tomb"))
    else:
        parts.append(svg.state_box(bx, by, _SIZE, shared=True))
    parts.append(svg.text(x1, y + _LABEL - 2, f"#{node.id}", "small mid muted halo"))
    if readers:
        parts.append(svg.lock(bx - 14, by + 4, 9))
    ends = [n for n in readers if view.requests[n].node == node.id]
    inside = x1 + 22 + 17 * (len(ends) - 1) + 8 <= svg.WIDTH
    for number, name in enumerate(ends):
        # At the right edge of the picture the letters stand left of the box and its lock.
        x = x1 + 22 + 17 * number if inside else x1 - 34 - 17 * number
        parts.append(svg.badge(x, by + 10, name, _index(names, name), 7.5))
    if marked:
        box = svg.state_height(_SIZE)
        parts.append(svg.rect(bx - 5, by - 5, _SIZE + 10, box + 10, "now", radius=7))
    return "".join(parts)


def _index(names: Sequence[str], name: str) -> int:
    return names.index(name) if name in names else len(names)


def _tip(
    node: NodeView,
    view: View,
    texts: Mapping[str, Sequence[str]],
    owner: str | None,
    page_bytes: int,
    state_bytes: int,
) -> str:
    lines = [f"node {node.id}: tokens {node.start:,} to {node.end:,}"]
    if owner is not None and owner in texts:
        lines.append(f"“{node_text(node, texts[owner])}”")
    kv = len(node.pages) * page_bytes
    lines.append(f"latent KV: {len(node.pages):,} pages, {format_bytes(kv)}")
    if node.state is None:
        lines.append("no state: a tombstone, known text that cannot be restored")
    else:
        lines.append(
            f"state of boundary {node.end:,} in checkpoint {node.state}, "
            f"{format_bytes(state_bytes)}"
        )
    readers = view.readers(node.id)
    lines.append(f"read by {', '.join(readers)}: locked" if readers else "read by nobody")
    return "\n".join(lines)
