"""Checkpoint density: one prompt at every interval as a picture, the whole trace as a figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kdalab.errors import KdalabError
from kdalab.spec import StateKind
from kdalab.units import format_bytes
from kdalab.viz import svg
from kdalab.viz.css import hue_class
from kdalab.viz.palette import SERIES_COLOURS, kind_style, theme
from kdalab.viz.plotly_theme import style_figure

if TYPE_CHECKING:
    import plotly.graph_objects as go

_LEFT, _RIGHT, _ROW, _TOP, _BAR = 92.0, 650.0, 40.0, 40.0, 15.0

WORDS: dict[str, str] = {
    "title": "What an interval restores, and what its checkpoints take",
    "subtitle": "one point is one replay of the whole trace",
    "interval": "tokens between checkpoints",
    "restored": "prompt tokens restored",
    "bytes": "checkpoints at the end (GiB)",
    "free": "without a budget",
    "tight": "within the budget",
    "here": "now",
}
"""The figure's words; a page hands in its reader's language."""


@dataclass(frozen=True, slots=True)
class DensityRow:
    """One interval for one prompt; boundaries in tokens. ``note`` stands behind the bar."""

    interval: int
    restore: int
    match: int
    note: str
    here: bool = False


def density_svg(
    rows: Sequence[DensityRow],
    n_tokens: int,
    *,
    stage: int,
    label: str,
    words: Mapping[str, str],
) -> str:
    """The same prompt once for every interval, on one scale in tokens.

    Args:
        stage: how much is drawn: 0 the prompt, 1 what matches, 2 what is restored, 3 replay,
            4 new tokens, 5 the checkpoints that the prompt leaves.
        words: "head", "prompt", "note", "restored", "replay", "new" and "left" in the reader's
            language.
    """
    axis = svg.TokenAxis(n_tokens, _LEFT, _RIGHT)
    parts = [
        svg.text(_LEFT - 10, 14, words["head"], "small muted end"),
        svg.text(_LEFT, 14, words["prompt"], "small muted"),
        svg.text(_RIGHT + 12, 14, words["note"], "small muted"),
    ]
    for i, row in enumerate(rows):
        parts.append(_density_row(row, _TOP + i * _ROW, axis, n_tokens, stage, words))
    bottom = _TOP + len(rows) * _ROW
    parts.append(_key(bottom + 4, words))
    return svg.document("".join(parts), bottom + 26, label, css_class="kd-density")


def _density_row(
    row: DensityRow, y: float, axis: svg.TokenAxis, n: int, stage: int, words: Mapping[str, str]
) -> str:
    strong = " strong" if row.here else ""
    out = [svg.text(_LEFT - 10, y + 12, f"{row.interval:,}", f"end{strong}")]
    out.append(svg.rect(axis.x(0), y, axis.width(n), _BAR, "tok waiting"))
    restored, known = row.restore, max(row.restore, row.match)
    if stage >= 2 and restored:
        title = f"{words['restored']}: 0 - {restored:,}"
        out.append(svg.rect(axis.x(0), y, axis.width(restored), _BAR, "tok restored", title=title))
    if stage >= 4 and known < n:
        title = f"{words['new']}: {known:,} - {n:,}"
        out.append(
            svg.rect(axis.x(known), y, axis.width(n - known), _BAR, "tok planned", title=title)
        )
    if stage >= 3 and known > restored:
        x, width = axis.x(restored), axis.width(known - restored)
        title = f"{words['replay']}: {restored:,} - {known:,}"
        out.append(svg.rect(x, y, width, _BAR, "tok done", title=title))
        out.append(_chevrons(x, y, width))
    if stage >= 1 and row.match:
        x0, x1 = axis.x(0), axis.x(row.match)
        out.append(svg.path(f"M{x0:.1f} {y - 3:.1f} v-4 H{x1:.1f} v4", "bracket"))
    if stage >= 2 and restored:
        x = axis.x(restored)
        out.append(svg.path(f"M{x:.1f} {y + _BAR:.1f} V{y - 9:.1f}", "pole"))
        out.append(svg.path(f"M{x:.1f} {y - 9:.1f} l7 3 l-7 3 z", "pennant"))
    if stage >= 5:
        first = restored // row.interval * row.interval + row.interval
        size = min(6.0, max(1.2, axis.width(row.interval) * 0.7))
        for at in range(first, n + 1, row.interval):
            out.append(svg.rect(axis.x(at) - size / 2, y + _BAR + 3, size, 6, "s", radius=1))
    out.append(svg.text(_RIGHT + 12, y + 12, row.note, f"small{strong}"))
    # Seen on a narrow screen only, where the left end may be scrolled away.
    out.append(svg.text(svg.WIDTH - 34, y + 12, f"{row.interval:,}", f"small end again{strong}"))
    if row.here:
        out.append(svg.rect(4, y - 11, svg.WIDTH - 8, _ROW - 4, "now", radius=5))
    return svg.group("".join(out), hue_class(0))


def _chevrons(x: float, y: float, width: float) -> str:
    """Marks of replay, a handful at most."""
    count = min(12, int(width // 12))
    step = width / (count + 1)
    d = " ".join(f"M{x + step * (i + 1) - 2:.1f} {y + 4:.1f} l4 3.5 l-4 3.5" for i in range(count))
    return svg.path(d, "chevron done") if d else ""


def _key(y: float, words: Mapping[str, str]) -> str:
    parts, x = [], _LEFT
    for css, name in (("tok restored", "restored"), ("tok done", "replay"),
                      ("tok planned", "new"), ("s", "left")):  # fmt: skip
        parts.append(svg.rect(x, y, 11, 11, css))
        parts.append(svg.text(x + 16, y + 10, words[name], "small"))
        x += 40 + sum(11.0 if ord(c) > 0x2E7F else 5.9 for c in words[name])
    return svg.group("".join(parts), hue_class(0))


@dataclass(frozen=True, slots=True)
class Curve:
    """One series over the intervals (tokens): shares restored (0 to 1) and bytes of checkpoints."""

    intervals: Sequence[int]
    shares: Sequence[float]
    state_bytes: Sequence[int]


def density_figure(
    free: Curve,
    tight: Curve,
    budget: int,
    here: int | None = None,
    *,
    words: Mapping[str, str] = WORDS,
    theme_name: str = "light",
    height: int = 560,
) -> go.Figure:
    """Restored tokens above, checkpoint bytes below, against the interval (logarithmic).

    Args:
        free: the replays without a budget; ``tight`` those within ``budget`` bytes.
        here: the interval to mark, in tokens.

    Raises:
        KdalabError: no point to draw.
    """
    from plotly.subplots import make_subplots

    if not free.intervals or not tight.intervals:
        raise KdalabError("no replay to draw; give at least one interval")
    figure = make_subplots(rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.08)
    state = kind_style(StateKind.KDA_RECURRENT).colour
    for curve, name, dash, symbol, colour in (
        (free, words["free"], "dot", "circle-open", SERIES_COLOURS[5]),
        (tight, f"{words['tight']} ({format_bytes(budget)})", "solid", "circle", state),
    ):
        for row, values, shown in (
            (1, list(curve.shares), [f"{s:.1%}" for s in curve.shares]),
            (2, [b / 2**30 for b in curve.state_bytes],
             [format_bytes(b) for b in curve.state_bytes]),
        ):  # fmt: skip
            figure.add_scatter(
                x=list(curve.intervals), y=values, name=name, mode="lines+markers",
                line={"color": colour, "dash": dash, "width": 2},
                marker={"symbol": symbol, "size": 8}, showlegend=row == 1, legendgroup=name,
                customdata=shown, row=row, col=1,
                hovertemplate="%{x:,}: %{customdata}<extra>" + name + "</extra>",
            )  # fmt: skip
    if here is not None:
        for row in (1, 2):
            figure.add_vline(x=here, line_dash="dash", line_width=1.5, row=row, col=1,
                             line_color=theme(theme_name).accent)  # fmt: skip
    style_figure(
        figure, title=words["title"], subtitle=words["subtitle"], height=height,
        theme_name=theme_name,
    )  # fmt: skip
    ticks = sorted({*free.intervals, *tight.intervals})
    ticks = [t for t in ticks if t & (t - 1) == 0] or ticks
    figure.update_xaxes(type="log", tickvals=ticks, ticktext=[f"{t:,}" for t in ticks])
    named = f"{words['interval']} ({words['here']}: {here:,})" if here else words["interval"]
    figure.update_xaxes(title=named, row=2, col=1)
    figure.update_yaxes(title=words["restored"], tickformat="~%", rangemode="tozero", row=1, col=1)
    figure.update_yaxes(title=words["bytes"], type="log", dtick=1, row=2, col=1)
    figure.update_layout(
        legend={"orientation": "h", "x": 0, "y": -0.17, "yanchor": "top"}, margin={"b": 104}
    )
    return figure
