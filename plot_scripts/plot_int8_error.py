"""How the error of an INT8 checkpoint grows while decoding goes on, rounded once and every step.

python plot_scripts/plot_int8_error.py --tokens 32 --out int8_error.svg
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from kdalab.lessons import play_int8
from kdalab.units import format_bytes
from kdalab.viz.export import attach_table
from kdalab.viz.figure_words import figure_words
from kdalab.viz.plot_script import PlotScript
from kdalab.viz.rounding import curves_figure

if TYPE_CHECKING:
    import plotly.graph_objects as go


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tokens", type=int, default=64, help="decoded tokens, 1 to 64")


def build(args: argparse.Namespace) -> go.Figure:
    run = play_int8(args.tokens)
    words = figure_words("int8_error", args.lang)
    x = list(range(1, args.tokens + 1))
    curves = [
        (words["logits-once"], x, run.once),
        (words["logits-every"], x, run.every),
        (words["state-once"], x, run.state_once),
        (words["state-every"], x, run.state_every),
    ]
    words["subtitle"] = words["subtitle"].format(
        native=format_bytes(run.recurrent_bytes + run.conv_bytes), int8=format_bytes(run.int8_bytes)
    )
    figure = curves_figure(
        curves,
        words,
        line_at=(run.margin, words["margin"]),
        height=args.height,
        theme_name=args.theme,
    )
    figure.update_layout(
        width=args.width, legend={"y": -0.17, "x": 0, "yanchor": "top"}, margin={"b": 120}
    )
    columns = [words["x"], *(name for name, _, _ in curves)]
    rows = [[str(i), *(f"{y[i - 1]:.3g}" for _, _, y in curves)] for i in x]
    return attach_table(figure, columns, rows)


SCRIPT = PlotScript(
    name="int8_error",
    title="How the error of an INT8 checkpoint grows while decoding goes on",
    build=build,
    add_arguments=add_arguments,
)
main = SCRIPT.main

if __name__ == "__main__":
    sys.exit(main())
