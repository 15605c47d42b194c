"""Ship a state or compute it again: bytes by kind, and the length from which shipping is sooner.

python plot_scripts/plot_transfer_break_even.py --rate 20000 --out transfer_break_even.svg
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from kdalab.spec import PRESETS, resolve_model
from kdalab.transfer.worth import BANDWIDTHS, bytes_by_kind, worth_line
from kdalab.units import format_bytes, parse_tokens
from kdalab.viz.export import attach_table
from kdalab.viz.figure_words import figure_words
from kdalab.viz.plot_script import PlotScript
from kdalab.viz.transfer_figures import break_even_figure

if TYPE_CHECKING:
    import plotly.graph_objects as go

DEFAULT_MODELS = ("kimi-linear-48b", "kimi-k3")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--models",
        nargs="+",
        default=list(DEFAULT_MODELS),
        metavar="MODEL",
        help=f"presets ({', '.join(PRESETS)}) or paths of config.json",
    )
    parser.add_argument("--rate", type=float, default=10_000.0, help="tokens/s of one prefill")
    parser.add_argument(
        "--lengths", nargs="+", default=["1k", "4k", "16k", "64k", "256k", "1M"],
        help="prompts whose bytes are drawn, tokens; of the first model",
    )  # fmt: skip


def build(args: argparse.Namespace) -> go.Figure:
    specs = [resolve_model(name) for name in args.models]
    words = figure_words("transfer_break_even", args.lang)
    lengths = sorted({parse_tokens(n) for n in args.lengths})
    lines = [worth_line(spec, args.rate, BANDWIDTHS) for spec in specs]
    figure = break_even_figure(
        bytes_by_kind(specs[0], lengths),
        lines,
        words,
        theme_name=args.theme,
        width=args.width,
        height=args.height,
    )
    rows = [
        [k.model, f"{k.tokens:,}", format_bytes(k.latent), format_bytes(k.recurrent),
         format_bytes(k.conv), f"{k.share:.1%}"]
        for spec in specs for k in bytes_by_kind(spec, lengths)
    ]  # fmt: skip
    columns = [words[k] for k in ("model", "tokens", "kv", "s", "c", "share")]
    return attach_table(figure, columns, rows)


SCRIPT = PlotScript(
    name="transfer_break_even",
    title="Bytes of a transfer by kind, and from which length on shipping is sooner",
    build=build,
    add_arguments=add_arguments,
)
main = SCRIPT.main

if __name__ == "__main__":
    sys.exit(main())
