"""Ship a state or compute it again: the length at which both take as long, over the bandwidth."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from kdalab.errors import KdalabError
from kdalab.spec import StateKind
from kdalab.units import format_bytes
from kdalab.viz.palette import SERIES_COLOURS, SERIES_DASHES, kind_style
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
    """One curve a model, both axes logarithmic; where shipping never wins there is no point, and a
    dotted line at the bandwidth below which that is so for every length.

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
        if _has_floor(line):
            figure.add_vline(x=line.floor / 1e9, line={"color": colour, "dash": "dot", "width": 1})
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


def _has_floor(line: WorthLine) -> bool:
    """Whether the bandwidth below which shipping never pays is on the axis; a line outside of the
    axis would stand among its labels."""
    return line.points[0][0] <= line.floor <= line.points[-1][0]


class Moved(Protocol):
    """Bytes of one prompt by kind (``transfer.worth.KindBytes`` is one)."""

    @property
    def model(self) -> str: ...
    @property
    def tokens(self) -> int: ...
    @property
    def latent(self) -> int: ...
    @property
    def recurrent(self) -> int: ...
    @property
    def conv(self) -> int: ...


def break_even_figure(
    moved: Sequence[Moved],
    lines: Sequence[WorthLine],
    words: Mapping[str, str],
    *,
    theme_name: str = "light",
    height: int = HEIGHT_16_9,
    width: int | None = None,
) -> go.Figure:
    """Left what one model has to move by kind, as shares with the bytes above; right the curves of
    :func:`ship_or_replay_figure`.

    Args:
        words: those of ``WORTH_WORDS``, and "bytes-title" (with {model}), "even-title", "bytes-x",
            "bytes-y", "kv", "s", "c".

    Raises:
        KdalabError: no prompt length; else as :func:`ship_or_replay_figure`.
    """
    from plotly.subplots import make_subplots

    if not moved:
        raise KdalabError("no prompt length; give one or more")
    curves = ship_or_replay_figure(lines, words=words, theme_name=theme_name)
    figure = make_subplots(
        rows=1, cols=2, horizontal_spacing=0.16,
        subplot_titles=(words["bytes-title"].format(model=moved[0].model), words["even-title"]),
    )  # fmt: skip
    names = [f"{m.tokens:,}" for m in moved]
    totals = [m.latent + m.recurrent + m.conv for m in moved]
    for kind, key, values in (
        (StateKind.KDA_RECURRENT, "s", [m.recurrent for m in moved]),
        (StateKind.KDA_CONV, "c", [m.conv for m in moved]),
        (StateKind.MLA_KV, "kv", [m.latent for m in moved]),
    ):
        style, last = kind_style(kind), key == "kv"
        figure.add_bar(
            x=names, y=[v / t for v, t in zip(values, totals, strict=True)], name=words[key],
            marker={"color": style.colour}, customdata=[format_bytes(v) for v in values],
            hovertemplate="%{x}: %{customdata}<extra>" + words[key] + "</extra>",
            text=[format_bytes(t) for t in totals] if last else None,
            textposition="outside" if last else None, cliponaxis=False, textfont={"size": 12},
            row=1, col=1,
        )  # fmt: skip
    for trace in curves.data:
        figure.add_trace(trace, row=1, col=2)
    for line, trace in zip(lines, curves.data, strict=True):
        if not _has_floor(line):
            continue
        figure.add_vline(
            x=line.floor / 1e9, row=1, col=2,
            line={"color": trace.line.color, "dash": "dot", "width": 1},
        )  # fmt: skip
    style_figure(
        figure, title=words["title"], subtitle=curves.layout.title.subtitle.text, height=height,
        width=width, theme_name=theme_name,
    )  # fmt: skip
    x, y = curves.layout.xaxis, curves.layout.yaxis
    figure.update_xaxes(
        type="log", title=words["x"], tickvals=x.tickvals, ticktext=x.ticktext, range=x.range,
        row=1, col=2,
    )  # fmt: skip
    figure.update_yaxes(
        type="log", title=words["y"], tickformat=y.tickformat, dtick=1, row=1, col=2
    )
    figure.update_xaxes(title=words["bytes-x"], type="category", row=1, col=1)
    figure.update_yaxes(
        title=words["bytes-y"], tickformat=".0%", range=[0, 1.08], tickvals=[0, 0.25, 0.5, 0.75, 1],
        row=1, col=1,
    )  # fmt: skip
    figure.update_layout(
        barmode="stack", title={"y": 0.95}, margin={"t": 116, "b": 120},
        legend={"orientation": "h", "x": 0, "y": -0.17, "yanchor": "top"},
    )  # fmt: skip
    return figure
