"""Bytes of KV and of one checkpoint against context length, and where the two cross.

python plot_scripts/plot_state_vs_kv.py --out state_vs_kv.svg --models kimi-k3 tiny
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from kdalab.spec import PRESETS, resolve_model
from kdalab.units import parse_tokens
from kdalab.viz.export import attach_table, table_of
from kdalab.viz.figure_words import figure_words, said_figure
from kdalab.viz.plot_script import PlotScript
from kdalab.viz.state_vs_kv import DEFAULT_CONTEXT, state_vs_kv_figure

if TYPE_CHECKING:
    import plotly.graph_objects as go

DEFAULT_MODELS = tuple(name for name in PRESETS if not name.startswith("tiny"))

COLUMNS = ("model", "recurrent", "conv", "one", "int8", "token", "equals", "int8-equals")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--models",
        nargs="+",
        default=list(DEFAULT_MODELS),
        metavar="MODEL",
        help=f"presets ({', '.join(PRESETS)}) or paths of config.json",
    )
    low, high = DEFAULT_CONTEXT
    parser.add_argument("--from", dest="low", default=str(low), help="shortest context, tokens")
    parser.add_argument("--to", dest="high", default=str(high), help="longest context, tokens")
    parser.add_argument("--interval", default="0", help="also a checkpoint every N tokens; 0: no")
    parser.add_argument("--tp", type=int, default=1, help="tensor parallel size; bytes of one rank")
    parser.add_argument("--state-dtype", default=None, help="recurrent state; None: model's own")
    parser.add_argument("--conv-dtype", default=None, help="conv state; None: the model's own")
    parser.add_argument("--kv-dtype", default=None, help="latent KV; None: the model's own")


def build(args: argparse.Namespace) -> go.Figure:
    specs = [
        resolve_model(name).with_dtypes(
            state=args.state_dtype, conv=args.conv_dtype, kv=args.kv_dtype
        )
        for name in args.models
    ]
    figure = state_vs_kv_figure(
        specs,
        context=(parse_tokens(args.low), parse_tokens(args.high)),
        tp_size=args.tp,
        interval=parse_tokens(args.interval) or None,
        theme_name=args.theme,
        width=args.width,
        height=args.height,
    )
    figure = said_figure(args.lang, figure)
    _, rows = table_of(figure)
    words = figure_words("state_vs_kv", args.lang)
    rows = [[cell.replace(" tokens", f" {words['tokens']}") for cell in row] for row in rows]
    return attach_table(figure, [words[k] for k in COLUMNS], rows)


SCRIPT = PlotScript(
    name="state_vs_kv",
    title="Bytes of KV and of one checkpoint against context length",
    build=build,
    add_arguments=add_arguments,
)
main = SCRIPT.main

if __name__ == "__main__":
    sys.exit(main())
