"""``kdalab lab stats``, ``generate`` and ``formats``: what traces are like, and made-up ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from kdalab.cli import lab_options as o
from kdalab.cli.lab_source import Source


def stats(
    source: Source,
    against: Annotated[
        str | None, typer.Option(help="A second trace, or a preset (chat-like, agent-like).")
    ] = None,
    as_json: o.JsonOpt = False,
) -> None:
    """Statistics of a trace, and beside them those of another or of a preset."""
    from rich.console import Console
    from rich.table import Table

    from kdalab.lab import report_of
    from kdalab.lab.generate import PRESETS
    from kdalab.lab.stats import trace_stats

    with o.known_errors():
        first = source.read()
        found = [trace_stats(first)]
        reports = [report_of(first)]
        if against is not None:
            preset = f"{against}:{found[0].requests}" if against in PRESETS else None
            other = Source(
                None if preset else against, preset, source.seed, share=source.share, gap=source.gap
            ).read()
            found.append(trace_stats(other))
            reports.append(report_of(other))
    if as_json:
        typer.echo(json.dumps([s.as_dict() for s in found], indent=2))
        return
    table = Table(title="Statistics")
    table.add_column("")
    for s in found:
        table.add_column(s.name, justify="right", overflow="fold")
    for cells in zip(*(s.rows() for s in found), strict=True):
        table.add_row(cells[0][0], *(value for _, value in cells))
    Console().print(table)
    for report in reports:
        o.print_report(report)


def generate(
    out: Annotated[Path, typer.Argument(help="The JSONL file to write.", show_default=False)],
    preset: Annotated[str, typer.Option(help="chat-like or agent-like.")] = "chat-like",
    requests: Annotated[int, typer.Option(min=1, max=100_000_000)] = 2_000,
    seed: o.SeedOpt = 0,
    shape: Annotated[
        str | None,
        typer.Option(help='Statistics to change, as JSON: \'{"systems": 3, "branch": 0.2}\'.'),
    ] = None,
) -> None:
    """Write a made-up trace with the statistics of a preset; the same seed gives the same file."""
    from kdalab.errors import KdalabError
    from kdalab.lab import generate as maker

    with o.known_errors():
        try:
            changes = json.loads(shape) if shape else {}
            if not isinstance(changes, dict):
                raise ValueError("not an object")
        except ValueError as error:
            raise KdalabError(f"--shape {shape!r} is not a JSON object: {error}") from None
        of = maker.changed(preset, changes)
        count = maker.write_jsonl(out, maker.generate(requests, of, seed), of.block_tokens)
    typer.echo(f"{out}: {count:,} requests, {preset}, seed {seed}, blocks of {of.block_tokens}")


def formats() -> None:
    """The formats of traces that are read."""
    from kdalab.lab import READERS

    for name, reader in READERS.items():
        typer.echo(f"{name:<12}{reader.title}")
