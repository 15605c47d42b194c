"""Bytes that hold nothing, by block size: pages padded to one size, and pages packed.

python plot_scripts/plot_padding_waste.py --models kimi-k3 --tp 8 --out padding_waste.svg
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from kdalab.errors import KdalabError
from kdalab.lessons import waste_by_block
from kdalab.spec import PRESETS, resolve_model
from kdalab.units import parse_tokens
from kdalab.viz.export import attach_table
from kdalab.viz.figure_words import figure_words
from kdalab.viz.lines import Line, lines_figure
from kdalab.viz.palette import SERIES_COLOURS, SERIES_MARKERS
from kdalab.viz.plot_script import PlotScript

if TYPE_CHECKING:
    import plotly.graph_objects as go


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--models",
        nargs="+",
        default=["kimi-linear-48b", "kimi-k3"],
        metavar="MODEL",
        help=f"presets ({', '.join(PRESETS)}) or paths of config.json",
    )
    parser.add_argument("--tp", type=int, default=1, help="tensor parallel size; bytes of one rank")
    parser.add_argument("--context", default="32768", help="tokens of the request")
    parser.add_argument("--states", type=int, default=3, help="states that it keeps")
    parser.add_argument("--to", default="16384", help="largest block, tokens")


def build(args: argparse.Namespace) -> go.Figure:
    words, top = figure_words("padding_waste", args.lang), parse_tokens(args.to)
    context = parse_tokens(args.context)
    grid = [256 << i for i in range(20) if 256 << i <= top]
    blocks = sorted({n for b in grid for n in (b, b * 5 // 4, b * 3 // 2, b * 7 // 4) if n <= top})
    if not blocks or len(args.models) > len(SERIES_COLOURS):
        raise KdalabError(
            f"blocks up to {top:,} tokens and {len(args.models)} models; use 256 tokens or more, "
            f"and 1 to {len(SERIES_COLOURS)} models"
        )
    curves, lines, rows = [], [], []
    for i, name in enumerate(args.models):
        spec = resolve_model(name)
        smallest = waste_by_block(spec, [256], context, args.states, tp=args.tp).smallest
        sizes = sorted({*blocks, *([smallest] if smallest <= top else [])})
        curve = waste_by_block(spec, sizes, context, args.states, tp=args.tp)
        curves.append(curve)
        for layout, dash in (("padded", "solid"), ("packed", "dot")):
            points = [(p.block, s) for p in curve.points if (s := p.share(layout)) is not None]
            lines.append(
                Line(
                    words[layout].format(model=spec.name),
                    [p[0] for p in points],
                    [p[1] for p in points],
                    SERIES_COLOURS[i],
                    dash,
                    SERIES_MARKERS[i],
                    labels=[
                        f"{b:,}" if b == smallest and layout == "padded" else "" for b, _ in points
                    ],
                    place="bottom center",
                )
            )
        for p in curve.points:
            padded = p.share("padded")
            rows.append(
                [spec.name, f"{p.block:,}", "" if padded is None else f"{padded:.1%}",
                 f"{p.share('packed'):.1%}"]
            )  # fmt: skip
    words["subtitle"] = words["subtitle"].format(context=context, states=args.states, tp=args.tp)
    figure = lines_figure(
        lines, words, x_ticks=grid, x_text=lambda x: f"{x:,.0f}", theme_name=args.theme,
        width=args.width, height=args.height,
    )  # fmt: skip
    columns = [words["model"], words["x"], *(words[f"{n}-column"] for n in ("padded", "packed"))]
    return attach_table(figure, columns, rows)


SCRIPT = PlotScript(
    name="padding_waste",
    title="Bytes that hold nothing, by block size",
    build=build,
    add_arguments=add_arguments,
)
main = SCRIPT.main

if __name__ == "__main__":
    sys.exit(main())
