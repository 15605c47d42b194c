"""Every event of one request, in order, at the tokens that it is about.

python plot_scripts/plot_event_timeline.py --scenario edit --request B --out event_timeline.svg
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from kdalab.errors import KdalabError
from kdalab.lessons import RESTORE, play, scenario
from kdalab.phrases import say
from kdalab.viz.event_rows import EventRow, event_rows_figure
from kdalab.viz.export import attach_table
from kdalab.viz.figure_words import figure_words
from kdalab.viz.plot_script import PlotScript

if TYPE_CHECKING:
    import plotly.graph_objects as go

KINDS = {
    "Matched": "known",
    "Replayed": "replayed",
    "Computed": "computed",
    "Decoded": "decoded",
    "CopiedOnWrite": "restored",
    "Snapshotted": "state",
    "Donated": "state",
    "Inserted": "state",
    "FellBack": "state",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--scenario", choices=tuple(RESTORE), default="fan-out", help="prompts of the restore page"
    )
    parser.add_argument("--request", default="B", help="its letter")


def build(args: argparse.Namespace) -> go.Figure:
    lesson = scenario(args.scenario)
    run = play(lesson)
    requests = list(run.texts)
    if args.request not in requests:
        raise KdalabError(f"no request {args.request!r}; use one of {', '.join(requests)}")
    words = figure_words("event_timeline", args.lang)
    rows: list[EventRow] = []
    at, n = 0, len(run.texts[args.request])
    for index, event in enumerate(run.events):
        if event.request != args.request:
            continue
        fields: dict[str, Any] = event.as_dict()
        start, end = _span(event.name, fields, at)
        at = end if event.name in ("Replayed", "Computed", "Decoded") else at
        said = say(args.lang, event.sentence())
        if event.name == "Decoded" and rows and rows[-1].name.startswith(event.name):
            first = rows.pop()
            rows.append(EventRow(first.index, "Decoded ...", said, "decoded", first.start, end))
            continue
        kind = KINDS.get(event.name, "other")
        rows.append(EventRow(index, event.name, said, kind, start, end))
    words["subtitle"] = words["subtitle"].format(
        request=args.request, scenario=args.scenario, spacing=run.scenario.spacing
    )
    figure = event_rows_figure(
        rows,
        n,
        words,
        request=requests.index(args.request),
        theme_name=args.theme,
        width=args.width,
        height=max(args.height, 250 + 25 * len(rows)),
    )
    table = [[str(r.index), r.name, f"{r.start:,}", f"{r.end:,}", r.said] for r in rows]
    return attach_table(
        figure, [words[k] for k in ("number", "event", "from", "to", "said")], table
    )


def _span(name: str, fields: dict[str, Any], at: int) -> tuple[int, int]:
    """Tokens [start, end) that an event is about; what has no place stands where the request is."""
    if name == "Matched":
        return 0, fields["token_match"]
    if name in ("Replayed", "Computed"):
        return fields["start"], fields["end"]
    if name == "Decoded":
        return fields["position"], fields["position"] + 1
    if name == "CopiedOnWrite":
        return 0, fields["boundary"]
    place = fields.get("boundary", fields.get("restore", at))
    return place, place


SCRIPT = PlotScript(
    name="event_timeline",
    title="Every event of one request",
    build=build,
    add_arguments=add_arguments,
)
main = SCRIPT.main

if __name__ == "__main__":
    sys.exit(main())
