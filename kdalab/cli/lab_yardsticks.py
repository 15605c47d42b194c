"""``kdalab lab agree`` and ``kdalab lab bounds``: what the lab's figures are measured against."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from kdalab.cli import lab_options as o
from kdalab.cli.lab_source import Source

if TYPE_CHECKING:
    from kdalab.lab.kv_only_agree import Agreement
    from kdalab.lab.yardsticks import Yardsticks


MODEL = Annotated[str, typer.Option(help="A preset (see `kdalab size --help`) or a config.json.")]


def agree_command(
    source: Source,
    model: MODEL = "kimi-k3",
    checkpoints: Annotated[
        str, typer.Option(help="Where the hybrid's are taken: every:N, leaf, leaf+branch, all.")
    ] = "leaf+branch",
    backend: Annotated[str, typer.Option(help="The peer's: python or cpp.")] = "python",
    jobs: Annotated[int, typer.Option(min=1, max=64, help="Processes, for both.")] = 1,
    as_json: o.JsonOpt = False,
) -> None:
    """KV-only hit rates beside kvcache-simulator's, and beside those of the hybrid model."""
    from kdalab.cache import parse_placement
    from kdalab.lab.kv_only_agree import agree
    from kdalab.spec import resolve_model

    with o.known_errors():
        requests = source.read()
        spec = resolve_model(model)
        found = agree(requests, spec, parse_placement(checkpoints), backend=backend, jobs=jobs)
    if as_json:
        typer.echo(json.dumps(found.as_dict(), indent=2))
    else:
        _print_agreement(found)


def bounds_command(
    source: Source,
    model: MODEL = "kimi-k3",
    budget: Annotated[
        str,
        typer.Option("--memory", "--budget", help="Bytes for latent KV and checkpoints together."),
    ] = "256GiB",
    checkpoints: Annotated[
        list[str] | None,
        typer.Option(help="A placement to show beside the bounds; may repeat.", show_default=False),
    ] = None,
    retention: Annotated[
        list[str] | None,
        typer.Option(
            help="A retention to show beside LRU; may repeat. lru-path without.", show_default=False
        ),
    ] = None,
    steps: Annotated[
        int, typer.Option(min=1, max=100_000, help="Of the search for the bound.")
    ] = 200,
    as_json: o.JsonOpt = False,
) -> None:
    """What any policy could restore under a budget at most, and the best schedule found."""
    from kdalab.lab.yardsticks import PLACEMENTS, RETENTIONS, yardsticks
    from kdalab.spec import resolve_model
    from kdalab.units import parse_bytes

    with o.known_errors():
        requests = source.read()
        spec = resolve_model(model)
        places, kept = checkpoints or PLACEMENTS, retention or RETENTIONS
        found = yardsticks(requests, spec, parse_bytes(budget), places, steps, kept)
    if as_json:
        typer.echo(json.dumps(found.as_dict(), indent=2))
    else:
        _print_bounds(found)


def _print_agreement(found: Agreement) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    console.print(escape(f"{found.trace}: {found.model}; hybrid: {found.placement}, LRU"))
    table = Table(box=None, pad_edge=False)
    for name in ("GiB", "blocks", "FIFO", "LRU", "clairvoyant", "differ", "hybrid", "over"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in found.rows:
        table.add_row(
            f"{row.budget / 2**30:,g}",
            f"{row.blocks:,}",
            *[_pair(row.ours[p], row.theirs.get(p)) for p in ("fifo", "lru", "clairvoyant")],
            f"{row.difference * 100:.3f}" if row.theirs else "-",
            "-" if row.hybrid is None else f"{row.hybrid * 100:.1f}",
            "-" if row.overstated is None else f"{row.overstated * 100:+.1f}",
        )
    top = _pair(found.ceiling, found.their_ceiling)
    over = f"{(found.ceiling - found.hybrid_ceiling) * 100:+.1f}"
    table.add_row("no limit", "", top, top, top, "", f"{found.hybrid_ceiling * 100:.1f}", over)
    console.print(table)
    if found.peer:
        console.print(
            f"Pairs: {found.peer} / ours, % of prompt tokens. "
            f"Largest difference: {found.difference * 100:.3f} points.",
            highlight=False,
        )
    else:
        console.print("kvcache-simulator is not installed: pip install 'kdalab[test]' to compare.")
    console.print(
        f"From request {found.first:,} of {found.requests:,} on, as the peer counts. FIFO, LRU "
        "and clairvoyant keep KV only. over: points by which their LRU exceeds the hybrid. "
        "-: too few bytes for the largest request and its state.",
        style="dim",
    )


def _pair(ours: float, theirs: float | None) -> str:
    return f"{ours * 100:.1f}" if theirs is None else f"{theirs * 100:.1f}/{ours * 100:.1f}"


def _print_bounds(found: Yardsticks) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from kdalab.units import format_bytes

    console = Console()
    budget = format_bytes(found.budget)
    console.print(escape(f"{found.trace}: {found.model}, budget {budget}"), highlight=False)
    table = Table(box=None, pad_edge=False)
    table.add_column("yardstick")
    table.add_column("tokens restored", justify="right", no_wrap=True)
    table.add_column("%", justify="right", no_wrap=True)

    def add(name: str, tokens: int) -> None:
        table.add_row(name, f"{tokens:,}", f"{tokens / found.input_tokens * 100:.2f}")

    # A request has a token left to compute: `lab replay` counts an exact repeat's last block too.
    add("known, a token left to compute (unlimited KV)", found.known)
    add(f"KV only, clairvoyant, {budget}", found.kv_only)
    add(f"[bold]proven upper bound, {budget}[/]", found.bound)
    add(f"[bold]best schedule found, {budget}[/]", found.found)
    add("gap between the two", found.gap)
    for row in found.placements:
        add(f"{row.placement}, unlimited memory", row.unlimited)
        add(f"{row.placement}, LRU, {budget}", row.lru)
    for other in found.policies:
        add(f"{other.name}, {budget}", other.tokens)
    console.print(table)
    console.print(
        f"Best found: {found.found_by}; it holds {format_bytes(found.peak_bytes)} at most. "
        "docs/yardsticks.md has the argument for the bound.",
        style="dim",
        markup=False,
        highlight=False,
    )
