"""Figure: bytes of latent KV and of one checkpoint against the length of the context."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kdalab.errors import KdalabError
from kdalab.spec import ModelSpec, StateKind, StateSizes, state_sizes
from kdalab.units import format_bytes, format_exact_bytes
from kdalab.viz.export import attach_table
from kdalab.viz.palette import SERIES_DASHES, SERIES_MARKERS, kind_style, theme, with_alpha
from kdalab.viz.plotly_theme import HEIGHT_16_9, style_figure

if TYPE_CHECKING:
    import plotly.graph_objects as go

DEFAULT_CONTEXT = (256, 1_048_576)


def context_grid(low: int, high: int) -> list[int]:
    """Powers of two from ``low`` to ``high`` tokens, both ends included whatever they are.

    Raises:
        KdalabError: not ``1 <= low < high``.
    """
    if not 1 <= low < high:
        raise KdalabError(f"context from {low:,} to {high:,} tokens; use 1 <= first < last")
    inner = [1 << k for k in range(high.bit_length()) if low < 1 << k < high]
    return [low, *inner, high]


def state_vs_kv_figure(
    specs: Sequence[ModelSpec],
    *,
    context: tuple[int, int] = DEFAULT_CONTEXT,
    tp_size: int = 1,
    interval: int | None = None,
    theme_name: str = "light",
    height: int = HEIGHT_16_9,
    width: int | None = None,
) -> go.Figure:
    """Both axes logarithmic; one rising line of KV and one flat line of state per model.

    The flat line is one checkpoint, recurrent and conv state together, which is also what one
    running request holds. The mark where the two meet says how many tokens of KV one checkpoint is
    worth. ``interval`` adds the checkpoints kept along the context, one every that many tokens.
    With ``tp_size`` above 1 all bytes are those of one rank.

    Raises:
        KdalabError: no models, more models than there are markers, or a bad context or tp size.
    """
    import plotly.graph_objects as go

    if not 1 <= len(specs) <= len(SERIES_MARKERS):
        raise KdalabError(
            f"{len(specs)} models in one figure; use 1 to {len(SERIES_MARKERS)}, "
            "more lines cannot be told apart"
        )
    tokens = context_grid(*context)
    all_sizes = [state_sizes(spec, tp_size=tp_size) for spec in specs]
    figure = go.Figure()
    for index, sizes in enumerate(all_sizes):
        _add_model(figure, index, sizes, tokens, interval)
        _add_crossing(figure, index, sizes, tokens, theme_name)
    _add_legend(figure, specs, interval, theme_name)

    style_figure(
        figure,
        title="How many tokens of KV one checkpoint is worth",
        subtitle=_subtitle(specs, tp_size),
        height=height,
        width=width,
        theme_name=theme_name,
    )
    ticks = [t for t in tokens if math.log2(t) % 2 == 0]
    figure.update_xaxes(
        title="context length (tokens)",
        type="log",
        range=[math.log10(tokens[0]), math.log10(tokens[-1])],
        tickvals=ticks,
        ticktext=[f"{t:,}" for t in ticks],
    )
    lowest, highest = _extent(all_sizes, tokens, interval)
    powers = range(math.floor(math.log2(lowest)), math.ceil(math.log2(highest)) + 1)
    values = [2**p for p in powers if p % 3 == 0]
    figure.update_yaxes(
        title="bytes (logarithmic)",
        type="log",
        range=[math.log10(lowest * 0.8), math.log10(highest * 1.6)],
        tickvals=values,
        ticktext=[format_bytes(v).replace(".00", "") for v in values],
    )
    figure.update_layout(
        legend={
            "x": 1.01,
            "y": 1,
            "xanchor": "left",
            "itemwidth": 56,  # pixels: wide enough to tell the dashes apart
            "tracegroupgap": 18,
            "itemclick": False,  # its entries explain colours and dashes, they are no lines
            "itemdoubleclick": False,
        }
    )
    return attach_table(figure, *table_of_sizes(all_sizes))


def table_of_sizes(all_sizes: Sequence[StateSizes]) -> tuple[list[str], list[list[str]]]:
    """Column names and rows of the figure's numbers, for readers who prefer a table."""
    columns = [
        "model",
        "recurrent state",
        "conv state",
        "one checkpoint",
        "one checkpoint, INT8",
        "KV per token",
        "one checkpoint equals",
        "INT8 checkpoint equals",
    ]
    rows = [
        [
            sizes.model,
            format_exact_bytes(sizes.recurrent_bytes),
            format_exact_bytes(sizes.conv_bytes),
            format_exact_bytes(sizes.checkpoint_bytes),
            format_exact_bytes(sizes.checkpoint_int8_bytes),
            format_exact_bytes(sizes.latent_bytes_per_token),
            f"{sizes.checkpoint_equals_tokens:,} tokens",
            f"{sizes.checkpoint_int8_equals_tokens:,} tokens",
        ]
        for sizes in all_sizes
    ]
    return columns, rows


