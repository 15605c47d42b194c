"""``kdalab bench lab``: sweeps and replays of traces, beside kvcache-simulator."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table


def command(
    trace: Annotated[
        Path | None,
        typer.Option(exists=True, help="Mooncake JSONL; a made-up one without.", dir_okay=False),
    ] = None,
    requests: Annotated[
        int, typer.Option(min=0, max=10_000_000, help="Of the agents; 0 leaves them out.")
    ] = 46_000,
    tokens: Annotated[int, typer.Option(help="Of an agent's request, on average.")] = 118_000,
    repeats: Annotated[int, typer.Option(min=1, help="Runs a median is taken over.")] = 3,
    quick: Annotated[bool, typer.Option("--quick", help="Small traces, some seconds.")] = False,
    json_: Annotated[bool, typer.Option("--json", help="Print JSON with stable keys.")] = False,
) -> None:
    """Time KV-only sweeps beside kvcache-simulator, a day of agents, and replays for a slider."""
    from kdalab.bench import lab as bench
    from kdalab.bench.timing import cpu_name
    from kdalab.units import format_bytes

    sizes = {"requests": 300, "repeats": 1, "made_up": 1_000} if quick else {}
    words = {"requests": requests, "tokens": tokens, "repeats": repeats, **sizes}
    rows = bench.bench_lab(trace, **words)
    if json_:
        typer.echo(json.dumps({"cpu": cpu_name(), "rows": [asdict(r) for r in rows]}, indent=2))
        return
    table = Table(box=None, pad_edge=False)
    table.add_column("what")
    for name in ("time", "peak memory"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("target")
    table.add_column("met", no_wrap=True)
    for r in rows:
        table.add_row(
            r.what,
            f"{r.seconds:.2f} s" if r.seconds >= 1 else f"{r.seconds * 1000:.0f} ms",
            format_bytes(r.peak_rss) if r.peak_rss else "-",
            r.target,
            "" if r.met is None else "yes" if r.met else "no",
        )
    console = Console()
    console.print(f"{cpu_name()}, times are medians of {words['repeats']}", highlight=False)
    console.print(table)
