"""Figures of what ``kdalab bench ... --json`` measured: a roofline of kernels, first tokens by hit.

The numbers come from a file; it names the command, the machine and the library versions.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kdalab.errors import KdalabError
from kdalab.spec import StateKind
from kdalab.viz.palette import (
    SERIES_COLOURS,
    SERIES_MARKERS,
    kind_style,
    theme,
)
from kdalab.viz.plotly_theme import HEIGHT_16_9, style_figure

if TYPE_CHECKING:
    import plotly.graph_objects as go

MARKERS = (*SERIES_MARKERS, "triangle-down", "x", "hexagon", "pentagon")


def read_measured(file: str | Path, *keys: str) -> dict[str, Any]:
    """What a benchmark printed with ``--json``.

    Raises:
        KdalabError: the file cannot be read, is no JSON, or lacks one of ``keys``.
    """
    try:
        data = json.loads(Path(file).read_text("utf-8"))
    except OSError as error:
        raise KdalabError(f"{file}: cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise KdalabError(f"{file}: no JSON ({error}); give what --json printed") from error
    if not isinstance(data, dict) or any(key not in data for key in keys):
        raise KdalabError(f"{file}: lacks one of {', '.join(keys)}; give what --json printed")
    return data


def machine_text(data: Mapping[str, Any], words: Mapping[str, str]) -> str:
    """The machine of a measurement and, where the file says it, its command, and that the machine
    was not quiet (``words["busy"]``)."""
    machine = data.get("machine", {})
    names = ("gpu", "cpu", "vector_code", "torch", "triton")
    parts = [f"{n} {machine[n]}" if n in ("torch", "triton") else str(machine[n])
             for n in names if machine.get(n)]  # fmt: skip
    if threads := machine.get("threads"):
        parts.append(f"{threads} thread" + ("s" if threads != 1 else ""))
    more = [data.get("command"), words["busy"] if data.get("busy") else ""]
    return "; ".join([", ".join(parts), *(text for text in more if text)])


def roofline_points(data: Mapping[str, Any], file: str | Path = "") -> list[dict[str, Any]]:
    """(op, size, name, ms) of each row with FLOPs per byte and GFLOP/s of the least work.

    Raises:
        KdalabError: no row that was measured, or a row without its numbers.
    """
    flop, nbytes = float(data["rates"]["flop"]), float(data["rates"]["nbytes"])
    points = []
    try:
        for row in data["rows"]:
            if not row["ms"]:
                continue
            seconds = row["ms"] / 1e3
            work, moved = (
                seconds * flop / row["over_operations"],
                seconds * nbytes / row["over_bytes"],
            )
            points.append(
                {"op": row["op"], "size": row["size"], "name": row["name"], "ms": row["ms"],
                 "intensity": work / moved, "gflops": work / seconds / 1e9}
            )  # fmt: skip
    except (KeyError, TypeError, ZeroDivisionError) as error:
        raise KdalabError(f"{file}: a row lacks {error}; give what --json printed") from error
    if not points:
        raise KdalabError(f"{file}: no row of it was measured")
    return points


def roofline_figure(
    points: Sequence[Mapping[str, Any]],
    rates: Mapping[str, float],
    words: Mapping[str, str],
    *,
    theme_name: str = "light",
    height: int = HEIGHT_16_9,
    width: int | None = None,
) -> go.Figure:
    """Left the roof and each implementation under it, right the milliseconds of each.

    What counts as work are the least operations and bytes of the op, whoever does it: so an
    implementation that does more stands lower, not farther right.

    Args:
        points: as :func:`roofline_points`.
        rates: flop (FLOP/s) and nbytes (bytes/s) of the machine, measured.
        words: "title", "subtitle", "x", "y", "roof", "speed", "ms".
    """
    from plotly.subplots import make_subplots

    look, figure = theme(theme_name), make_subplots(
        rows=1, cols=2, column_widths=[0.52, 0.48], horizontal_spacing=0.18,
        subplot_titles=(words["roofline"], words["speed"]),
    )  # fmt: skip
    peak, copy = rates["flop"] / 1e9, rates["nbytes"] / 1e9
    xs = [p["intensity"] for p in points]
    low, high = min([*xs, peak / copy]) / 3, max([*xs, peak / copy]) * 4
    figure.add_scatter(
        x=[low, peak / copy, high], y=[low * copy, peak, peak], mode="lines", hoverinfo="skip",
        line={"color": look.line, "width": 2}, name=words["roof"], row=1, col=1,
    )  # fmt: skip
    names = list(dict.fromkeys(p["name"] for p in points))
    cases = list(dict.fromkeys((p["op"], p["size"]) for p in points))
    for i, name in enumerate(names):
        mine = [p for p in points if p["name"] == name]
        ours = name.startswith("kdalab")
        colour = SERIES_COLOURS[i % len(SERIES_COLOURS)]
        marker = {"symbol": MARKERS[i % len(MARKERS)], "size": 12 if ours else 9, "color": colour,
                  "line": {"width": 1.5 if ours else 0, "color": look.accent}}  # fmt: skip
        text = [f"{p['op']} {p['size']}<br>{p['ms']:,.3g} ms" for p in mine]
        figure.add_scatter(
            x=[p["intensity"] for p in mine], y=[p["gflops"] for p in mine], mode="markers",
            name=name, legendgroup=name, marker=marker, customdata=text,
            hovertemplate="%{customdata}, %{y:.3g} GFLOP/s<extra>" + name + "</extra>",
            row=1, col=1,
        )  # fmt: skip
        figure.add_scatter(
            x=[p["ms"] for p in mine], y=[_case(p) for p in mine], mode="markers", name=name,
            legendgroup=name, showlegend=False, marker=marker, customdata=text,
            hovertemplate="%{customdata}<extra>" + name + "</extra>", row=1, col=2,
        )  # fmt: skip
    style_figure(
        figure, title=words["title"], subtitle=words["subtitle"], height=height, width=width,
        theme_name=theme_name,
    )  # fmt: skip
    ms = [p["ms"] for p in points]
    heights = [p["gflops"] for p in points]
    for axis, span, column in (
        (figure.update_xaxes, (low, high), 1),
        (figure.update_yaxes, (min(heights) / 2, peak * 2), 1),
        (figure.update_xaxes, (min(ms) / 2, max(ms) * 2), 2),
    ):
        ticks = _decades(*span)
        axis(
            type="log", range=[math.log10(v) for v in span], tickvals=ticks,
            ticktext=[f"{t:,g}" for t in ticks], row=1, col=column,
        )  # fmt: skip
    figure.update_xaxes(title=words["x"], row=1, col=1)
    figure.update_yaxes(title=words["y"], row=1, col=1)
    figure.update_xaxes(title=words["ms"], row=1, col=2)
    order = [_case({"op": op, "size": size}) for op, size in reversed(cases)]
    figure.update_yaxes(
        categoryorder="array", categoryarray=order, tickfont={"size": 12}, row=1, col=2
    )
    figure.update_layout(
        title={"y": 0.95}, margin={"t": 116, "b": 170},
        legend={"orientation": "h", "x": 0, "y": -0.24, "yanchor": "top", "font": {"size": 12}},
    )  # fmt: skip
    return figure


def _case(point: Mapping[str, Any]) -> str:
    """A case's name in two lines or three."""
    return f"{point['op']}<br>{point['size']}".replace(" H=", "<br>H=").replace(
        " heads,", " heads<br>"
    )


