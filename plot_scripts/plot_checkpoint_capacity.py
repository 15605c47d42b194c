"""How many checkpoints fit in a given memory, by the dtype that they are kept in.

python plot_scripts/plot_checkpoint_capacity.py --memory 16GiB --out checkpoint_capacity.svg
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from kdalab.spec import PRESETS, resolve_model
from kdalab.units import parse_bytes
from kdalab.viz.capacity import capacities, capacity_figure
from kdalab.viz.figure_words import figure_words
from kdalab.viz.plot_script import PlotScript

if TYPE_CHECKING:
    import plotly.graph_objects as go

DEFAULT_MODELS = tuple(name for name in PRESETS if not name.startswith("tiny"))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--models",
        nargs="+",
        default=list(DEFAULT_MODELS),
        metavar="MODEL",
        help=f"presets ({', '.join(PRESETS)}) or paths of config.json",
    )
    parser.add_argument("--memory", default="64GiB", help="for checkpoints alone")
    parser.add_argument("--tp", type=int, default=1, help="tensor parallel size; memory of a rank")


def build(args: argparse.Namespace) -> go.Figure:
    memory = parse_bytes(args.memory)
    rows = capacities([resolve_model(m) for m in args.models], memory, tp_size=args.tp)
    return capacity_figure(
        rows,
        memory,
        figure_words("checkpoint_capacity", args.lang),
        theme_name=args.theme,
        width=args.width,
        height=args.height,
    )


SCRIPT = PlotScript(
    name="checkpoint_capacity",
    title="How many checkpoints fit in a given memory",
    build=build,
    add_arguments=add_arguments,
)
main = SCRIPT.main

if __name__ == "__main__":
    sys.exit(main())
