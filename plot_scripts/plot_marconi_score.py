"""Marconi's score of the nodes that may go: recency and saved work, for several weights alpha.

python plot_scripts/plot_marconi_score.py --alphas 0 1 2 --out marconi_score.svg
"""

from __future__ import annotations

import argparse
import sys

from kdalab.errors import KdalabError
from kdalab.lessons import RETENTION_STORIES, play_retention
from kdalab.viz.drawing import Drawing
from kdalab.viz.figure_words import figure_words
from kdalab.viz.plot_script import PlotScript
from kdalab.viz.score_bars import ScoreBar, score_bars_svg


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--story", choices=tuple(RETENTION_STORIES), default="long", help="the prompts"
    )
    parser.add_argument(
        "--alphas", type=float, nargs="+", default=[0.0, 0.5, 2.0], help="weights of saved work"
    )
    parser.add_argument("--states", type=int, default=3, help="state slots, 3 or more")
    parser.add_argument("--choice", type=int, default=1, help="which eviction of the run, from 1")


def build(args: argparse.Namespace) -> Drawing:
    words, parts, rows = figure_words("marconi_score", args.lang), [], []
    if len(args.alphas) > 6:
        raise KdalabError(f"{len(args.alphas)} weights in one figure; use 1 to 6")
    top = 1 + max(args.alphas)
    for alpha in args.alphas:
        run = play_retention(args.story, alpha, args.states)
        chosen = [choice for choices in run.chosen.values() for choice in choices]
        if not 1 <= args.choice <= len(chosen):
            raise KdalabError(
                f"eviction {args.choice} of {len(chosen)} with alpha {alpha:g}; use 1 to "
                f"{len(chosen)}, or fewer --states"
            )
        choice = chosen[args.choice - 1]
        bars = [
            ScoreBar(
                words["node"].format(node=c.node, start=c.start, end=c.end),
                c.recency,
                alpha * c.efficiency,
                words["goes" if c.node == choice.goes else "stays"].format(total=c.total),
                c.node == choice.goes,
            )
            for c in choice.candidates
        ]
        restored = sum(run.hits.values())
        heading = words["heading"].format(alpha=alpha, restored=restored)
        picture = score_bars_svg(
            bars,
            top=top,
            heading=heading,
            names=(words["recency"], words["saving"].format(alpha=alpha)),
            label=heading,
        )
        parts.append(("", picture))
        rows += [
            (
                f"{alpha:g}", f"#{c.node}", f"{c.start:,} - {c.end:,}", f"{c.age}",
                f"{c.flops_per_byte:,.0f}", f"{c.recency:.3f}", f"{c.efficiency:.3f}",
                f"{c.total:.3f}", "✓" if c.node == choice.goes else "",
            )
            for c in choice.candidates
        ]  # fmt: skip
    about = words["about"].format(story=args.story, states=args.states, choice=args.choice)
    names = ("alpha", "node-column", "tokens", "age", "per-byte", "recency", "efficiency",
             "score", "goes-column")  # fmt: skip
    columns = tuple(words[n] for n in names)
    return Drawing(words["title"], ((about, ""), *parts), columns, tuple(rows))


SCRIPT = PlotScript(
    name="marconi_score",
    title="Marconi's score of the nodes that may go",
    build=build,
    add_arguments=add_arguments,
)
main = SCRIPT.main

if __name__ == "__main__":
    sys.exit(main())
