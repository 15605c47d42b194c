"""Ship a state or compute it again: the length at which both take as long, over the bandwidth."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from kdalab.errors import KdalabError
from kdalab.units import format_bytes
from kdalab.viz.palette import SERIES_COLOURS, SERIES_DASHES
from kdalab.viz.plotly_theme import HEIGHT_16_9, style_figure

if TYPE_CHECKING:
    import plotly.graph_objects as go

WORTH_WORDS = {
    "title": "Ship the state, or compute it again?",
    "subtitle": "above a line shipping is sooner, below it replay; prefill at {rate} tokens/s",
    "x": "bandwidth of the wire (GB/s)",
    "y": "break-even (tokens)",
    "floor": "{model} (never pays below {floor} GB/s)",
    "hover": "{model}: {state} of state, {token} of latent KV a token",
}


class WorthLine(Protocol):
    """One model's curve (``transfer.worth.WorthLine`` is one)."""

    @property
    def model(self) -> str: ...
    @property
    def rate(self) -> float: ...
    @property
    def fixed_bytes(self) -> int: ...
    @property
    def token_bytes(self) -> int: ...
    @property
    def floor(self) -> float: ...
    @property
    def points(self) -> tuple[tuple[float, float], ...]: ...


def ship_or_replay_figure(
    lines: Sequence[WorthLine],
    *,
    words: Mapping[str, str] = WORTH_WORDS,
    theme_name: str = "light",
    height: int = HEIGHT_16_9,
    width: int | None = None,
    transparent: bool = False,
) -> go.Figure:
    """One curve a model, both axes logarithmic; where shipping never wins there is no point.

    Raises:
        KdalabError: no line, or lines of different rates of prefill.
    """
    import plotly.graph_objects as go

    if len({line.rate for line in lines}) != 1:
        raise KdalabError("give one line or more, all of one rate of prefill")
    figure = go.Figure()
    for number, line in enumerate(lines):
        points = [(b / 1e9, n) for b, n in line.points if math.isfinite(n) and n > 0]
        colour = SERIES_COLOURS[number % len(SERIES_COLOURS)]
        token, state = format_bytes(line.token_bytes), format_bytes(line.fixed_bytes)
        name = words["hover"].format(model=line.model, state=state, token=token)
        figure.add_scatter(
            x=[p[0] for p in points],
            y=[p[1] for p in points],
            mode="lines",
            name=words["floor"].format(model=line.model, floor=f"{line.floor / 1e9:.2g}"),
            line={"color": colour, "dash": SERIES_DASHES[number % len(SERIES_DASHES)], "width": 3},
            text=[name] * len(points),
            hovertemplate="%{text}<br>%{x:.3g} GB/s: %{y:,.0f} tokens<extra></extra>",
        )
        figure.add_vline(
            x=line.floor / 1e9,
            line={"color": colour, "dash": "dot", "width": 1},
        )
    # Only a logarithm of base ten is asked of the axes, with ticks that people read.
    low, high = lines[0].points[0][0] / 1e9, lines[0].points[-1][0] / 1e9
    ticks = [10.0**e for e in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)]
    figure.update_xaxes(
        type="log",
        title={"text": words["x"]},
        tickvals=ticks,
        ticktext=[f"{t:g}" for t in ticks],
        range=[math.log10(low), math.log10(high)],
    )
    figure.update_yaxes(type="log", title={"text": words["y"]}, tickformat=",d", dtick=1)
    figure.update_layout(legend={"orientation": "h", "y": -0.24, "x": 0.0})
    return style_figure(
        figure,
        title=words["title"],
        subtitle=words["subtitle"].format(rate=f"{lines[0].rate:,.0f}"),
        height=height,
        width=width,
        theme_name=theme_name,
        transparent=transparent,
    )