def _decades(low: float, high: float) -> list[float]:
    return [10.0**e for e in range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)]


def first_token_figure(
    names: Sequence[str],
    taken: Sequence[float],
    alone: Sequence[float | None],
    words: Mapping[str, str],
    *,
    theme_name: str = "light",
    height: int = HEIGHT_16_9,
    width: int | None = None,
) -> go.Figure:
    """Milliseconds to the first token, and of the tail alone where it was measured as well.

    Args:
        names: cold, and each hit.
        taken, alone: in ms; None where there is no tail.
        words: "title", "subtitle", "y", "taken", "alone".

    Raises:
        KdalabError: nothing to draw.
    """
    import plotly.graph_objects as go

    if not names:
        raise KdalabError("no first token in these measurements; there is nothing to draw")
    look, kv = theme(theme_name), kind_style(StateKind.KDA_RECURRENT)
    colours = [SERIES_COLOURS[-1], *[kv.colour] * (len(names) - 1)]
    figure = go.Figure()
    figure.add_bar(
        x=list(names), y=list(taken), name=words["taken"], marker={"color": colours},
        text=[f"{t:,.0f} ms" for t in taken], textposition="inside", insidetextanchor="start",
        textangle=0, showlegend=False,
    )  # fmt: skip
    figure.add_scatter(
        x=list(names), y=list(alone), mode="markers", name=words["alone"],
        marker={"symbol": "line-ew", "size": 64, "line": {"width": 2.5, "color": look.accent}},
        hovertemplate="%{y:,.1f} ms<extra>" + words["alone"] + "</extra>",
    )  # fmt: skip
    style_figure(
        figure, title=words["title"], subtitle=words["subtitle"], height=height, width=width,
        theme_name=theme_name,
    )  # fmt: skip
    figure.update_yaxes(title=words["y"], rangemode="tozero")
    figure.update_layout(
        bargap=0.45, margin={"b": 110}, showlegend=True,
        legend={"x": 1, "y": 1, "xanchor": "right", "yanchor": "top", "itemsizing": "constant"},
    )  # fmt: skip
    return figure
