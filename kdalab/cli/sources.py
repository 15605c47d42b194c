"""``kdalab sources``: what to open in SGLang, vLLM and FLA, and whether it is still there."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kdalab.errors import KdalabError
from kdalab.sources import check_checkout, load_sources

app = typer.Typer(
    help="What to open in SGLang, vLLM and FLA, in which order; and what has moved since.",
    no_args_is_help=True,
)

MEANS = {
    "there": "where it was",
    "moved": "defined elsewhere",
    "mentioned": "used, but not defined",
    "gone": "nowhere",
}


@app.command("list")
def list_(
    system: Annotated[str, typer.Argument(help="fla, sglang or vllm; none for all")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="as JSON")] = False,
) -> None:
    """Print the reading list: name, file, why, and the file of KDALab that does the same."""
    systems, symbols = load_sources()
    if system and system not in systems:
        raise KdalabError(f"no system {system!r}; use one of {', '.join(systems)}")
    wanted = [s for s in symbols if system in ("", s.system)]
    if as_json:
        typer.echo(json.dumps([asdict(s) for s in wanted], indent=1))
        return
    console = Console()
    for key, about in systems.items():
        rows = [s for s in wanted if s.system == key]
        if not rows:
            continue
        console.print(f"[bold]{escape(about.title)}[/], {about.home}, version {about.seen}")
        for number, symbol in enumerate(rows, 1):
            console.print(f"{number:3} [bold]{escape(symbol.name)}[/]  {escape(symbol.why)}")
            console.print(f"    {symbol.file}   here: {symbol.ours}", style="dim", soft_wrap=True)
        console.print()


@app.command()
def check(
    path: Annotated[Path, typer.Argument(help="a checkout of SGLang, vLLM or FLA")],
    as_json: Annotated[bool, typer.Option("--json", help="as JSON")] = False,
) -> None:
    """Look every name of the list up in a local checkout. Exit code 1 if anything has moved."""
    system, found = check_checkout(path)
    if as_json:
        rows = [
            {"name": f.symbol.name, "was": f.symbol.file, "status": f.status,
             "places": list(f.places), "total": f.total}
            for f in found
        ]  # fmt: skip
        typer.echo(json.dumps({"system": system.key, "symbols": rows}, indent=1))
    else:
        typer.echo(f"{system.title}, against version {system.seen}: {path}")
        table = Table()
        table.add_column("name", overflow="fold")
        table.add_column("status", no_wrap=True)
        table.add_column("where", overflow="fold")
        for entry in found:
            more = f" and {entry.total - len(entry.places)} more" if entry.total > 3 else ""
            shown = entry.places[:1] if entry.status == "there" else entry.places
            where = "\n".join(shown) + (more if entry.status != "there" else "")
            table.add_row(escape(entry.symbol.name), entry.status, escape(where) or "-")
        Console().print(table)
        for status, means in MEANS.items():
            count = sum(f.status == status for f in found)
            if count:
                typer.echo(f"{count:3} {status}: {means}")
    if any(f.status != "there" for f in found):
        raise typer.Exit(1)
