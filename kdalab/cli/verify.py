"""``kdalab verify``: the project's claims, tried here and now."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from kdalab.verify.claim import Claim


def command(
    cases: Annotated[
        int, typer.Option(min=1, max=100_000, help="Random cases for each claim.")
    ] = 200,
    seed: Annotated[int, typer.Option(min=0, max=2**32, help="Seed of all random choices.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, not a table.")] = False,
) -> None:
    """Check that restored equals recomputed, and more. Exit code 0 when every claim holds."""
    claims = _collect(cases, seed, quiet=as_json)
    if as_json:
        typer.echo(json.dumps({"seed": seed, "claims": [c.as_dict() for c in claims]}, indent=2))
    else:
        _print_table(claims, seed)
    if any(c.failed for c in claims):
        raise typer.Exit(1)


def _collect(cases: int, seed: int, quiet: bool) -> list[Claim]:
    from rich.console import Console
    from rich.progress import Progress

    from kdalab.threads import use_one_thread
    from kdalab.verify.groups import GROUPS

    use_one_thread()
    on_screen = sys.stderr.isatty()
    claims: list[Claim] = []
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=quiet or not on_screen) as bar:
        task = bar.add_task("", total=cases)

        def show(what: str, done: int, total: int) -> None:
            bar.update(task, description=what, completed=done, total=total)

        for group in GROUPS:
            if not quiet and not on_screen:  # a log gets a line, a terminal a bar
                print(f"{group.title} ...", file=sys.stderr, flush=True)
            show(group.title, 0, cases)
            claims += group.claims(cases, seed, show)
    return claims


def _print_table(claims: list[Claim], seed: int) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"Claims, tried with seed {seed}")
    table.add_column("claim", overflow="fold")
    table.add_column("cases", justify="right")
    table.add_column("worst", justify="right")
    table.add_column("allowed", justify="right")
    table.add_column("measured as")
    table.add_column("result")
    for c in claims:
        if c.skipped:
            table.add_row(c.name, "-", "-", "-", c.skipped, "[yellow]skipped[/]")
            continue
        result = "[green]pass[/]" if c.passed else "[bold red]FAIL[/]"
        measured = c.unit + (f"; {c.note}" if c.note else "")
        table.add_row(c.name, f"{c.cases:,}", _number(c.worst), _number(c.limit), measured, result)
    console = Console()
    console.print(table)
    tried = [c for c in claims if not c.skipped]
    passed = sum(c.passed for c in tried)
    console.print(f"{passed} of {len(tried)} claims hold; {len(claims) - len(tried)} skipped.")


def _number(value: float) -> str:
    """Two digits, or five where the measured and the allowed lie close to each other and to 1."""
    if value == 0:
        return "0"
    return f"{value:.5g}" if 0.1 <= abs(value) < 1e4 else f"{value:.1e}"
