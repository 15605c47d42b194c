"""Time to the first token by how much of the prompt is restored; measured on a CPU.

Redraw with your own machine's numbers:
kdalab bench engine --json > mine.json
python plot_scripts/plot_engine_ttft.py --data mine.json --out engine_ttft.svg
"""

from __future__ import annotations

import argparse
import re
import sys
from typing import TYPE_CHECKING

from kdalab.resources import resource_dir
from kdalab.viz.export import attach_table
from kdalab.viz.figure_words import figure_words
from kdalab.viz.measured import first_token_figure, machine_text, read_measured
from kdalab.viz.plot_script import PlotScript

if TYPE_CHECKING:
    import plotly.graph_objects as go

GROUP, AGAINST = "time to first token", ", against its tail alone"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--data", default=None, metavar="FILE",
        help="what kdalab bench engine --json printed; None: plot_scripts/data/engine.json",
    )  # fmt: skip


def build(args: argparse.Namespace) -> go.Figure:
    file = args.data or resource_dir("plot_scripts") / "data" / "engine.json"
    data = read_measured(file, "figures")
    words = figure_words("engine_ttft", args.lang)
    mine = {f["name"]: f for f in data["figures"] if f.get("group") == GROUP}
    names, taken, alone = [], [], []
    for name, figure in mine.items():
        if name.endswith(AGAINST):
            continue
        more = re.search(r"(\d+) more", name)
        key = "cold" if name == "cold" else "partial" if more else "full"
        names.append(words[key].format(more=more[1] if more else 0))
        taken.append(float(figure["value"]))
        ratio = mine.get(f"{name}{AGAINST}")
        alone.append(float(figure["value"]) / float(ratio["value"]) if ratio else None)
    note = re.search(r"[\d,]+", str(mine.get("cold", {}).get("note", "")))
    words["subtitle"] = words["subtitle"].format(
        tokens=note[0] if note else "?", machine=machine_text(data, words)
    )
    drawn = first_token_figure(
        names, taken, alone, words, theme_name=args.theme, width=args.width, height=args.height
    )
    rows = [
        [name.replace("<br>", " "), f"{t:,.1f}", "" if a is None else f"{a:,.1f}"]
        for name, t, a in zip(names, taken, alone, strict=True)
    ]
    return attach_table(drawn, [words[k] for k in ("case", "y", "alone")], rows)


SCRIPT = PlotScript(
    name="engine_ttft",
    title="Time to the first token by how much is restored",
    build=build,
    add_arguments=add_arguments,
)
main = SCRIPT.main

if __name__ == "__main__":
    sys.exit(main())
