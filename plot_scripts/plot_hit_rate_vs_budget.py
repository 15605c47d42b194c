"""Hit rates over the memory budget: counted with latent KV alone, and what can be restored.

python plot_scripts/plot_hit_rate_vs_budget.py --trace TRACE.jsonl --model kimi-k3
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from kdalab.lessons import figure_trace, hit_rates_over_budgets
from kdalab.spec import PRESETS, StateKind, resolve_model
from kdalab.units import format_bytes, parse_bytes
from kdalab.viz.export import attach_table
from kdalab.viz.figure_words import figure_words, trace_words
from kdalab.viz.lines import Line, lines_figure
from kdalab.viz.palette import SERIES_COLOURS, SERIES_DASHES, SERIES_MARKERS, kind_style
from kdalab.viz.plot_script import PlotScript

if TYPE_CHECKING:
    import plotly.graph_objects as go

GIB = 2**30


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default="kimi-linear-48b", help=", ".join(PRESETS))
    parser.add_argument("--budget-from", default="1GiB", help="the smallest budget")
    parser.add_argument("--budget-to", default="256GiB", help="the largest; in doublings between")
    parser.add_argument(
        "--checkpoints",
        nargs="+",
        default=["leaf+branch", "leaf", "every:4096", "every:16384"],
        help="placements, as in kdalab replay",
    )


def build(args: argparse.Namespace) -> go.Figure:
    trace = figure_trace(args.trace, args.requests, args.made_up)
    budgets = [parse_bytes(args.budget_from)]
    while budgets[-1] * 2 <= parse_bytes(args.budget_to):
        budgets.append(budgets[-1] * 2)
    model = resolve_model(args.model)
    found = hit_rates_over_budgets(trace, model, budgets, args.checkpoints)
    words = figure_words("hit_rate_vs_budget", args.lang)
    x = [b / GIB for b in found.budgets]
    kv = kind_style(StateKind.MLA_KV)
    lines = [Line(words["kv-only"], x, found.kv_only, kv.colour, symbol=kv.marker, width=3)]
    for i, (name, shares) in enumerate(found.honest.items()):
        points = [(a, b) for a, b in zip(x, shares, strict=True) if b is not None]
        state = kind_style(StateKind.KDA_RECURRENT).colour
        lines.append(
            Line(
                words["honest"].format(placement=name),
                [p[0] for p in points],
                [p[1] for p in points],
                state if i == 0 else SERIES_COLOURS[i - 1],
                SERIES_DASHES[i % len(SERIES_DASHES)],
                SERIES_MARKERS[i % len(SERIES_MARKERS)],
            )
        )
    words["subtitle"] = words["subtitle"].format(
        trace=trace_words(words, trace.name, len(trace.requests), args.trace), model=model.name
    )
    figure = lines_figure(lines, words, theme_name=args.theme, width=args.width, height=args.height)
    columns = [words["x"], words["kv-only"], *found.honest]
    rows = [
        [format_bytes(b), f"{found.kv_only[i]:.1%}"]
        + ["" if s[i] is None else f"{s[i]:.1%}" for s in found.honest.values()]
        for i, b in enumerate(found.budgets)
    ]
    return attach_table(figure, columns, rows)


SCRIPT = PlotScript(
    name="hit_rate_vs_budget",
    title="Hit rates over the memory budget, with and without the state in the account",
    build=build,
    add_arguments=add_arguments,
    requests=1200,
)
main = SCRIPT.main

if __name__ == "__main__":
    sys.exit(main())
