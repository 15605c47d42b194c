"""What partial hits bring: prompt tokens restored by the block cache, for each match unit.

python plot_scripts/plot_partial_hit_gain.py --trace TRACE.jsonl --block 8192
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from kdalab.errors import KdalabError
from kdalab.lessons import figure_trace, gains_by_unit
from kdalab.spec import PRESETS, StateKind
from kdalab.units import format_bytes, parse_bytes, parse_tokens
from kdalab.viz.export import attach_table
from kdalab.viz.figure_words import figure_words, trace_words
from kdalab.viz.lines import Line, lines_figure
from kdalab.viz.palette import SERIES_COLOURS, kind_style
from kdalab.viz.plot_script import PlotScript

if TYPE_CHECKING:
    import plotly.graph_objects as go


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default="kimi-linear-48b", help=", ".join(PRESETS))
    parser.add_argument("--memory", default="64GiB", help="for latent KV and states")
    parser.add_argument("--block", default="8192", help="of attention and state groups, tokens")
    parser.add_argument(
        "--block-small", default="2048", help="a second block beside it, tokens; 0: none"
    )


def build(args: argparse.Namespace) -> go.Figure:
    trace = figure_trace(args.trace, args.requests, args.made_up)
    memory, words = parse_bytes(args.memory), figure_words("partial_hit_gain", args.lang)
    state, lines, rows = kind_style(StateKind.KDA_RECURRENT), [], []
    blocks = [b for b in (parse_tokens(args.block), parse_tokens(args.block_small)) if b]
    looks = ((state.colour, "solid", "circle"), (SERIES_COLOURS[0], "dash", "square"))
    for block, (colour, dash, symbol) in zip(dict.fromkeys(blocks), looks, strict=False):
        if block % trace.block_tokens:
            raise KdalabError(
                f"a block of {block:,} tokens on a trace of blocks of {trace.block_tokens:,}; "
                "use a multiple"
            )
        units = [block]
        while units[-1] % 2 == 0 and units[-1] // 2 % trace.block_tokens == 0:
            units.append(units[-1] // 2)
        found = sorted(gains_by_unit(trace, args.model, memory, block, units), key=lambda g: g.unit)
        x, whole = [g.unit for g in found], found[-1]
        labels = [f"+{g.restored - whole.restored:.1%}" if g.unit != block else "" for g in found]
        y = [g.restored for g in found]
        name = words["restored-block"].format(block=block)
        place = "top center" if symbol == "square" else "bottom center"
        lines.append(Line(name, x, y, colour, dash, symbol, labels=labels, place=place))
        known = Line(words["known-block"].format(block=block), x, [g.known for g in found], colour,
                     "dot", f"{symbol}-open", width=1.5)  # fmt: skip
        lines.append(known)
        rows += [
            [f"{block:,}", f"{g.unit:,}", f"{g.restored:.1%}", f"{g.known:.1%}", f"{g.states:,}"]
            for g in found
        ]
    words["subtitle"] = words["subtitle"].format(
        trace=trace_words(words, trace.name, len(trace.requests), args.trace),
        model=args.model,
        memory=format_bytes(memory),
    )
    figure = lines_figure(
        lines, words, x_text=lambda x: f"{x:,.0f}", theme_name=args.theme, width=args.width,
        height=args.height,
    )  # fmt: skip
    columns = [words[k] for k in ("block", "x", "restored", "known", "states")]
    return attach_table(figure, columns, rows)


SCRIPT = PlotScript(
    name="partial_hit_gain",
    title="What partial hits bring, by match unit",
    build=build,
    add_arguments=add_arguments,
    requests=300,
)
main = SCRIPT.main

if __name__ == "__main__":
    sys.exit(main())
