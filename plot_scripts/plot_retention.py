"""Retention policies on one trace: tokens restored, and tokens known but computed again.

python plot_scripts/plot_retention.py --trace TRACE.jsonl --memory 8GiB --out retention.svg
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from kdalab.lessons import figure_trace, hits_by_policy
from kdalab.spec import PRESETS
from kdalab.units import format_bytes, parse_bytes, parse_tokens
from kdalab.viz.export import attach_table
from kdalab.viz.figure_words import figure_words, trace_words
from kdalab.viz.plot_script import PlotScript
from kdalab.viz.score_bars import policy_hits_figure

if TYPE_CHECKING:
    import plotly.graph_objects as go


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default="kimi-linear-48b", help=", ".join(PRESETS))
    parser.add_argument("--memory", default="12GiB", help="for latent KV and states")
    parser.add_argument("--interval", default="8192", help="vLLM's retention interval, tokens")
    parser.add_argument("--alpha", type=float, default=1.0, help="Marconi's weight of work saved")


def build(args: argparse.Namespace) -> go.Figure:
    trace = figure_trace(args.trace, args.requests, args.made_up)
    memory, words = parse_bytes(args.memory), figure_words("retention", args.lang)
    blocks = f"cache=block unit={trace.block_tokens} interval="
    interval = parse_tokens(args.interval)
    settings = {
        "dense": f"{blocks}dense",
        "zero": f"{blocks}0",
        "every": f"{blocks}{interval}",
        "lru": "retention=lru",
        "path": "retention=lru-path",
        "marconi": f"retention=marconi:{args.alpha:g}",
    }
    found = hits_by_policy(trace, args.model, memory, settings)
    names = [words[n].format(interval=interval, alpha=args.alpha) for n in found]
    figure = policy_hits_figure(
        names,
        [hit for _, hit, _, _ in found.values()],
        [known for _, _, known, _ in found.values()],
        title=words["title"],
        subtitle=words["subtitle"].format(
            trace=trace_words(words, trace.name, len(trace.requests), args.trace),
            memory=format_bytes(memory),
            model=args.model,
            total=next(iter(found.values()))[3],
        ),
        series=(words["hit"], words["replayed"]),
        axis=words["y"],
        theme_name=args.theme,
        height=args.height,
    )
    figure.update_layout(
        width=args.width,
        legend={"orientation": "h", "x": 0, "y": -0.2, "yanchor": "top"},
        margin={"b": 120},
    )
    figure.update_yaxes(tickformat=",d")
    rows = [
        [name, setup, f"{hit:,}", f"{hit / total:.1%}", f"{known - hit:,}"]
        for name, (setup, hit, known, total) in zip(names, found.values(), strict=True)
    ]
    columns = [words[k] for k in ("policy", "setup", "hit", "share", "replayed")]
    return attach_table(figure, [c.replace("<br>", " ") for c in columns], rows)


SCRIPT = PlotScript(
    name="retention",
    title="Retention policies on one trace",
    build=build,
    add_arguments=add_arguments,
    requests=400,
)
main = SCRIPT.main

if __name__ == "__main__":
    sys.exit(main())
