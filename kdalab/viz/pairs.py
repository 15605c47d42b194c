"""A list of pairs beside the matrix that stores the same pairs, and what the matrix answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from kdalab.viz import svg
from kdalab.viz.heat import heat
from kdalab.viz.palette import SERIES_COLOURS, SERIES_DASHES, SERIES_MARKERS, kind_style, theme
from kdalab.viz.plotly_theme import style_figure

if TYPE_CHECKING:
    import plotly.graph_objects as go

_TOP, _SIDE = 50.0, 208.0
_BAR_X, _BAR_W = 372.0, 150.0
_FULL = 1.5  # the least error that fills the bar: 150 % of the value's length


def pairs_svg(
    keys: np.ndarray,
    values: np.ndarray,
    state: np.ndarray,
    error: Sequence[float],
    found: Sequence[bool],
    words: Mapping[str, str],
    *,
    label: str,
    limit: float,
    most: float = _FULL,
    now: int | None = None,
) -> str:
    """One row a stored pair: key, value, and the error of the matrix's answer; the matrix beside.

    Args:
        keys, values: ``[pair, channel]`` of all pairs of the run; those not stored yet wait.
        state: ``[K, V]`` as it stands.
        error, found: of each stored pair, as ``lessons.Write``.
        words: "list", "matrix", "error", "key", "value", "size-list", "size-matrix", "title".
        label: the text alternative.
        limit: the strength of the matrix's colours, the same in all steps.
        most: the largest error of the run; the bars' scale holds it, and is the same in all steps.
        now: the pair that this step writes.
    """
    row = min(22.0, 330.0 / len(keys))
    scale = _BAR_W / max(most, _FULL)  # view-box units of 100 %
    parts = [
        svg.text(0, 14, words["list"], "strong"),
        svg.text(0, 30, words["size-list"], "small muted"),
        svg.text(_BAR_X, 14, words["error"], "strong"),
        svg.text(_BAR_X, 30, "0", "small muted"),
        svg.text(_BAR_X + scale, 30, "100 %", "small muted mid"),
        svg.text(630, 14, words["matrix"], "strong"),
        svg.text(630, 30, words["size-matrix"], "small muted"),
        svg.text(26, 45, words["key"], "small muted"),
        svg.text(196, 45, words["value"], "small muted"),
    ]
    bottom = _TOP + row * len(keys)
    full = _BAR_X + scale
    parts.append(svg.path(f"M{_BAR_X:.1f} {_TOP - 8} V{bottom:.1f}", "line"))
    parts.append(svg.path(f"M{full:.1f} {_TOP - 8} V{bottom:.1f}", "rule"))
    for i, (key, value) in enumerate(zip(keys, values, strict=True)):
        y = _TOP + i * row
        stored = i < len(error)
        content = svg.text(18, y + row * 0.72, f"{i + 1}", "small end")
        content += _strip(key, 26, y + 1, 158, row - 3, words["key"])
        content += _strip(value, 196, y + 1, 158, row - 3, words["value"])
        parts.append(svg.group(content, "" if stored else "later"))
        if stored:
            width = min(error[i] * scale, _BAR_W)
            css = "s" if found[i] else "dimmed"
            parts.append(svg.rect(_BAR_X, y + 2, max(width, 1.2), row - 5, css))
            if not found[i] and width > 4:
                parts.append(svg.hatch(_BAR_X, y + 2, width, row - 5))
            sign = "✓" if found[i] else "✗"
            note = f"{error[i]:.0%} {sign}".replace("%", " %")
            x = _BAR_X + width + 6
            parts.append(svg.text(x, y + row * 0.72, note, "small strong halo"))
        if i == now:
            parts.append(svg.rect(1, y - 1, 356, row, "now", radius=3))
    parts.append(heat(state, 630, _TOP, _SIDE, words["title"], limit=limit))
    parts.append(svg.text(630 + _SIDE / 2, _TOP + _SIDE + 16, "K × V", "small muted mid"))
    height = max(bottom, _TOP + _SIDE + 18) + 6
    return svg.document("".join(parts), height, label, css_class="kd-pairs")


def _strip(row: np.ndarray, x: float, y: float, width: float, height: float, title: str) -> str:
    """One vector as a row of cells, coloured as ``heat`` colours a matrix."""
    top = float(np.abs(row).max()) or 1.0
    cell = width / len(row)
    cells = []
    for i, value in enumerate(row):
        shape = svg.rect(x + i * cell, y, cell, height, "neg" if value < 0 else "pos")
        strength = f'<rect fill-opacity="{min(1.0, abs(value) / top):.2f}" '
        cells.append(shape.replace("<rect ", strength, 1))
    return svg.group("".join(cells) + svg.rect(x, y, width, height, "frame"), title=title)


def error_figure(
    curves: Sequence[tuple[str, Sequence[float]]],
    channels: int,
    words: Mapping[str, str],
    *,
    height: int = 360,
    theme_name: str = "light",
) -> go.Figure:
    """Mean read error against stored pairs, one line a rule; a mark at the number of channels.

    ``curves`` are (name, error after 1, 2, ... pairs); ``words``: "title", "subtitle", "x", "y",
    "channels".
    """
    import plotly.graph_objects as go

    figure, look = go.Figure(), theme(theme_name)
    for i, (name, errors) in enumerate(curves):
        figure.add_scatter(
            x=list(range(1, len(errors) + 1)), y=list(errors), name=name, mode="lines+markers",
            line={"color": SERIES_COLOURS[i], "dash": SERIES_DASHES[i], "width": 2},
            marker={"symbol": SERIES_MARKERS[i], "size": 6},
        )  # fmt: skip
    most = max(len(errors) for _, errors in curves)
    if most >= channels:
        figure.add_vline(x=channels, line={"color": look.line, "width": 1, "dash": "dash"})
        figure.add_annotation(
            x=channels, y=1, yref="paper", text=words["channels"], showarrow=False,
            xanchor="right", xshift=-4, yanchor="top",
        )  # fmt: skip
    style_figure(
        figure, title=words["title"], subtitle=words["subtitle"], height=height,
        theme_name=theme_name,
    )  # fmt: skip
    figure.update_xaxes(title=words["x"], range=[0.5, most + 0.5])
    figure.update_yaxes(title=words["y"], tickformat="~%", rangemode="tozero")
    figure.update_layout(legend={"orientation": "h", "y": -0.28})
    return figure


def recall_figure(
    curves: Sequence[tuple[str, str, Sequence[tuple[int, float, str]]]],
    chance: float,
    words: Mapping[str, str],
    *,
    height: int = 360,
    theme_name: str = "light",
) -> go.Figure:
    """Share of right answers against stored pairs (logarithmic), one line a trained network.

    ``curves`` are (name, state kind or "", points of (pairs, share, memory as text)); ``words``:
    "title", "subtitle", "x", "y", "chance".
    """
    import plotly.graph_objects as go

    figure, look = go.Figure(), theme(theme_name)
    for i, (name, kind, points) in enumerate(curves):
        colour = kind_style(kind).colour if kind else SERIES_COLOURS[0]
        figure.add_scatter(
            x=[p[0] for p in points], y=[p[1] for p in points], name=name,
            customdata=[p[2] for p in points], mode="lines+markers",
            line={"color": colour, "dash": SERIES_DASHES[i], "width": 2},
            marker={"symbol": SERIES_MARKERS[i], "size": 9},
            hovertemplate="%{x}: %{y:.0%}, %{customdata}<extra>" + name + "</extra>",
        )  # fmt: skip
    xs = sorted({p[0] for _, _, points in curves for p in points})
    figure.add_scatter(
        x=[xs[0], xs[-1]], y=[chance, chance], mode="lines", name=words["chance"],
        line={"color": look.muted, "dash": "dot", "width": 1.5}, hoverinfo="skip",
    )  # fmt: skip
    style_figure(
        figure, title=words["title"], subtitle=words["subtitle"], height=height,
        theme_name=theme_name,
    )  # fmt: skip
    figure.update_xaxes(title=words["x"], type="log", tickvals=xs, ticktext=[f"{x}" for x in xs])
    figure.update_yaxes(title=words["y"], tickformat="~%", range=[0, 1.05])
    figure.update_layout(legend={"orientation": "h", "y": -0.28})
    return figure
