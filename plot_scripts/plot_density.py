"""The trade-off of checkpoint density: bytes that a placement takes against tokens restored.

python plot_scripts/plot_density.py --trace TRACE.jsonl --budget 64GiB --out density.svg
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from kdalab.errors import KdalabError
from kdalab.lessons import figure_trace, placement_trades
from kdalab.spec import PRESETS, StateKind, resolve_model
from kdalab.units import format_bytes, format_exact_bytes, parse_bytes, parse_tokens
from kdalab.viz.export import attach_table
from kdalab.viz.figure_words import figure_words, trace_words
from kdalab.viz.lines import Line, lines_figure
from kdalab.viz.palette import SERIES_COLOURS, kind_style, theme
from kdalab.viz.plot_script import PlotScript

if TYPE_CHECKING:
    import plotly.graph_objects as go

GIB = 2**30
OTHERS = ("leaf", "leaf+branch")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default="kimi-linear-48b", help=", ".join(PRESETS))
    parser.add_argument("--budget", default="none", help="bytes for KV and states; none: no limit")
    parser.add_argument("--from", dest="low", default="512", help="shortest interval, tokens")
    parser.add_argument("--to", dest="high", default="65536", help="longest interval, tokens")


def build(args: argparse.Namespace) -> go.Figure:
    trace = figure_trace(args.trace, args.requests, args.made_up)
    low, high = parse_tokens(args.low), parse_tokens(args.high)
    if not 0 < low < high:
        raise KdalabError(f"intervals from {low:,} to {high:,} tokens; use 1 <= first < last")
    intervals = [low]
    while intervals[-1] * 2 <= high:
        intervals.append(intervals[-1] * 2)
    budget = None if args.budget == "none" else parse_bytes(args.budget)
    model = resolve_model(args.model)
    names = [*(f"every:{i}" for i in intervals), *OTHERS]
    trades = placement_trades(trace, model, names, budget)
    words = figure_words("density", args.lang)
    kept = [t for t in trades if t.peak_bytes]  # prompts shorter than the interval leave nothing
    every = tuple(t for t in kept if t.placement not in OTHERS)
    others = tuple(t for t in kept if t.placement in OTHERS)
    best = sorted((t for t in kept if not t.beaten), key=lambda t: t.peak_bytes)
    state = kind_style(StateKind.KDA_RECURRENT)

    def line(name: str, some: tuple, colour: str, labels: list[str], **look: str) -> Line:
        x, y = [t.peak_bytes / GIB for t in some], [t.share for t in some]
        hover = [f"{t.placement}, {format_bytes(t.peak_bytes)}" for t in some]
        return Line(name, x, y, colour, labels=labels, hover=hover, **look)  # type: ignore[arg-type]

    front = Line(
        words["front"],
        [t.peak_bytes / GIB for t in best],
        [t.share for t in best],
        theme(args.theme).muted,
        "dot",
        "",
        steps=True,
        width=1.5,
        hover=[t.placement for t in best],
    )
    lines = [
        front,
        line(words["every"], every, state.colour, [f"{i:,}" for i in intervals[: len(every)]]),
        line(
            words["others"],
            others,
            SERIES_COLOURS[0],
            [t.placement for t in others],
            dash="",
            symbol="diamond",
            place="middle left",
        ),
    ]
    words["subtitle"] = words["subtitle"].format(
        trace=trace_words(words, trace.name, len(trace.requests), args.trace),
        model=model.name,
        budget=words["no-limit"] if budget is None else format_bytes(budget),
    )
    sizes = [t.peak_bytes / GIB for t in kept]
    ticks = [2.0**p for p in range(-6, 20) if min(sizes) * 0.7 <= 2.0**p <= max(sizes) * 1.4]
    figure = lines_figure(
        lines, words, x_ticks=ticks, theme_name=args.theme, width=args.width, height=args.height
    )
    rows = [
        [t.placement, f"{t.share:.1%}", format_exact_bytes(t.peak_bytes), f"{t.states:,}",
         "" if t.beaten else "✓"]
        for t in trades
    ]  # fmt: skip
    columns = [words[k] for k in ("placement", "restored", "x", "states", "front")]
    return attach_table(figure, columns, rows)


SCRIPT = PlotScript(
    name="density",
    title="Checkpoint density: bytes against tokens restored",
    build=build,
    add_arguments=add_arguments,
    requests=1200,
)
main = SCRIPT.main

if __name__ == "__main__":
    sys.exit(main())
