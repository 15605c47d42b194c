"""What a state of fixed size can still recall: right answers against stored pairs.

python plot_scripts/plot_recall_capacity.py --similarity 0.5 --episodes 8 --out recall_capacity.svg
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from kdalab.recall import CHANCE, NETWORKS, SIMILARITIES, TITLES, curves
from kdalab.spec import StateKind
from kdalab.threads import use_one_thread
from kdalab.units import format_bytes
from kdalab.viz.export import attach_table
from kdalab.viz.figure_words import figure_words
from kdalab.viz.pairs import recall_figure
from kdalab.viz.plot_script import PlotScript

if TYPE_CHECKING:
    import plotly.graph_objects as go

KINDS = {"kda": StateKind.KDA_RECURRENT, "mla": StateKind.MLA_KV, "hybrid": ""}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--similarity",
        type=float,
        default=0.9,
        help=f"of keys: {', '.join(map(str, SIMILARITIES))}",
    )
    parser.add_argument("--episodes", type=int, default=2, help="for each point")
    parser.add_argument(
        "--pairs", type=int, nargs="+", default=[8, 16, 32, 64, 128], help="stored, 1 to 128"
    )
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))


def build(args: argparse.Namespace) -> go.Figure:
    use_one_thread()
    found = curves(
        tuple(dict.fromkeys(args.networks)),
        tuple(sorted(set(args.pairs))),
        (args.similarity,),
        args.episodes,
    )
    words = figure_words("recall_capacity", args.lang)
    words["subtitle"] = words["subtitle"].format(
        similarity=args.similarity, questions=min(r.questions for r in found)
    )
    lines = [
        (
            words[name],
            KINDS[name],
            [(r.pairs, r.accuracy, format_bytes(r.memory_bytes)) for r in found
             if r.network == name],
        )
        for name in dict.fromkeys(r.network for r in found)
    ]  # fmt: skip
    figure = recall_figure(lines, CHANCE, words, theme_name=args.theme, height=args.height)
    figure.update_layout(
        width=args.width, legend={"x": 0, "y": -0.17, "yanchor": "top"}, margin={"b": 110}
    )
    rows = [
        [TITLES[r.network], str(r.pairs), f"{r.correct:,} / {r.questions:,}", f"{r.accuracy:.0%}",
         format_bytes(r.memory_bytes)]
        for r in found
    ]  # fmt: skip
    columns = [words[k] for k in ("network", "pairs", "right", "y", "memory")]
    return attach_table(figure, columns, rows)


SCRIPT = PlotScript(
    name="recall_capacity",
    title="What a state of fixed size can still recall",
    build=build,
    add_arguments=add_arguments,
)
main = SCRIPT.main

if __name__ == "__main__":
    sys.exit(main())
