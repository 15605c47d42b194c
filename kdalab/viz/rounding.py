"""A state before and after it was stored in INT8, its error by channel, and errors by token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from kdalab.viz import svg
from kdalab.viz.heat import heat
from kdalab.viz.palette import SERIES_COLOURS, SERIES_DASHES, SERIES_MARKERS, theme
from kdalab.viz.plotly_theme import style_figure

if TYPE_CHECKING:
    import plotly.graph_objects as go

_SIDE, _TOP = 216.0, 40.0
_BARS, _HIGH = 316.0, 66.0


def rounding_svg(
    state: np.ndarray,
    rounded: np.ndarray | None,
    words: Mapping[str, str],
    *,
    label: str,
) -> str:
    """One head's state, what comes back, and the difference; below, each key channel's numbers.

    Args:
        state, rounded: ``[V, K]``; ``rounded`` None while nothing has been stored.
        words: "state", "rounded", "difference", "largest", "error" (headings with their numbers),
            "channels".
        label: the text alternative.
    """
    shown: list[tuple[str, np.ndarray | None]] = [("state", state), ("rounded", rounded)]
    shown.append(("difference", None if rounded is None else rounded - state))
    limit = float(np.abs(state).max())
    parts = []
    for i, (name, values) in enumerate(shown):
        x = 40 + i * (_SIDE + 58)
        parts.append(svg.text(x, _TOP - 10, words[name], "strong"))
        if values is None:
            parts.append(svg.rect(x, _TOP, _SIDE, _SIDE, "free"))
        else:
            bound = limit if name != "difference" else 0.0
            parts.append(heat(values, x, _TOP, _SIDE, words[name], limit=bound))
    parts.append(svg.text(40 + _SIDE + 29, _TOP + _SIDE / 2, "→", "mid strong"))
    parts.append(svg.text(40 - 8, _TOP + _SIDE / 2, "V", "small muted end"))
    parts.append(svg.text(40 + _SIDE / 2, _TOP + _SIDE + 14, words["channels"], "small muted mid"))
    largest = np.abs(state).max(0)
    parts.append(_bars(largest, _BARS, words["largest"], "s"))
    height = _BARS + _HIGH + 8
    if rounded is not None:
        errors = np.abs(rounded - state).max(0)
        y = _BARS + _HIGH + 42
        parts.append(_bars(errors, y, words["error"], "tok done"))
        parts.append(_bound(largest / 254, float(errors.max()), y))
        height = y + _HIGH + 8
    return svg.document("".join(parts), height, label, css_class="kd-rounding kd-r0")


def _bars(values: np.ndarray, y: float, title: str, css: str) -> str:
    top, left, width = float(values.max()) or 1.0, 40.0, 780.0
    step = width / len(values)
    parts = [svg.text(left, y - 13, title, "small strong")]
    for k, value in enumerate(values):
        high = _HIGH * float(value) / top
        note = f"{k}: {value:.3g}"
        parts.append(
            svg.rect(left + k * step + 1, y + _HIGH - high, step - 3, high, css, title=note)
        )
    parts.append(svg.path(f"M{left:.1f} {y + _HIGH:.1f} h{width:.1f}", "line"))
    return "".join(parts)


def _bound(bounds: np.ndarray, top: float, y: float) -> str:
    """A tick over each channel at half its scale: no rounding can be further off."""
    step = 780.0 / len(bounds)
    ticks = [
        f"M{40 + k * step:.1f} {y + _HIGH - min(_HIGH * 1.1, _HIGH * float(b) / top):.1f} "
        f"h{step - 1:.1f}"
        for k, b in enumerate(bounds)
    ]
    return svg.path(" ".join(ticks), "bracket")


def errors_svg(
    groups: Sequence[tuple[str, Sequence[tuple[str, float]], tuple[float, str] | None]],
    *,
    label: str,
) -> str:
    """Errors as bars, each group on a linear scale of its own.

    Args:
        groups: (heading, (name, error) pairs, a line across them as (value, name) or None).
        label: the text alternative.
    """
    left, room = 190.0, svg.WIDTH - 190.0 - 80.0
    parts, y = [], 14.0
    for heading, rows, line in groups:
        parts.append(svg.text(0, y, heading, "strong"))
        top = max([value for _, value in rows] + ([line[0]] if line else [])) or 1.0
        y += 14
        start = y
        for i, (name, value) in enumerate(rows):
            wide = room * value / top
            parts.append(svg.text(left - 10, y + 20, name, "small end"))
            bar = svg.rect(left, y, wide, 28, "tok done", radius=3, title=f"{name}: {value:.3g}")
            parts.append(svg.group(bar, f"kd-r{i}"))
            parts.append(svg.text(left + wide + 8, y + 19, f"{value:.2g}", "strong halo"))
            y += 38
        parts.append(svg.path(f"M{left:.1f} {start - 4:.1f} V{y:.1f}", "line"))
        if line:
            x = left + room * line[0] / top
            end = x > svg.WIDTH / 2
            parts.append(svg.path(f"M{x:.1f} {start - 4:.1f} V{y + 4:.1f}", "parting"))
            css = "small halo end" if end else "small halo"
            parts.append(svg.text(x, y + 17, line[1], css))
            y += 20
        y += 26
    return svg.document("".join(parts), y, label, css_class="kd-errors")


def curves_figure(
    curves: Sequence[tuple[str, Sequence[float], Sequence[float]]],
    words: Mapping[str, str],
    *,
    log_x: bool = False,
    line_at: tuple[float, str] | None = None,
    mark_x: tuple[float, str] | None = None,
    height: int = 470,
    theme_name: str = "light",
) -> go.Figure:
    """Errors as lines on a logarithmic axis.

    Args:
        curves: (name, x, y).
        words: "title", "subtitle", "x", "y".
        log_x: the x axis is logarithmic and falls to the right.
        line_at: a horizontal line and its name.
        mark_x: a vertical line and its name.
    """
    import plotly.graph_objects as go

    figure, look = go.Figure(), theme(theme_name)
    for i, (name, x, y) in enumerate(curves):
        figure.add_scatter(
            x=list(x), y=list(y), name=name, mode="lines+markers",
            line={"color": SERIES_COLOURS[i], "dash": SERIES_DASHES[i], "width": 2},
            marker={"symbol": SERIES_MARKERS[i], "size": 6},
            hovertemplate="%{x}: %{y:.3g}<extra>" + name + "</extra>",
        )  # fmt: skip
    if line_at is not None:
        xs = [v for _, x, _ in curves for v in x]
        figure.add_scatter(
            x=[min(xs), max(xs)], y=[line_at[0]] * 2, mode="lines", name=line_at[1],
            line={"color": look.muted, "dash": "dot", "width": 1.5}, hoverinfo="skip",
        )  # fmt: skip
    if mark_x is not None:
        figure.add_vline(x=mark_x[0], line={"color": look.line, "width": 1, "dash": "dash"})
        figure.add_annotation(
            x=np.log10(mark_x[0]) if log_x else mark_x[0], y=1, yref="paper", text=mark_x[1],
            showarrow=False, yanchor="bottom", font={"size": 12},
        )  # fmt: skip
    style_figure(
        figure, title=words["title"], subtitle=words["subtitle"], height=height,
        theme_name=theme_name,
    )  # fmt: skip
    ticks = [n * 10.0**p for p in range(-8, 3) for n in ((1,) if log_x else (1, 2, 5))]
    text = [f"{v:g}" for v in ticks]
    figure.update_yaxes(title=words["y"], type="log", tickvals=ticks, ticktext=text)
    figure.update_xaxes(title=words["x"])
    if log_x:
        figure.update_xaxes(type="log", autorange="reversed", tickvals=ticks, ticktext=text)
    figure.update_layout(legend={"orientation": "h", "y": -0.26}, margin={"t": 96})
    return figure
