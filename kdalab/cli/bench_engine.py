"""``kdalab bench engine``: what a hit, a restore, a donation and a decode step cost."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

LEGEND = "aim: the most that is allowed, in the row's unit; MISSED where the value is above it."


def command(
    repeats: Annotated[
        int | None, typer.Option(min=1, help="Timed rounds; default 7, quick 3.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Smaller; a few seconds.")] = False,
    json_: Annotated[bool, typer.Option("--json", help="Print JSON with stable keys.")] = False,
) -> None:
    """Time to first token by hit, restore, donation and decode steps, on the tiny model."""
    from kdalab.bench.engine import bench_engine
    from kdalab.bench.timing import machine
    from kdalab.threads import use_one_thread

    use_one_thread()
    figures = bench_engine(quick, repeats)
    if json_:
        rows = [{**asdict(f), "met": f.met} for f in figures]
        typer.echo(json.dumps({"machine": machine(), "figures": rows}, indent=2))
        return
    console = Console()
    console.print(", ".join(f"{k} {v}" for k, v in machine().items()), highlight=False)
    for group in dict.fromkeys(f.group for f in figures):
        table = Table(title=group, title_justify="left", box=None, pad_edge=False)
        for name in ("what", "value", "unit", "aim", "note"):
            table.add_column(name, justify="right" if name in ("value", "aim") else "left")
        for f in (f for f in figures if f.group == group):
            aim = "" if f.limit is None else f"<= {f.limit:g}{'' if f.met else ' MISSED'}"
            table.add_row(f.name, f"{f.value:.3g}", f.unit, aim, f.note)
        console.print(table)
        if any(f.limit is not None for f in figures if f.group == group):
            console.print(LEGEND, style="dim", highlight=False)
