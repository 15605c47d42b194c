"""``kdalab bench ui``: how soon the pages open and answer, in a real browser."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from kdalab.cli.refuse import refuse
from kdalab.errors import KdalabError


def command(
    pages: Annotated[
        str, typer.Option("--pages", help="Slugs, separated by commas; all without.")
    ] = "",
    steps_per_page: Annotated[
        int, typer.Option(min=1, max=1_000, help="Steps that a page's median is taken over.")
    ] = 10,
    sessions: Annotated[
        int, typer.Option(min=1, max=64, help="Browser windows that step at the same time.")
    ] = 8,
    steps: Annotated[
        int, typer.Option(min=1, max=1_000_000, help="Of all sessions together.")
    ] = 1_000,
    json_: Annotated[bool, typer.Option("--json", help="Print JSON with stable keys.")] = False,
) -> None:
    """Start the hub and drive Chromium through it: paint, page change, steps, memory."""
    from kdalab.bench.timing import cpu_name
    from kdalab.bench.ui import Row, bench_ui
    from kdalab.units import format_bytes

    chosen = [name.strip() for name in pages.split(",") if name.strip()]
    try:
        rows = bench_ui(chosen, steps_per_page, sessions, steps)
    except KdalabError as error:
        refuse(error)
    if json_:
        shown = [asdict(r) | {"met": r.met} for r in rows]
        typer.echo(json.dumps({"cpu": cpu_name(), "rows": shown}, indent=2))
        return

    def said(value: float | None, unit: str) -> str:
        if value is None:
            return "-"
        if unit == "B":
            return format_bytes(int(value))
        return f"{value:.2f} s" if value >= 1 else f"{value * 1000:.0f} ms"

    def cells(r: Row) -> tuple[str, str, str, str]:
        goal = f"at most {said(r.goal, r.unit)}" if r.goal is not None else ""
        return r.what, said(r.value, r.unit), goal, {True: "yes", False: "no", None: ""}[r.met]

    table = Table(box=None, pad_edge=False)
    for name, side in (("what", "left"), ("measured", "right"), ("goal", "left"), ("met", "left")):
        table.add_column(name, justify="right" if side == "right" else "left", no_wrap=True)
    for row in rows:
        table.add_row(*cells(row))
    console = Console()
    console.print(f"{cpu_name()}, the hub and headless Chromium together on it", highlight=False)
    console.print(table)
