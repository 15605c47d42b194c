"""Who owns which state slot over time: copied on write, frozen, donated, cached.

python plot_scripts/plot_slot_ownership.py --strategy extra_buffer --out slot_ownership.svg
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from kdalab.lessons import SHARING_STRATEGIES, play_sharing
from kdalab.phrases import say
from kdalab.viz.export import attach_table
from kdalab.viz.figure_words import figure_words
from kdalab.viz.ownership import Tenure, ownership_figure
from kdalab.viz.plot_script import PlotScript

if TYPE_CHECKING:
    import plotly.graph_objects as go


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--strategy",
        choices=SHARING_STRATEGIES,
        default="extra_buffer",
        help="how a running request leaves checkpoints",
    )
    parser.add_argument("--slots", type=int, default=12, help="state slots in all")


def build(args: argparse.Namespace) -> go.Figure:
    found = play_sharing(args.strategy, args.slots)
    run, words = found.run, figure_words("slot_ownership", args.lang)
    requests = list(run.texts)
    names = [words["slot"].format(n=i) for i in range(len(found.slots[0]))]
    if not found.one_pool:
        active = sum(s.name.startswith("active") for s in found.slots[0])
        names = [words["active-slot"].format(n=i) for i in range(active)]
        names += [words["checkpoint"].format(n=i) for i in range(len(found.slots[0]) - active)]
    tenures = []
    for place in range(len(names)):
        start = 0
        course = [
            (s.role, s.owner, s.tokens if s.role == "cached" else 0)
            for s in (step[place] for step in found.slots)
        ]
        for i in range(1, len(course) + 1):
            if i < len(course) and course[i] == course[start]:
                continue
            role, owner, tokens = course[start]
            if role != "free":
                index = requests.index(owner) if owner else -1
                text = f"{tokens:,}" if index < 0 else owner
                tenures.append(Tenure(place, start, i, index, role, text))
            start = i
    words["subtitle"] = words["subtitle"].format(strategy=args.strategy)
    figure = ownership_figure(
        names,
        tenures,
        requests,
        [say(args.lang, s.sentence) for s in run.steps],
        words,
        theme_name=args.theme,
        width=args.width,
        height=args.height,
    )
    rows = [
        [names[t.slot], requests[t.owner] if t.owner >= 0 else words["cache"], words[t.role],
         str(t.start), str(t.end)]
        for t in tenures
    ]  # fmt: skip
    return attach_table(figure, [words[k] for k in ("y", "owner", "role", "from", "to")], rows)


SCRIPT = PlotScript(
    name="slot_ownership",
    title="Who owns which state slot over time",
    build=build,
    add_arguments=add_arguments,
)
main = SCRIPT.main

if __name__ == "__main__":
    sys.exit(main())
