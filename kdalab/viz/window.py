"""Rebuilding a state from a window before a boundary: the two layers side by side, and the error
against what was replayed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kdalab.errors import KdalabError
from kdalab.spec import StateKind
from kdalab.viz import svg
from kdalab.viz.css import hue_class
from kdalab.viz.palette import SERIES_COLOURS, kind_style, theme
from kdalab.viz.plotly_theme import style_figure

if TYPE_CHECKING:
    import plotly.graph_objects as go

_LEFT, _RIGHT, _TOP, _ROW, _BAR = 120.0, 660.0, 40.0, 96.0, 18.0

WINDOW_WORDS: dict[str, str] = {
    "title": "A window is enough for one and not for the other",
    "subtitle": "state at the boundary, rebuilt from a zero state",
    "replayed": "tokens replayed before the boundary (logarithmic)",
    "error": "largest error of the state, relative",
    "swa": "sliding-window attention",
    "kda": "KDA",
    "reach": "layers × (W - 1)",
}
FLOOR = 1e-17
"""Where an error of exactly 0 is drawn on a logarithmic axis."""


@dataclass(frozen=True, slots=True)
class WindowRow:
    """One kind of layer: tokens ``replayed`` before the boundary (0: none), whether they start
    from a saved state, and the verdict behind the line ("" for none yet). A ``wrong`` state is
    hatched, a ``lost`` one an empty outline."""

    name: str
    replayed: int
    resumed: bool
    verdict: str
    wrong: bool = False
    marked: bool = False
    lost: bool = False


def window_svg(
    swa: WindowRow,
    kda: WindowRow,
    tokens: int,
    reach: int,
    held: int,
    *,
    label: str,
    words: Mapping[str, str],
) -> str:
    """Two lines of ``tokens`` tokens up to the boundary, to one scale.

    Args:
        reach: the tokens that sliding-window attention's state depends on.
        held: the tokens whose KV each of its layers keeps.
        words: "scale", "boundary", "keys" and "state" in the reader's language.
    """
    axis = svg.TokenAxis(tokens, _LEFT, _RIGHT)
    parts = [
        svg.text(_LEFT, 14, words["scale"], "small muted"),
        svg.text(_RIGHT, 14, words["boundary"], "small strong end"),
    ]
    for i, row in enumerate((swa, kda)):
        y = _TOP + i * _ROW
        out = [svg.text(_LEFT - 12, y + 14, row.name, "end strong" if row.marked else "end")]
        out.append(svg.rect(axis.x(0), y, axis.width(tokens), _BAR, "tok waiting"))
        if row.replayed:
            x = axis.x(tokens - row.replayed)
            width = axis.width(row.replayed)
            out.append(svg.rect(x, y, width, _BAR, "tok done"))
            count = min(12, int(width // 12))
            step = width / (count + 1)
            d = " ".join(
                f"M{x + step * (k + 1) - 2:.1f} {y + 5:.1f} l4 4 l-4 4" for k in range(count)
            )
            out.append(svg.path(d, "chevron done") if d else "")
            if row.resumed:
                out.append(_state(x - 11, y + _BAR + 6, False))
        if i == 0:
            x0 = axis.x(tokens - reach)
            out.append(svg.path(f"M{x0:.1f} {y - 3:.1f} v-5 H{_RIGHT:.1f} v5", "bracket"))
            at, width = axis.x(tokens - held), axis.width(held)
            out.append(svg.rect(at, y + _BAR + 6, width, 8, "tomb" if row.lost else "kv"))
            if row.wrong:
                out.append(svg.hatch(at, y + _BAR + 6, width, 8))
            out.append(svg.text(at - 8, y + _BAR + 15, words["keys"], "small end"))
        else:
            out.append(svg.path(f"M{_LEFT:.1f} {y - 3:.1f} v-5 H{_RIGHT:.1f} v5", "bracket"))
            if row.lost:
                out.append(svg.rect(_RIGHT - 24, y + _BAR + 6, 22, 22, "tomb", radius=4))
            else:
                out.append(_state(_RIGHT - 24, y + _BAR + 6, row.wrong))
            if not row.resumed:
                out.append(svg.text(_RIGHT - 34, y + _BAR + 21, words["state"], "small end"))
        out.append(svg.text(_RIGHT + 12, y + 14, row.verdict, "small strong"))
        if row.marked:
            out.append(svg.rect(3, y - 13, svg.WIDTH - 6, 80, "now", radius=5))
        parts.append(svg.group("".join(out), hue_class(0)))
    parts.append(svg.path(f"M{_RIGHT:.1f} 20 V{_TOP + 2 * _ROW - 34:.1f}", "pole"))
    return svg.document("".join(parts), _TOP + 2 * _ROW - 20, label, css_class="kd-window")


def _state(x: float, y: float, wrong: bool) -> str:
    """A recurrent state, without a conv state: these layers have none."""
    box = svg.rect(x, y, 22, 22, "s", radius=4)
    return box + (svg.hatch(x, y, 22, 22) if wrong else "") + svg.text(
        x + 11, y + 16, "S", "mid strong onstale" if wrong else "mid ons"
    )  # fmt: skip


def window_figure(
    replayed: Sequence[int],
    swa: Sequence[float],
    kda: Sequence[float],
    reach: int,
    *,
    words: Mapping[str, str] = WINDOW_WORDS,
    theme_name: str = "light",
    height: int = 460,
) -> go.Figure:
    """Errors (relative, of the state) against the tokens replayed, both axes logarithmic.

    Raises:
        KdalabError: no points.
    """
    import plotly.graph_objects as go

    if not replayed:
        raise KdalabError("no replay to draw; give at least one length")
    figure = go.Figure()
    for name, errors, colour, dash, symbol in (
        (words["swa"], swa, SERIES_COLOURS[1], "solid", "square"),
        (words["kda"], kda, kind_style(StateKind.KDA_RECURRENT).colour, "dash", "circle"),
    ):
        figure.add_scatter(
            x=list(replayed), y=[max(e, FLOOR) for e in errors], name=name, mode="lines+markers",
            line={"color": colour, "dash": dash, "width": 2}, marker={"symbol": symbol, "size": 8},
            customdata=[f"{e:.2g}" for e in errors],
            hovertemplate="%{x:,}: %{customdata}<extra>" + name + "</extra>",
        )  # fmt: skip
    figure.add_vline(
        x=reach, line_dash="dot", line_color=theme(theme_name).accent
    )  # fmt: skip
    figure.add_annotation(  # its place on a logarithmic axis is the logarithm
        x=math.log10(reach), y=0.04, yref="paper", xanchor="right", xshift=-6, showarrow=False,
        text=f"{words['reach']} = {reach:,}",
    )  # fmt: skip
    style_figure(
        figure, title=words["title"], subtitle=words["subtitle"], height=height,
        theme_name=theme_name,
    )  # fmt: skip
    ticks = sorted({n for n in replayed if n & (n - 1) == 0})
    figure.update_xaxes(
        type="log", title=words["replayed"], tickvals=ticks, ticktext=[f"{n:,}" for n in ticks]
    )
    powers = range(-14, 3, 3)
    figure.update_yaxes(
        type="log",
        title=words["error"],
        tickvals=[FLOOR, *(10.0**e for e in powers)],
        ticktext=["0", *(f"1e{e}" for e in powers)],
    )
    figure.update_layout(
        legend={"orientation": "h", "x": 0, "y": -0.24, "yanchor": "top"}, margin={"b": 104}
    )
    return figure
