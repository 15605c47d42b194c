"""``kdalab plot``: draw one figure, or all of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from kdalab.cli.refuse import refuse
from kdalab.errors import KdalabError
from kdalab.resources import load_script, plot_script_names
from kdalab.viz.export import FORMATS, browser_session
from kdalab.words import LANGUAGES

CONTEXT_SETTINGS = {"ignore_unknown_options": True}
"""What is no option here goes to the figure, so ``--`` may be left out."""


def command(
    name: Annotated[
        str | None, typer.Argument(help="The figure's name; see --list.", show_default=False)
    ] = None,
    options: Annotated[
        list[str] | None,
        typer.Argument(
            help="Options of the figure's own: --models kimi-k3. See them with -- --help.",
            show_default=False,
        ),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Draw every figure.")] = False,
    out: Annotated[Path, typer.Option("--out", help="A folder, or for one figure a file.")] = Path(
        "figures"
    ),
    format: Annotated[
        str | None,
        typer.Option("--format", help=f"{', '.join(FORMATS)}. Default: --out's ending, else html."),
    ] = None,
    theme: Annotated[str, typer.Option("--theme", help="light or dark.")] = "light",
    lang: Annotated[str, typer.Option("--lang", help="en, zh or ko.")] = "en",
    list_: Annotated[bool, typer.Option("--list", help="List the figures and stop.")] = False,
) -> None:
    """Draw a figure into a file: html and json need no browser; svg, png and pdf need Chromium."""
    try:
        if list_:
            _print_list()
            return
        names = _choose(name, every)
        if lang not in LANGUAGES:
            raise KdalabError(f"unknown language {lang!r}; use one of {', '.join(LANGUAGES)}")
        if format is not None and format not in FORMATS:
            raise KdalabError(f"unknown figure format {format!r}; use one of {', '.join(FORMATS)}")
        suffix = out.suffix.lstrip(".").lower()
        if suffix.isalnum() and not out.is_dir() and suffix not in FORMATS:
            raise KdalabError(
                f"--out {out} ends in .{suffix}, which is no figure format; use one of "
                f"{', '.join(FORMATS)}, or a folder whose name has no ending"
            )
        if every and out.suffix.lstrip(".") in FORMATS:
            raise KdalabError(f"--all writes several files, so --out must be a folder, not {out}")
        kind = format or (out.suffix.lstrip(".") if out.suffix.lstrip(".") in FORMATS else "html")
        shared = ["--out", str(out), "--theme", theme, "--lang", lang]
        shared += ["--format", format] if format else []
        with browser_session([kind]):
            statuses = [load_script(n).main([*shared, *(options or [])]) for n in names]
    except KdalabError as error:
        refuse(error)
    if any(statuses):
        raise typer.Exit(max(statuses))


def _choose(name: str | None, every: bool) -> list[str]:
    if every and name:
        raise KdalabError(f"--all draws every figure; leave out {name!r} or --all")
    if every:
        return plot_script_names()
    if name:
        return [name]
    raise KdalabError(f"name a figure or use --all; figures: {', '.join(plot_script_names())}")


def _print_list() -> None:
    table = Table(box=None, pad_edge=False)
    table.add_column("figure", style="bold", no_wrap=True)
    table.add_column("what it shows")
    for name in plot_script_names():
        doc = (load_script(name).__doc__ or "").strip()
        table.add_row(name, doc.splitlines()[0] if doc else "")
    Console().print(table)
