"""The KDA kernels under the machine's roof, and their speed beside others'; measured on a CPU.

Redraw with your own machine's numbers:
kdalab bench kernels --json > mine.json
python plot_scripts/plot_kernel_roofline.py --data mine.json --out kernel_roofline.svg
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from kdalab.resources import resource_dir
from kdalab.viz.export import attach_table
from kdalab.viz.figure_words import figure_words
from kdalab.viz.measured import machine_text, read_measured, roofline_figure, roofline_points
from kdalab.viz.plot_script import PlotScript

if TYPE_CHECKING:
    import plotly.graph_objects as go

BATCHED, COPYING = "its matrix products alone, batched", "copying the bytes"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--data", default=None, metavar="FILE",
        help="what kdalab bench kernels --json printed; None: plot_scripts/data/kernels.json",
    )  # fmt: skip
    parser.add_argument(
        "--ops", nargs="+", default=["prefill", "decode"], metavar="OP", help="which of its ops"
    )


def build(args: argparse.Namespace) -> go.Figure:
    file = args.data or resource_dir("plot_scripts") / "data" / "kernels.json"
    data = read_measured(file, "rates", "rows")
    data["rows"] = [r for r in data["rows"] if r.get("op") in args.ops]
    points, words = roofline_points(data, file), figure_words("kernel_roofline", args.lang)
    words["subtitle"] = words["subtitle"].format(machine=machine_text(data, words))
    said = {BATCHED: words["batched"], COPYING: words["copying"]}
    points = [p | {"name": said.get(p["name"], p["name"])} for p in points]
    figure = roofline_figure(
        points, data["rates"], words, theme_name=args.theme, width=args.width, height=args.height
    )
    rows = [
        [p["op"], p["size"], p["name"], f"{p['ms']:,.4g}", f"{p['gflops']:,.3g}",
         f"{p['intensity']:.3g}"]
        for p in points
    ]  # fmt: skip
    return attach_table(figure, [words[k] for k in ("op", "size", "name", "ms", "y", "x")], rows)


SCRIPT = PlotScript(
    name="kernel_roofline",
    title="The KDA kernels under the machine's roof",
    build=build,
    add_arguments=add_arguments,
)
main = SCRIPT.main

if __name__ == "__main__":
    sys.exit(main())