def _add_model(
    figure: go.Figure, index: int, sizes: StateSizes, tokens: list[int], interval: int | None
) -> None:
    dash = SERIES_DASHES[index]
    kv, state = kind_style(StateKind.MLA_KV), kind_style(StateKind.KDA_RECURRENT)
    series: list[tuple[str, str, str, float, list[int | None]]] = [
        (f"{sizes.model}: KV", kv.colour, dash, 2.5, [sizes.latent_bytes(t) for t in tokens]),
        (
            f"{sizes.model}: one checkpoint",
            state.colour,
            dash,
            2.5,
            [sizes.checkpoint_bytes] * len(tokens),
        ),
    ]
    if interval:
        kept = [sizes.checkpoint_store_bytes(t, interval) or None for t in tokens]
        series.append((f"{sizes.model}: every {interval:,}", state.colour, dash, 1.25, kept))
    for name, colour, stroke, line_width, values in series:
        figure.add_scatter(
            x=tokens,
            y=values,
            name=name,
            mode="lines",
            showlegend=False,
            line={"color": colour, "dash": stroke, "width": line_width},
            customdata=[format_bytes(v) if v else "" for v in values],
            hovertemplate="%{x:,} tokens: %{customdata}<extra>" + name + "</extra>",
        )


def _add_crossing(
    figure: go.Figure, index: int, sizes: StateSizes, tokens: list[int], theme_name: str
) -> None:
    """Say what one checkpoint is worth, and mark where KV outgrows it if the figure shows it.

    The label sits at the right end: there the KV lines have risen out of its way.
    """
    look, cross = theme(theme_name), sizes.checkpoint_equals_tokens
    figure.add_annotation(
        x=math.log10(tokens[-1]),
        y=math.log10(sizes.checkpoint_bytes),
        text=f"{sizes.model}: {format_bytes(sizes.checkpoint_bytes)} = <b>{cross:,} tokens</b>",
        showarrow=False,
        xanchor="right",
        yanchor="bottom",
        xshift=-6,
        yshift=2,
        borderpad=0,
        bgcolor=with_alpha(look.background, 0.85),
    )
    if not tokens[0] <= cross <= tokens[-1]:
        return
    figure.add_scatter(
        x=[cross],
        y=[sizes.checkpoint_bytes],
        name=f"{sizes.model}: crossing",
        mode="markers",
        showlegend=False,
        marker={
            "symbol": SERIES_MARKERS[index],
            "size": 13,
            "color": look.accent,
            "line": {"color": look.background, "width": 1.5},
        },
        hovertemplate=(
            f"one checkpoint ({format_bytes(sizes.checkpoint_bytes)}) = {cross:,} tokens of KV"
            f"<extra>{sizes.model}</extra>"
        ),
    )


def _add_legend(
    figure: go.Figure, specs: Sequence[ModelSpec], interval: int | None, theme_name: str
) -> None:
    """Colour says the kind, dash and mark say the model; the legend explains the two apart."""
    look = theme(theme_name)
    kv, state = kind_style(StateKind.MLA_KV), kind_style(StateKind.KDA_RECURRENT)
    kinds: list[tuple[str, str, float]] = [
        (f"{kv.tag}: KV of the context", kv.colour, 2.5),
        (f"{state.tag}: one checkpoint", state.colour, 2.5),
    ]
    if interval:
        kinds.append((f"{state.tag}: one every {interval:,} tokens", state.colour, 1.25))
    for name, colour, width in kinds:
        figure.add_scatter(
            x=[None], y=[None], mode="lines", name=name, legendgroup="kinds",
            legendgrouptitle={"text": "bytes of"}, line={"color": colour, "width": width},
        )  # fmt: skip
    for index, spec in enumerate(specs):
        figure.add_scatter(
            x=[None], y=[None], mode="lines+markers", name=spec.name, legendgroup="models",
            legendgrouptitle={"text": "model"},
            line={"color": look.text, "dash": SERIES_DASHES[index], "width": 2},
            marker={"symbol": SERIES_MARKERS[index], "size": 10, "color": look.accent},
        )  # fmt: skip


def _subtitle(specs: Sequence[ModelSpec], tp_size: int) -> str:
    dtypes: dict[str, Any] = {
        "recurrent": sorted({s.state_dtype for s in specs}),
        "conv": sorted({s.conv_dtype for s in specs}),
        "KV": sorted({s.kv_dtype for s in specs}),
    }
    words = ", ".join(f"{what} {' or '.join(names)}" for what, names in dtypes.items())
    where = "whole model" if tp_size == 1 else f"one of {tp_size} tensor-parallel ranks"
    return f"{where}; {words}; the mark is where KV outgrows one checkpoint"


def _extent(
    all_sizes: Sequence[StateSizes], tokens: list[int], interval: int | None
) -> tuple[int, int]:
    values: list[int] = []
    for sizes in all_sizes:
        values += [sizes.latent_bytes(tokens[0]), sizes.latent_bytes(tokens[-1])]
        values.append(sizes.checkpoint_bytes)
        if interval:
            values.append(sizes.checkpoint_store_bytes(tokens[-1], interval))
    return min(v for v in values if v), max(values)
