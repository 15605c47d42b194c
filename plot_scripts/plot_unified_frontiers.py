"""Unified memory over a run: both frontiers, and beside it a fixed split of the same bytes.

python plot_scripts/plot_unified_frontiers.py --workload long --out unified_frontiers.svg
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from kdalab.lessons import WORKLOADS, play_unified
from kdalab.phrases import say
from kdalab.units import format_bytes
from kdalab.viz.export import attach_table
from kdalab.viz.figure_words import figure_words
from kdalab.viz.plot_script import PlotScript
from kdalab.viz.two_memories import two_memories_figure

if TYPE_CHECKING:
    import plotly.graph_objects as go


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workload", choices=tuple(WORKLOADS), default="mixed", help="who asks")
    parser.add_argument("--share", type=int, default=70, help="of the split's bytes, %% for KV")
    parser.add_argument("--lazy", action="store_true", help="leave holes until the gap is needed")


def build(args: argparse.Namespace) -> go.Figure:
    run = play_unified(args.workload, args.lazy, args.share)
    words = figure_words("unified_frontiers", args.lang)
    split = [
        (
            sum(owner is not None for owner in s.pages) * run.page_bytes,
            sum(owner is not None for owner in s.states) * run.state_bytes,
        )
        for s in run.splits
    ]
    mine, other = run.tallies[-1]
    words["subtitle"] = words["subtitle"].format(
        total=format_bytes(run.total),
        workload=args.workload,
        moves=mine.moves,
        retracted=mine.retracted + mine.evicted_states,
        other=other.retracted + other.evicted_states,
        refused=other.refused,
    )
    figure = two_memories_figure(
        (
            [x.low for x in run.layouts],
            [x.high for x in run.layouts],
            [x.holes for x in run.layouts],
        ),
        ([kv for kv, _ in split], [state for _, state in split]),
        words,
        total=run.total,
        cut=run.split_pages * run.page_bytes,
        refused=[step for step, _ in run.refusals],
        theme_name=args.theme,
        width=args.width,
        height=args.height,
    )
    rows = [
        [
            str(i),
            say(args.lang, step.sentence),
            *(f"{b:,} B" for b in (x.low, run.total - x.high, x.holes, *s)),
        ]
        for i, (step, x, s) in enumerate(zip(run.run.steps, run.layouts, split, strict=True))
    ]
    columns = ["x", "what", "kv", "state", "holes", "split-kv", "split-state"]
    return attach_table(figure, [words[k] for k in columns], rows)


SCRIPT = PlotScript(
    name="unified_frontiers",
    title="Unified memory over a run, beside a fixed split",
    build=build,
    add_arguments=add_arguments,
)
main = SCRIPT.main

if __name__ == "__main__":
    sys.exit(main())
