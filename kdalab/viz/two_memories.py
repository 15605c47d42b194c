"""Figure: one buffer with two frontiers, and a fixed split of the same bytes, over the same run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from kdalab.errors import KdalabError
from kdalab.spec import StateKind
from kdalab.viz.palette import KIND_STYLES, STALE, theme, with_alpha
from kdalab.viz.plotly_theme import HEIGHT_16_9, style_figure

if TYPE_CHECKING:
    import plotly.graph_objects as go

KIB = 1024


def two_memories_figure(
    unified: tuple[Sequence[int], Sequence[int], Sequence[int]],
    split: tuple[Sequence[int], Sequence[int]],
    words: Mapping[str, str],
    *,
    total: int,
    cut: int,
    refused: Sequence[int] = (),
    theme_name: str = "light",
    height: int = HEIGHT_16_9,
    width: int | None = None,
) -> go.Figure:
    """Bytes over the steps, latent KV from below and states from above, in KiB.

    Args:
        unified: at each step the end of the KV, the beginning of the states (bytes from the
            start), and the bytes of holes inside both.
        split: at each step the bytes of KV and of states in use.
        words: "title", "subtitle", "x", "y", "unified", "split", "kv", "state", "holes", "cut",
            "refused".
        total: bytes of either memory; ``cut`` where the split stands.
        refused: steps at which the split turned somebody away.

    Raises:
        KdalabError: no step, or series of different lengths.
    """
    from plotly.subplots import make_subplots

    lows, highs, holes = unified
    lengths = {len(s) for s in (*unified, *split)}
    if len(lengths) != 1 or not lows:
        raise KdalabError(f"series of {sorted(lengths)} steps; give equally many, 1 or more")
    look, steps = theme(theme_name), list(range(len(lows)))
    kv, s = KIND_STYLES[StateKind.MLA_KV], KIND_STYLES[StateKind.KDA_RECURRENT]
    figure = make_subplots(
        rows=1, cols=2, shared_yaxes=True, horizontal_spacing=0.05,
        subplot_titles=(words["unified"], words["split"]),
    )  # fmt: skip
    pairs = ((lows, highs), (split[0], [total - b for b in split[1]]))
    for column, (below, above) in enumerate(pairs, 1):
        first = column == 1
        figure.add_scatter(
            x=steps, y=[v / KIB for v in below], name=words["kv"], legendgroup="kv",
            showlegend=first, fill="tozeroy", line={"color": kv.colour, "shape": "hv"},
            fillcolor=with_alpha(kv.colour, 0.35), row=1, col=column,
        )  # fmt: skip
        figure.add_scatter(
            x=steps, y=[total / KIB] * len(steps), showlegend=False, hoverinfo="skip",
            line={"color": s.colour, "width": 1}, row=1, col=column,
        )  # fmt: skip
        figure.add_scatter(
            x=steps, y=[v / KIB for v in above], name=words["state"], legendgroup="state",
            showlegend=first, fill="tonexty", fillcolor=with_alpha(s.colour, 0.35),
            line={"color": s.colour, "dash": "dash", "shape": "hv"}, row=1, col=column,
        )  # fmt: skip
    figure.add_scatter(
        x=steps, y=[v / KIB for v in holes], name=words["holes"], row=1, col=1,
        line={"color": look.muted, "dash": "dot", "shape": "hv"},
    )  # fmt: skip
    figure.add_scatter(
        x=[steps[0], steps[-1]], y=[cut / KIB] * 2, name=words["cut"], mode="lines", row=1, col=2,
        line={"color": look.accent, "dash": "longdash", "width": 1.5}, hoverinfo="skip",
    )  # fmt: skip
    if refused:
        figure.add_scatter(
            x=list(refused), y=[cut / KIB] * len(refused), name=words["refused"], mode="markers",
            marker={"symbol": "x", "size": 12, "color": STALE}, row=1, col=2,
        )  # fmt: skip
    style_figure(
        figure, title=words["title"], subtitle=words["subtitle"], height=height, width=width,
        theme_name=theme_name,
    )  # fmt: skip
    figure.update_xaxes(title=words["x"])
    figure.update_yaxes(range=[0, total / KIB])
    figure.update_yaxes(title=words["y"], row=1, col=1)
    figure.update_layout(
        title={"y": 0.95}, margin={"t": 116, "b": 110},
        legend={"orientation": "h", "x": 0, "y": -0.17, "yanchor": "top"},
    )  # fmt: skip
    return figure
