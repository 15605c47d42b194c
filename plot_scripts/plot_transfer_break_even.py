"""From which length on shipping a state is sooner than computing it, over the bandwidth.

python plot_scripts/plot_ship_or_replay.py --out ship_or_replay.svg --rate 20000
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from kdalab.spec import PRESETS, resolve_model
from kdalab.transfer.worth import BANDWIDTHS, worth_line
from kdalab.viz.plot_script import PlotScript
from kdalab.viz.transfer_figures import ship_or_replay_figure

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


def build(args: argparse.Namespace) -> go.Figure:
    lines = [worth_line(resolve_model(name), args.rate, BANDWIDTHS) for name in args.models]
    return ship_or_replay_figure(lines, theme_name=args.theme, width=args.width, height=args.height)


SCRIPT = PlotScript(
    name="ship_or_replay",
    title="From which length on shipping a state is sooner than computing it again",
    build=build,
    add_arguments=add_arguments,
)
main = SCRIPT.main

if __name__ == "__main__":
    sys.exit(main())
