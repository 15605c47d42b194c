"""Figures of the lab from plain rows and samples: what a sweep found, how memory was used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import TYPE_CHECKING, Any

from kdalab.errors import KdalabError
from kdalab.spec import StateKind
from kdalab.units import format_bytes
from kdalab.viz.palette import SERIES_COLOURS, SERIES_MARKERS, kind_style, theme
from kdalab.viz.plotly_theme import HEIGHT_16_9, style_figure
from kdalab.viz.svg import esc

if TYPE_CHECKING:
    import plotly.graph_objects as go

GAINS: dict[str, str] = {
    "hit_rate": "prompt tokens restored",
    "flops_saved_share": "prefill work saved",
    "ttft_mean": "mean time to first token (s)",
    "ttft_p95": "time to first token, 95th percentile (s)",
}
GIB = 2**30


@dataclass(frozen=True, slots=True)
class Line:
    """What is possible, by memory (bytes): ``values`` in the unit of the figure's gain."""

    name: str
    memories: Sequence[int]
    values: Sequence[float]


_PICKS = {True: ("x", "cross"), False: ("star", "star-diamond")}


@dataclass(frozen=True, slots=True)
class Pick:
    """A row to point out: what a search recommends, or what it began from."""

    name: str
    row: Mapping[str, Any]
    before: bool = False


