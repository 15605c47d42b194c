"""How far each kind of state reaches in one prompt, and the boundary that all of them share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kdalab.viz import svg
from kdalab.viz.palette import SERIES_COLOURS, SERIES_DASHES, SERIES_MARKERS, theme
from kdalab.viz.plotly_theme import style_figure
from kdalab.viz.svg import TokenAxis

if TYPE_CHECKING:
    import plotly.graph_objects as go

ROWS = ("text", "kv", "recurrent", "conv", "embedding")
_TOP, _ROW, _BOX = 40.0, 50.0, 20.0


@dataclass(frozen=True, slots=True)
class Reach:
    """One prompt against a cache, in tokens: see ``lessons.JointRun``."""

    n_tokens: int
    page_tokens: int
    token_match: int
    kv_reach: int
    checkpoints: Sequence[int]
    beyond: Sequence[int]
    restore: int


@dataclass(frozen=True, slots=True)
class Mixed:
    """What is combined wrongly: the first token computed and each kind's boundary.

    ``foreign`` says that the states are those of another prompt.
    """

    resume: int
    recurrent: int
    conv: int
    foreign: bool


def joint_svg(
    reach: Reach,
    words: Mapping[str, str],
    *,
    label: str,
    shown: int,
    now: str = "",
    flag: bool = False,
    mixed: Mixed | None = None,
) -> str:
    """Rows text, KV, S, C and E over one axis of tokens, and the restore point as a flag.

    Args:
        reach: lengths.
        words: by row, "flag", "match", "tokens", "not-needed", "beyond", "resume".
        label: the text alternative.
        shown: how many rows are known by now; the others wait.
        now: the row that this step is about.
        flag: the restore point is known.
        mixed: the states that a broken run combines; the restore point then is only a ghost.
    """
    axis = TokenAxis.for_tokens(reach.n_tokens)
    bottom = _TOP + _ROW * len(ROWS)
    parts = [_scale(axis, words["tokens"], bottom)]
    if flag:
        parts.append(_flag(axis, reach.restore, words["flag"], bottom, mixed is not None))
    if mixed is not None:
        x = axis.x(mixed.resume)
        parts.append(svg.path(f"M{x:.1f} {_TOP - 6:.1f} V{bottom:.1f}", "parting"))
        if mixed.resume != reach.restore:
            parts.append(svg.text(x + 4, bottom - 3, words["resume"], "small strong halo"))
    for i, row in enumerate(ROWS):
        y = _TOP + _ROW * i
        css = "" if i < shown else "later"
        content = svg.text(6, y + 11, words[row], f"small halo{' strong' if row == now else ''}")
        if i < shown:
            content += _row(row, reach, words, axis, y + 17, flag, mixed)
        parts.append(svg.group(content, f"kd-r1 {css}"))
        if row == now:
            parts.append(svg.rect(1, y - 4, svg.WIDTH - 2, _ROW - 3, "now", radius=5))
    return svg.document("".join(parts), bottom + 6, label, css_class="kd-joint")


def _row(
    row: str,
    reach: Reach,
    words: Mapping[str, str],
    axis: TokenAxis,
    y: float,
    flag: bool,
    mixed: Mixed | None,
) -> str:
    if row == "text":
        return _text(reach, words, axis, y, flag, mixed)
    if row == "kv":
        end = mixed.resume if mixed is not None else reach.kv_reach
        return _pages(end, reach.page_tokens, axis, y)
    if row == "embedding":
        line = svg.rect(axis.x(0), y + 3, axis.width(reach.n_tokens), 12, "free", radius=6)
        return line + svg.text(
            axis.x(reach.n_tokens / 2), y + 13, words["not-needed"], "small mid halo"
        )
    return _states(row, reach, words, axis, y, mixed)


def _text(
    reach: Reach,
    words: Mapping[str, str],
    axis: TokenAxis,
    y: float,
    flag: bool,
    mixed: Mixed | None,
) -> str:
    begin = mixed.resume if mixed is not None else (reach.restore if flag else reach.n_tokens)
    parts = []
    for at in range(0, reach.n_tokens, reach.page_tokens):
        end = min(at + reach.page_tokens, reach.n_tokens)
        known = end <= reach.token_match
        css = "tok restored" if end <= begin and known else "tok planned" if known else "tok done"
        if not flag:
            css = "tok restored" if known else "tok planned"
        x, width = axis.x(at) + 0.75, axis.width(end - at) - 1.5
        parts.append(svg.rect(x, y, width, 17, css))
        if flag and known and end > begin:
            middle = x + width / 2
            d = f"M{middle - 5:.1f} {y + 4:.1f} l4 4.5 l-4 4.5 m5 -9 l4 4.5 l-4 4.5"
            parts.append(svg.path(d, "chevron"))
    if reach.token_match:
        x0, x1 = axis.x(0), axis.x(reach.token_match)
        parts.append(svg.path(f"M{x0:.1f} {y - 2:.1f} v-4 H{x1:.1f} v4", "bracket"))
        parts.append(svg.text(x1 + 5, y - 5, words["match"], "small strong halo"))
    return "".join(parts)


def _pages(end: int, page: int, axis: TokenAxis, y: float) -> str:
    parts = [svg.rect(axis.x(0), y + 1, axis.width(end), 16, "kv", radius=2)]
    for at in range(page, end, page):
        parts.append(svg.path(f"M{axis.x(at):.1f} {y + 3:.1f} v12", "kv-in"))
    if end:
        parts.append(svg.text(axis.x(0) + 14, y + 13, "KV", "tiny onkv mid"))
        parts.append(svg.text(axis.x(end) + 5, y + 14, f"{end:,}", "small strong halo"))
    return "".join(parts)


def _states(
    row: str,
    reach: Reach,
    words: Mapping[str, str],
    axis: TokenAxis,
    y: float,
    mixed: Mixed | None,
) -> str:
    css, tag = ("s", "S") if row == "recurrent" else ("c", "C")
    deepest = max(reach.checkpoints, default=0)
    parts = [svg.path(f"M{axis.x(0):.1f} {y + 9:.1f} H{axis.x(reach.n_tokens):.1f}", "rule")]
    if deepest and mixed is None:
        parts.append(svg.rect(axis.x(0), y + 7, axis.width(deepest), 4, css, radius=2))
    used = None if mixed is None else mixed.recurrent if row == "recurrent" else mixed.conv
    for boundary in reach.checkpoints:
        if boundary == used:
            continue
        box = _box(axis.x(boundary), y, css, tag)
        parts.append(box if mixed is None else svg.group(box, "later"))
        if mixed is None:
            parts.append(
                svg.text(axis.x(boundary) + 13, y + 5, f"{boundary:,}", "small strong halo")
            )
    if mixed is None:
        for boundary in sorted(set(reach.beyond)):
            x = min(axis.x(boundary), axis.right - 12)
            parts.append(_box(x, y, "tomb", ""))
            parts.append(svg.text(x - 14, y + 5, words["beyond"], "small muted end halo"))
        if not reach.checkpoints:
            parts.append(svg.text(axis.x(0) + 5, y + 13, "0", "small strong halo"))
        return "".join(parts)
    boundary = mixed.recurrent if row == "recurrent" else mixed.conv
    x, to = axis.x(boundary), axis.x(mixed.resume)
    wrong = mixed.foreign or boundary != mixed.resume
    parts.append(_box(x, y, css, "" if wrong else tag))
    if wrong:
        half = _BOX / 2
        high = _BOX if row == "recurrent" else 12
        parts.append(svg.hatch(x - half, y + (0 if row == "recurrent" else 3), _BOX, high))
        parts.append(svg.text(x, y + 14, tag, "small mid strong"))
    note = words["other"] if mixed.foreign else f"{boundary:,}"
    side = (x - 14, "small strong end halo") if boundary else (x + 13, "small strong halo")
    parts.append(svg.text(side[0], y + 5, note, side[1]))
    to -= _BOX / 2 + 2 if mixed.resume in reach.checkpoints else 0
    if to - x > 16:
        parts.append(svg.path(f"M{x + 13:.1f} {y + 10:.1f} H{to - 5:.1f}", "move"))
        parts.append(svg.path(f"M{to:.1f} {y + 10:.1f} l-8 -4 v8 z", "movehead"))
    return "".join(parts)


def _box(x: float, y: float, css: str, tag: str) -> str:
    """A state at boundary ``x``: a rounded square, or a thin strip for the conv state."""
    half = _BOX / 2
    if css == "c":
        shape = svg.rect(x - half, y + 3, _BOX, 12, "c", radius=1.5)
    else:
        shape = svg.rect(x - half, y, _BOX, _BOX, css, radius=5)
    return shape + (svg.text(x, y + 13, tag, f"tiny mid on{css}") if tag else "")


def _flag(axis: TokenAxis, restore: int, word: str, bottom: float, ghost: bool) -> str:
    x = axis.x(restore)
    pole = svg.path(f"M{x:.1f} 16 V{bottom:.1f}", "pole")
    cloth = svg.path(f"M{x:.1f} 16 l14 5.5 l-14 5.5 z", "pennant")
    name = svg.text(x + 18, 27, word, "small strong halo")
    return svg.group(pole + cloth + name, "later" if ghost else "")


def _scale(axis: TokenAxis, word: str, bottom: float) -> str:
    parts = [svg.text(0, 10, word, "small muted")]
    for at in range(0, axis.span + 1, 64):
        x = axis.x(at)
        parts.append(svg.text(x, 10, f"{at:,}", "small mid muted"))
        parts.append(svg.path(f"M{x:.1f} 13 V{bottom:.1f}", "rule"))
    return "".join(parts)


@dataclass(frozen=True, slots=True)
class DamageLine:
    """One broken run: max |difference| of the logits at token ``first``, ``first`` + 1, ..."""

    name: str
    first: int
    differences: Sequence[float]
    wrong_at: int | None
    series: int


def damage_figure(
    lines: Sequence[DamageLine],
    marks: Sequence[tuple[int, str]],
    margin: float,
    words: Mapping[str, str],
    *,
    height: int = 420,
    theme_name: str = "light",
) -> go.Figure:
    """Differences by token, logarithmic; a ring where the first wrong token is chosen.

    Args:
        lines: the broken runs.
        marks: (token, what is there) of vertical lines.
        margin: median gap of the two largest logits, a horizontal line.
        words: "title", "subtitle", "x", "y", "margin", "wrong", "none".
    """
    import plotly.graph_objects as go

    figure, look = go.Figure(), theme(theme_name)
    for line in lines:
        colour = SERIES_COLOURS[line.series % len(SERIES_COLOURS)]
        x = list(range(line.first, line.first + len(line.differences)))
        y = [d if d > 0 else None for d in line.differences]
        figure.add_scatter(
            x=x, y=y, name=line.name, mode="lines",
            line={"color": colour, "dash": SERIES_DASHES[line.series], "width": 2},
            hovertemplate="%{x:,}: %{y:.3g}<extra>" + line.name + "</extra>",
        )  # fmt: skip
        if line.wrong_at is not None:
            figure.add_scatter(
                x=[line.wrong_at], y=[line.differences[line.wrong_at - line.first]],
                mode="markers", showlegend=False, name=words["wrong"],
                marker={"symbol": SERIES_MARKERS[line.series], "size": 12, "color": colour,
                        "line": {"color": look.text, "width": 1.5}},
                hovertemplate="%{x:,}: " + words["wrong"] + "<extra>" + line.name + "</extra>",
            )  # fmt: skip
    first = min([m for m, _ in marks], default=0)
    last = max([line.first + len(line.differences) for line in lines] + [m for m, _ in marks])
    figure.add_scatter(
        x=[first, last], y=[margin, margin], mode="lines", name=words["margin"],
        line={"color": look.muted, "dash": "dot", "width": 1.5}, hoverinfo="skip",
    )  # fmt: skip
    for token, word in marks:
        figure.add_vline(x=token, line={"color": look.line, "width": 1, "dash": "dash"})
        figure.add_annotation(
            x=token, y=1.0, yref="paper", text=word, showarrow=False, yanchor="bottom",
            xanchor="left" if token < (first + 2 * last) / 3 else "right", font={"size": 12},
        )  # fmt: skip
    if not lines:
        figure.add_annotation(
            x=0.5, y=0.5, xref="paper", yref="paper", text=words["none"], showarrow=False
        )
    style_figure(
        figure, title=words["title"], subtitle=words["subtitle"], height=height,
        theme_name=theme_name,
    )  # fmt: skip
    figure.update_xaxes(title=words["x"], tickformat=",d", range=[first - 2, last + 2])
    ticks = [n * 10.0**p for p in range(-8, 3) for n in (1, 2, 5)]
    figure.update_yaxes(
        title=words["y"], type="log", tickvals=ticks, ticktext=[f"{v:g}" for v in ticks]
    )
    figure.update_layout(legend={"orientation": "h", "y": -0.24}, margin={"t": 96})
    return figure
