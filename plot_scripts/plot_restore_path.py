"""The path of a restore: what is known, where the state is, what is replayed, what is new.

python plot_scripts/plot_restore_path.py --scenario fan-out --out restore_path.svg
"""

from __future__ import annotations

import argparse
import sys

from kdalab.lessons import RESTORE, play, scenario
from kdalab.phrases import say_html
from kdalab.viz.drawing import Drawing
from kdalab.viz.figure_words import figure_words
from kdalab.viz.plot_script import PlotScript
from kdalab.viz.prompt import prompt_svg
from kdalab.viz.svg import TokenAxis


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--scenario", choices=tuple(RESTORE), default="fan-out", help="prompts of the restore page"
    )


def build(args: argparse.Namespace) -> Drawing:
    lesson = scenario(args.scenario)
    run = play(lesson)
    step = max(i for i, s in enumerate(run.steps) if s.kind == "Matched")
    longest = max(len(t) for t in run.texts.values()) + max(
        p.max_new_tokens for p in lesson.prompts
    )
    picture = prompt_svg(
        run.view(step),
        run.texts,
        TokenAxis.for_tokens(longest),
        spacing=run.scenario.spacing,
        page_tokens=run.page_tokens,
        focus=run.steps[step].request,
    )
    rows = []
    for view in run.view(step).requests.values():
        n = len(run.texts[view.name])
        path = (n, view.token_match, view.restore, view.token_match - view.restore)
        rows.append((view.name, *(f"{x:,}" for x in (*path, n - view.token_match))))
    words = figure_words("restore_path", args.lang)
    columns = tuple(words[k] for k in ("request", "tokens", "match", "restore", "replay", "new"))
    return Drawing(words["title"], (("", say_html(args.lang, picture)),), columns, tuple(rows))


SCRIPT = PlotScript(
    name="restore_path",
    title="The path of a restore: known, restorable, replayed, new",
    build=build,
    add_arguments=add_arguments,
)
main = SCRIPT.main

if __name__ == "__main__":
    sys.exit(main())
