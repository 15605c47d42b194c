"""The radix tree that the first requests of a trace leave, with its states and tombstones.

python plot_scripts/plot_radix_tree.py --trace TRACE.jsonl --requests 8 --out radix_tree.svg
"""

from __future__ import annotations

import argparse
import sys

from kdalab.cache import parse_placement
from kdalab.errors import KdalabError
from kdalab.lessons import figure_trace, trace_tree
from kdalab.phrases import say_html
from kdalab.spec import PRESETS, resolve_model
from kdalab.units import format_bytes
from kdalab.viz.drawing import Drawing
from kdalab.viz.figure_words import figure_words, trace_words
from kdalab.viz.plot_script import PlotScript
from kdalab.viz.svg import TokenAxis
from kdalab.viz.tree import tree_svg

MOST = 24


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default="kimi-linear-48b", help=", ".join(PRESETS))
    parser.add_argument("--checkpoints", default="leaf", help="placement, as in kdalab replay")


def build(args: argparse.Namespace) -> Drawing:
    if args.requests > MOST:
        raise KdalabError(f"{args.requests} requests in one tree; use 1 to {MOST}")
    trace = figure_trace(args.trace, args.requests, args.made_up)
    model = resolve_model(args.model)
    found = trace_tree(trace, model, parse_placement(args.checkpoints))
    words = figure_words("radix_tree", args.lang)
    picture = tree_svg(
        found.view,
        {},
        TokenAxis(found.longest, 40, 820),
        page_tokens=found.page_tokens,
        page_bytes=found.page_bytes,
        state_bytes=found.state_bytes,
    )
    nodes = found.view.nodes.values()
    caption = words["caption"].format(
        trace=trace_words(words, trace.name, len(trace.requests), args.trace),
        placement=args.checkpoints,
        nodes=len(nodes),
        states=sum(not n.is_tombstone for n in nodes),
        page=found.page_tokens,
        one=format_bytes(found.state_bytes),
        longest=found.longest,
    )
    rows = tuple(
        (r.name, *(f"{x:,}" for x in (r.tokens, r.match, r.restore, r.match - r.restore)))
        for r in found.rows
    )
    columns = tuple(words[k] for k in ("request", "tokens", "match", "restore", "replay"))
    lines = tuple((line, "") for line in caption.split("\n"))
    picture = say_html(args.lang, picture)
    return Drawing(words["title"], (*lines[:-1], (lines[-1][0], picture)), columns, rows)


SCRIPT = PlotScript(
    name="radix_tree",
    title="The radix tree that a trace leaves",
    build=build,
    add_arguments=add_arguments,
    requests=10,
    made_up="few-systems",
)
main = SCRIPT.main

if __name__ == "__main__":
    sys.exit(main())
