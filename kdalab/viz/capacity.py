"""Figure: how many checkpoints fit in a given memory, by the dtype that they are kept in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kdalab.errors import KdalabError
from kdalab.spec import ModelSpec, state_sizes
from kdalab.units import format_bytes, format_exact_bytes
from kdalab.viz.export import attach_table
from kdalab.viz.palette import SERIES_COLOURS
from kdalab.viz.plotly_theme import HEIGHT_16_9, style_figure

if TYPE_CHECKING:
    import plotly.graph_objects as go

DTYPES = ("fp32", "bf16", "int8")
_PATTERNS = ("", "/", "x")


@dataclass(frozen=True, slots=True)
class Capacity:
    """One model and dtype: bytes of a checkpoint, and how many fit."""

    model: str
    dtype: str
    bytes: int
    count: int
    token_bytes: int


def capacities(
    specs: Sequence[ModelSpec], memory: int, *, tp_size: int = 1
) -> tuple[Capacity, ...]:
    """Checkpoints of each model in ``memory`` bytes of one rank: recurrent state in fp32, in bf16,
    and in INT8 with an fp32 scale a channel; the conv state stays in its own dtype.

    Raises:
        KdalabError: a memory below 1 byte, or a tp size that does not divide the heads.
    """
    if memory < 1:
        raise KdalabError(f"{memory:,} bytes of memory; use 1 or more")
    rows = []
    for spec in specs:
        for dtype in DTYPES:
            kept = spec.with_dtypes(state="fp32" if dtype == "int8" else dtype)
            sizes = state_sizes(kept, tp_size=tp_size)
            one = sizes.checkpoint_int8_bytes if dtype == "int8" else sizes.checkpoint_bytes
            rows.append(
                Capacity(spec.name, dtype, one, memory // one, sizes.latent_bytes_per_token)
            )
    return tuple(rows)


def capacity_figure(
    rows: Sequence[Capacity],
    memory: int,
    words: Mapping[str, str],
    *,
    theme_name: str = "light",
    height: int = HEIGHT_16_9,
    width: int | None = None,
) -> go.Figure:
    """One panel a model, each on its own scale; a bar a dtype with its count and bytes.

    Args:
        words: "title", "subtitle", "y", "fp32", "bf16", "int8", "model", "bytes", "count",
            "dtype", "worth".

    Raises:
        KdalabError: no model, or more than six.
    """
    from plotly.subplots import make_subplots

    models = list(dict.fromkeys(r.model for r in rows))
    if not 1 <= len(models) <= 6:
        raise KdalabError(f"{len(models)} models in one figure; use 1 to 6")
    figure = make_subplots(rows=1, cols=len(models), subplot_titles=models, horizontal_spacing=0.07)
    for column, model in enumerate(models, 1):
        for index, dtype in enumerate(DTYPES):
            row = next(r for r in rows if (r.model, r.dtype) == (model, dtype))
            figure.add_bar(
                x=[words[dtype]], y=[row.count], row=1, col=column, name=words[dtype],
                showlegend=False, text=[f"{row.count:,}<br>{format_bytes(row.bytes)}"],
                textposition="outside", cliponaxis=False, textfont={"size": 12},
                marker={"color": SERIES_COLOURS[index],
                        "pattern": {"shape": _PATTERNS[index], "size": 8, "solidity": 0.2,
                                    "fillmode": "overlay"}},
                hovertemplate="%{x}: %{y:,}<extra>" + model + "</extra>",
            )  # fmt: skip
        most = max(r.count for r in rows if r.model == model)
        figure.update_yaxes(range=[0, max(1, most) * 1.2], row=1, col=column, tickformat=",d")
    style_figure(
        figure, title=words["title"], height=height, width=width, theme_name=theme_name,
        subtitle=words["subtitle"].format(memory=format_bytes(memory)),
    )  # fmt: skip
    figure.update_yaxes(title=words["y"], row=1, col=1)
    figure.update_layout(title={"y": 0.95}, margin={"t": 120}, bargap=0.3)
    columns = [words[k] for k in ("model", "dtype", "bytes", "count", "worth")]
    table = [
        [r.model, words[r.dtype].replace("<br>", " "), format_exact_bytes(r.bytes),
         f"{r.count:,}", f"{r.bytes / r.token_bytes:,.0f}"]
        for r in rows
    ]  # fmt: skip
    return attach_table(figure, columns, table)
