"""A figure of lines: shares or bytes over a size that grows by doubling, told apart three ways."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kdalab.errors import KdalabError
from kdalab.viz.plotly_theme import HEIGHT_16_9, style_figure

if TYPE_CHECKING:
    import plotly.graph_objects as go

LEGEND_BELOW: dict[str, Any] = {"orientation": "h", "x": 0, "y": -0.17, "yanchor": "top"}


@dataclass(frozen=True, slots=True)
class Line:
    """One series. ``labels`` stand beside its points, ``hover`` is said when one is pointed at;
    ``steps`` draws it flat up to the next point; without ``symbol`` it has no marks, without
    ``dash`` no line."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    colour: str
    dash: str = "solid"
    symbol: str = "circle"
    labels: Sequence[str] = ()
    hover: Sequence[str] = ()
    steps: bool = False
    width: float = 2.5
    place: str = "top center"


def lines_figure(
    lines: Sequence[Line],
    words: Mapping[str, str],
    *,
    x_text: Callable[[float], str] = lambda x: f"{x:,.4g}",
    x_ticks: Sequence[float] = (),
    log_x: bool = True,
    log_y: bool = False,
    percent: bool = True,
    y_from_zero: bool = True,
    theme_name: str = "light",
    height: int = HEIGHT_16_9,
    width: int | None = None,
) -> go.Figure:
    """Lines on one pair of axes, the legend below.

    Args:
        words: "title", "subtitle", "x", "y".
        x_text: how a place on the x axis is written; ``x_ticks`` are those written.
        log_x, log_y: logarithmic axes.
        percent: y is a share, 0 to 1.

    Raises:
        KdalabError: no point to draw, or one at or below 0 on a logarithmic axis.
    """
    import plotly.graph_objects as go

    if not any(line.x for line in lines):
        raise KdalabError("no point to draw")
    figure = go.Figure()
    for line in lines:
        mode = "+".join(
            m for m, on in (("lines", line.dash), ("markers", line.symbol), ("text", line.labels))
            if on
        )  # fmt: skip
        figure.add_scatter(
            x=list(line.x), y=list(line.y), name=line.name, mode=mode or "none",
            line={"color": line.colour, "dash": line.dash or "solid", "width": line.width,
                  "shape": "hv" if line.steps else "linear"},
            marker={"symbol": line.symbol or "circle", "size": 9, "color": line.colour},
            text=list(line.labels) or None, textposition=line.place, textfont={"size": 12},
            customdata=list(line.hover) or [x_text(x) for x in line.x],
            hovertemplate="%{customdata}: %{y" + (":.1%" if percent else ":,.4g") + "}<extra>"
            + line.name + "</extra>",
            cliponaxis=False,
        )  # fmt: skip
    style_figure(
        figure, title=words["title"], subtitle=words["subtitle"], height=height, width=width,
        theme_name=theme_name,
    )  # fmt: skip
    xs = [x for line in lines for x in line.x]
    ticks = list(x_ticks) or sorted(set(xs))
    figure.update_xaxes(title=words["x"], tickvals=ticks, ticktext=[x_text(x) for x in ticks])
    if log_x:
        if min(xs) <= 0:
            raise KdalabError(
                f"a place of {min(xs):g} on a logarithmic axis; give only those above 0"
            )
        low, high = math.log10(min(xs)), math.log10(max(xs))
        room = 0.03 * (high - low or 1)
        figure.update_xaxes(type="log", range=[low - room, high + room])
    figure.update_yaxes(title=words["y"], tickformat="~%" if percent else None)
    if log_y:
        figure.update_yaxes(type="log")
    elif y_from_zero:
        figure.update_yaxes(rangemode="tozero")
    figure.update_layout(legend=LEGEND_BELOW, margin={"b": 110})
    return figure
