"""A unified buffer to scale, a fixed split of the same bytes under it, and both frontiers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from kdalab.memory.slots import CACHE
from kdalab.spec import StateKind
from kdalab.units import format_bytes
from kdalab.viz import svg
from kdalab.viz.css import hue_class
from kdalab.viz.palette import KIND_STYLES, theme, with_alpha
from kdalab.viz.plotly_theme import style_figure

if TYPE_CHECKING:
    import plotly.graph_objects as go

_HIGH, _TOP, _SPLIT_TOP = 40.0, 66.0, 186.0
_LABEL = 66.0  # the longest number of bytes at a frontier
_READABLE = 14.0
"""A narrower box has its number only in its tooltip."""


class Place(Protocol):
    """A slot that lies at ``byte``."""

    @property
    def byte(self) -> int: ...
    @property
    def slot(self) -> int: ...
    @property
    def owner(self) -> str: ...


def unified_svg(
    pages: Sequence[Place],
    states: Sequence[Place],
    low: int,
    high: int,
    *,
    total: int,
    padding: int,
    page_bytes: int,
    state_bytes: int,
    names: Sequence[str],
    words: Mapping[str, str],
    label: str,
    split_pages: Sequence[str | None],
    split_states: Sequence[str | None],
    moves: Sequence[tuple[bool, int, int]] = (),
    gated: bool = False,
    note: str = "",
) -> str:
    """Both memories over one scale of bytes.

    Args:
        pages, states: what lies in the unified buffer; the number in a box is its virtual id.
        low, high: the two frontiers, in bytes from the start.
        total, padding: bytes of either memory, and of the unified one that belong to nobody.
        page_bytes, state_bytes: of one slot.
        names: requests in order of arrival.
        words: "unified", "split", "padding", "free", "gate", "cut", "cached" in the reader's
            language.
        label: the text alternative.
        split_pages, split_states: owners in the fixed split.
        moves: (is a page, from byte, to byte) of slots moved in this step.
        gated: somebody holds every slot where it is.
        note: what the fixed split could not do.
    """
    scale = svg.WIDTH / total
    parts = [svg.text(0, 12, words["unified"], "strong")]
    if gated:
        parts.append(svg.lock(svg.WIDTH - 14, 1, 12))
        parts.append(svg.text(svg.WIDTH - 20, 12, words["gate"], "small strong end"))
    wide = padding * scale
    parts.append(svg.rect(0, _TOP, wide, _HIGH, "frame"))
    parts.append(svg.text(wide / 2, _TOP + 24, words["padding"], "small mid muted"))
    lows, highs = (padding, low), (high, total)
    for kind, (a, b), held, size in (
        ("kv", lows, pages, page_bytes), ("s", highs, states, state_bytes),
    ):  # fmt: skip
        parts.append(svg.rect(a * scale, _TOP, (b - a) * scale, _HIGH, "free"))
        parts += [
            _box(p.byte * scale, _TOP, size * scale, kind, str(p.slot), p.owner, names, words)
            for p in held
        ]
    if (high - low) * scale > 60:
        free = f"{words['free']} {format_bytes(high - low)}"
        parts.append(svg.text((low + high) / 2 * scale, _TOP + 24, free, "small mid"))
    # What stands at a frontier: the lower one's bytes end there, the upper one's begin there, or as
    # near to it as the picture's edge lets them.
    begin = min(high * scale + 3, svg.WIDTH - _LABEL)
    for at, place, anchor in (
        (low, min(low * scale - 3, begin - 6), " end"), (high, begin, "")
    ):  # fmt: skip
        x = at * scale
        parts.append(svg.path(f"M{x:.1f} {_TOP - 6} V{_TOP + _HIGH + 12}", "pole"))
        text = format_bytes(at)
        parts.append(svg.text(place, _TOP + _HIGH + 22, text, f"small strong{anchor}"))
    for page, a, b in moves:
        half = (page_bytes if page else state_bytes) * scale / 2
        parts.append(_arc(a * scale + half, b * scale + half))
    parts.append(_split(split_pages, split_states, scale, page_bytes, state_bytes, names, words))
    if note:
        parts.append(svg.text(0, _SPLIT_TOP + _HIGH + 40, note, "strong hatchink"))
    return svg.document("".join(parts), _SPLIT_TOP + _HIGH + 50, label, css_class="kd-unified")


def _split(
    pages: Sequence[str | None],
    states: Sequence[str | None],
    scale: float,
    page_bytes: int,
    state_bytes: int,
    names: Sequence[str],
    words: Mapping[str, str],
) -> str:
    y = _SPLIT_TOP
    parts = [svg.text(0, y - 14, words["split"], "strong")]
    left = svg.WIDTH - len(states) * state_bytes * scale
    for number, owner in enumerate(pages):
        x, size = number * page_bytes * scale, page_bytes * scale
        parts.append(_box(x, y, size, "kv", str(number), owner, names, words))
    for number, owner in enumerate(states):
        x, size = left + number * state_bytes * scale, state_bytes * scale
        parts.append(_box(x, y, size, "s", str(number), owner, names, words))
    cut = (len(pages) * page_bytes * scale + left) / 2
    parts.append(svg.path(f"M{cut:.1f} {y - 8} V{y + _HIGH + 8}", "pole"))
    parts.append(svg.text(cut, y + _HIGH + 20, words["cut"], "small strong mid"))
    return "".join(parts)


def _box(
    x: float,
    y: float,
    wide: float,
    kind: str,
    name: str,
    owner: str | None,
    names: Sequence[str],
    words: Mapping[str, str],
) -> str:
    if owner is None:
        return svg.rect(x + 0.5, y, wide - 1, _HIGH, "free")
    shape = svg.rect(x + 0.5, y, wide - 1, _HIGH, f"{kind} own", radius=4 if kind == "s" else 0)
    ink = "on" + kind
    middle = x + wide / 2
    if owner == CACHE:
        inner = "kv-in" if kind == "kv" else "s-in"
        shape += svg.rect(x + 2.5, y + 2.5, wide - 5, _HIGH - 5, inner)
        shape += svg.text(middle, y + 24, name, f"tiny mid {ink}") if wide > _READABLE else ""
        who = words["cached"]
    else:
        bar = svg.rect(x + 0.5, y + _HIGH - 9, wide - 1, 9, "owner")
        shape += svg.group(bar, hue_class(names.index(owner) if owner in names else len(names)))
        shape += svg.text(middle, y + 18, name, f"tiny mid {ink}") if wide > _READABLE else ""
        shape += svg.group(
            svg.text(middle, y + _HIGH - 1.5, owner, "tiny onbadge"),
            hue_class(names.index(owner) if owner in names else len(names)),
        )
        who = owner
    tag = "KV" if kind == "kv" else "S"
    return svg.group(shape, title=f"{tag} {name}: {who}")


def _arc(a: float, b: float) -> str:
    """A move over the top of the bar."""
    y = _TOP - 4
    lift = 24 + min(24.0, abs(a - b) / 12)
    curve = f"M{a:.1f} {y} C{a:.1f} {y - lift:.1f} {b:.1f} {y - lift:.1f} {b:.1f} {y - 5}"
    head = f"M{b - 4:.1f} {y - 7} h8 l-4 7 z"
    return svg.path(curve, "move") + svg.path(head, "movehead")


def frontiers_svg(
    lows: Sequence[int],
    highs: Sequence[int],
    step: int,
    *,
    total: int,
    words: Mapping[str, str],
    label: str,
    ahead: bool = True,
) -> str:
    """Both frontiers over the steps, byte 0 at the bottom; the step shown is framed.

    ``words``: "history", "kv", "state" in the reader's language. Without ``ahead`` the steps after
    the one shown stay empty.
    """
    top, high = 24.0, 130.0
    wide = svg.WIDTH / len(lows)
    if not ahead:
        lows, highs = lows[: step + 1], highs[: step + 1]

    def y(at: int) -> float:
        return top + high * (1 - at / total)

    def area(values: Sequence[int], base: float) -> str:
        line = " ".join(f"H{i * wide:.1f} V{y(v):.1f} h{wide:.1f}" for i, v in enumerate(values))
        return f"M0 {base:.1f} {line} V{base:.1f} z"

    parts = [svg.text(0, 12, words["history"], "strong")]
    parts.append(svg.rect(0, top, svg.WIDTH, high, "frame"))
    parts.append(svg.path(area(lows, top + high), "kv faint"))
    parts.append(svg.path(area(highs, top), "s faint"))
    parts.append(svg.text(6, top + high - 6, f"KV {words['kv']}", "small halo strong"))
    parts.append(svg.text(6, top + 14, f"S {words['state']}", "small halo strong"))
    parts.append(svg.rect(step * wide, top - 3, wide, high + 6, "now", radius=3))
    return svg.document("".join(parts), top + high + 8, label, css_class="kd-frontiers")


def frontiers_figure(
    lows: Sequence[int],
    highs: Sequence[int],
    holes: Sequence[int],
    *,
    total: int,
    cut: int,
    words: Mapping[str, str],
    theme_name: str = "light",
) -> go.Figure:
    """Both frontiers over the steps, in KiB: latent KV from below, states from above.

    ``holes`` are free bytes inside the spans; ``cut`` is where the fixed split would stand.
    ``words``: "title", "subtitle", "x", "y", "kv", "state", "holes", "cut".
    """
    import plotly.graph_objects as go

    steps, kib = list(range(len(lows))), 1024
    kv, s = KIND_STYLES[StateKind.MLA_KV], KIND_STYLES[StateKind.KDA_RECURRENT]
    figure = go.Figure()
    figure.add_scatter(
        x=steps, y=[v / kib for v in lows], name=words["kv"], fill="tozeroy", line_shape="hv",
        line={"color": kv.colour}, fillcolor=with_alpha(kv.colour, 0.35),
    )  # fmt: skip
    figure.add_scatter(
        x=steps, y=[total / kib] * len(steps), showlegend=False, hoverinfo="skip",
        line={"color": s.colour, "width": 1},
    )  # fmt: skip
    figure.add_scatter(
        x=steps, y=[v / kib for v in highs], name=words["state"], fill="tonexty", line_shape="hv",
        line={"color": s.colour, "dash": "dash"}, fillcolor=with_alpha(s.colour, 0.35),
    )  # fmt: skip
    figure.add_scatter(
        x=steps, y=[v / kib for v in holes], name=words["holes"], line_shape="hv",
        line={"color": theme(theme_name).muted, "dash": "dot"},
    )  # fmt: skip
    figure.add_hline(y=cut / kib, line_dash="longdash", annotation_text=words["cut"])
    figure.update_xaxes(title_text=words["x"])
    figure.update_yaxes(title_text=words["y"], range=[0, total / kib])
    return style_figure(
        figure, title=words["title"], subtitle=words["subtitle"], height=420,
        theme_name=theme_name,
    )  # fmt: skip