def pareto_figure(
    rows: Sequence[Mapping[str, Any]],
    best: Sequence[Mapping[str, Any]],
    gain: str = "hit_rate",
    *,
    lines: Sequence[Line] = (),
    picks: Sequence[Pick] = (),
    title: str = "What memory buys",
    subtitle: str = "",
    theme_name: str = "light",
    height: int = HEIGHT_16_9,
) -> go.Figure:
    """Memory against gain, a point a row; the rows that no other beats are joined by steps.

    Args:
        rows: of a sweep, with memory or peak_bytes (bytes), ``gain`` and setup.
        best: those of them that no other beats, by memory.
        lines: yardsticks, drawn behind the points.
        picks: rows with names of their own, drawn as stars, and as crosses where ``before``; every
            second one of either is a diamond's star, or an upright cross.
        subtitle: by default how many replays of which trace.

    Raises:
        KdalabError: an unknown gain, or no row that could be replayed.
    """
    import plotly.graph_objects as go

    if gain not in GAINS:
        raise KdalabError(f"gain {gain!r}; allowed: {', '.join(GAINS)}")
    usable = [r for r in rows if not r.get("error")]
    if not usable:
        raise KdalabError("no row of this sweep could be replayed; there is nothing to draw")
    share = gain in ("hit_rate", "flops_saved_share")
    figure = go.Figure()
    ink = theme(theme_name)
    form = ".1%" if share else ".4g"
    for line, dash in zip(lines, ("solid", "dash", "longdashdot"), strict=False):
        figure.add_scatter(
            x=[m / GIB for m in line.memories], y=list(line.values), mode="lines", name=line.name,
            line={"color": ink.muted, "width": 1.6, "dash": dash},
            hovertemplate="%{x:,.4g} GiB: %{y:" + form + "}<extra>" + esc(line.name) + "</extra>",
        )  # fmt: skip
    names = list(dict.fromkeys(_series(r) for r in usable))
    for index, name in enumerate(names):
        mine = [r for r in usable if _series(r) == name]
        figure.add_scatter(
            x=[_bytes(r) / GIB for r in mine],
            y=[r[gain] for r in mine],
            mode="markers",
            name=name,
            marker={
                "size": 9,
                "color": SERIES_COLOURS[index % len(SERIES_COLOURS)],
                "symbol": SERIES_MARKERS[index // len(SERIES_COLOURS) % len(SERIES_MARKERS)],
            },
            text=[esc(r["setup"]) for r in mine],
            hovertemplate="%{text}<br>%{y:" + form + "}<extra></extra>",
        )
    if best:
        figure.add_scatter(
            x=[_bytes(r) / GIB for r in best],
            y=[r[gain] for r in best],
            mode="lines",
            line={"shape": "hv", "width": 1.5, "dash": "dot"},
            name="no other is as small and as good",
            hoverinfo="skip",
        )
    shapes = {before: cycle(_PICKS[before]) for before in _PICKS}
    for pick in picks:
        shape = next(shapes[pick.before])
        if pick.row.get("error"):
            continue
        figure.add_scatter(
            x=[_bytes(pick.row) / GIB], y=[pick.row[gain]], mode="markers", name=pick.name,
            marker={
                "symbol": shape, "size": 12 if pick.before else 17,
                "color": ink.muted if pick.before else ink.accent,
                "line": {"color": ink.text, "width": 1},
            },
            text=[esc(pick.row["setup"])],
            hovertemplate="%{text}<br>%{y:" + form + "}<extra>" + esc(pick.name) + "</extra>",
        )  # fmt: skip
    style_figure(
        figure,
        title=title,
        subtitle=subtitle or f"{len(usable)} replays of {esc(usable[0]['trace'])}",
        height=height,
        theme_name=theme_name,
    )
    sizes = sorted({_bytes(r) / GIB for r in usable})
    ticks = sizes[:: -(-len(sizes) // 12)]  # the sizes tried; a long sweep names some of them
    figure.update_xaxes(
        title="memory for latent KV and states (GiB)",
        type="log",
        tickvals=ticks,
        ticktext=[f"{size:,.4g}" for size in ticks],
    )
    figure.update_yaxes(title=GAINS[gain], tickformat="~%" if share else None, rangemode="tozero")
    return figure


def memory_figure(
    samples: Sequence[Mapping[str, float]],
    memory: int | None,
    *,
    theme_name: str = "light",
    height: int = HEIGHT_16_9,
) -> go.Figure:
    """Bytes in use over the trace's time, stacked by kind; the limit as a line.

    Args:
        samples: with at (s), kv, state, private and host (bytes).
        memory: the limit in bytes; None for none.

    Raises:
        KdalabError: no sample.
    """
    import plotly.graph_objects as go

    if not samples:
        raise KdalabError("no sample of memory in use; there is nothing to draw")
    kinds = (
        ("kv", "latent KV, cached", kind_style(StateKind.MLA_KV).colour),
        ("state", "checkpoints", kind_style(StateKind.KDA_RECURRENT).colour),
        ("private", "running requests' own", SERIES_COLOURS[-1]),
    )
    figure = go.Figure()
    times = [s["at"] for s in samples]
    for key, name, colour in kinds:
        values = [s[key] / GIB for s in samples]
        if any(values):
            figure.add_scatter(
                x=times, y=values, name=name, stackgroup="device", mode="lines",
                line={"color": colour, "width": 1},
            )  # fmt: skip
    if any(s["host"] for s in samples):
        figure.add_scatter(
            x=times, y=[s["host"] / GIB for s in samples], name="host tier (not in the stack)",
            mode="lines", line={"dash": "dash"},
        )  # fmt: skip
    if memory is not None:
        figure.add_hline(y=memory / GIB, line_dash="dot", annotation_text=format_bytes(memory))
    style_figure(
        figure, title="What fills the memory", height=height, theme_name=theme_name,
        subtitle="bytes in use by kind, over the trace's time",
    )  # fmt: skip
    figure.update_xaxes(title="time (s)")
    figure.update_yaxes(title="GiB", rangemode="tozero")
    return figure


def _bytes(row: Mapping[str, Any]) -> float:
    return float(row["memory"] if row.get("memory") else max(1, row["peak_bytes"]))


def _series(row: Mapping[str, Any]) -> str:
    if row["cache"] == "block":
        interval = row["interval"]
        kept = {None: "dense", 0: "reachable"}.get(interval, f"every {interval}")
        return f"blocks, {kept}"
    name = row.get("policy") or row["checkpoints"]
    return f"{name}, INT8" if row.get("int8") else str(name)
