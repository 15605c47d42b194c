"""What every plot script shares: the options, where the file goes, and how errors are told."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kdalab.errors import KdalabError
from kdalab.viz.drawing import Drawing, write_drawing
from kdalab.viz.export import FORMATS, write_figure
from kdalab.viz.palette import THEMES
from kdalab.words import LANGUAGES

if TYPE_CHECKING:
    import plotly.graph_objects as go

MADE_UP = ("chat-like", "agent-like", "few-systems")
"""Traces that ``kdalab.lessons.figure_trace`` makes up."""


@dataclass(frozen=True, slots=True)
class PlotScript:
    """One figure that can be drawn from a command line.

    ``name`` is the file's name without ending, ``title`` one line for ``--help`` and lists,
    ``build`` makes the figure from parsed options, or a :class:`~kdalab.viz.drawing.Drawing` where
    the figure is a picture; ``add_arguments`` adds the script's own.
    """

    name: str
    title: str
    build: Callable[[argparse.Namespace], go.Figure | Drawing]
    add_arguments: Callable[[argparse.ArgumentParser], None] | None = None
    requests: int | None = None
    """For a figure of a trace: how many requests are taken; adds ``--trace`` and ``--requests``."""
    made_up: str = "chat-like"

    def parser(self) -> argparse.ArgumentParser:
        """All options with visible defaults."""
        parser = argparse.ArgumentParser(
            prog=f"plot_{self.name}.py",
            description=self.title,
            formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        )
        parser.add_argument(
            "--out",
            type=Path,
            default=Path("figures"),
            help="a folder, or a file whose ending is the format",
        )
        parser.add_argument(
            "--format",
            choices=FORMATS,
            default=None,
            help="html and json need no browser; None takes the ending of --out, else html",
        )
        parser.add_argument("--theme", choices=tuple(THEMES), default="light", help="colours")
        parser.add_argument(
            "--lang", choices=tuple(LANGUAGES), default="en", help="language of titles and labels"
        )
        parser.add_argument(
            "--width", type=int, default=1120, help="pixels; pictures have their own"
        )
        parser.add_argument("--height", type=int, default=630, help="pixels")
        if self.requests is not None:
            parser.add_argument(
                "--trace", default=None, metavar="FILE",
                help="a trace in any format that kdalab lab reads; None: one that is made up",
            )  # fmt: skip
            parser.add_argument(
                "--requests", type=int, default=self.requests, help="of the trace, from its start"
            )
            parser.add_argument(
                "--made-up", choices=MADE_UP, default=self.made_up,
                help="which trace is made up without --trace",
            )  # fmt: skip
        if self.add_arguments is not None:
            self.add_arguments(parser)
        return parser

    def target(self, out: Path, kind: str | None) -> Path:
        """The file to write for ``--out`` and ``--format``."""
        if out.suffix.lstrip(".").lower() in FORMATS:
            return out
        return out / f"{self.name}.{kind or 'html'}"

    def main(self, argv: Sequence[str] | None = None) -> int:
        """Draw and write the figure; print its path. Returns the exit status, 2 for bad input."""
        args = self.parser().parse_args(argv)
        try:
            if not (1 <= args.width <= 8000 and 1 <= args.height <= 8000):
                raise KdalabError(
                    f"figure of {args.width} x {args.height} pixels; use 1 to 8,000 each way"
                )
            file = self.target(args.out, args.format)
            figure = self.build(args)
            if isinstance(figure, Drawing):
                kind = args.format or file.suffix.lstrip(".").lower()
                written = write_drawing(figure, file, kind, theme_name=args.theme, lang=args.lang)
            else:
                written = write_figure(
                    figure, file, format=args.format, title=self.title, theme_name=args.theme,
                    lang=args.lang,
                )  # fmt: skip
        except KdalabError as error:
            print(f"{self.parser().prog}: {error}", file=sys.stderr)
            return 2
        print(written)
        return 0
