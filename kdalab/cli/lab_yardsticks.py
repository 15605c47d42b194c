"""``kdalab lab agree`` and ``kdalab lab bounds``: what the lab's figures are measured against."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from kdalab.errors import KdalabError

if TYPE_CHECKING:
    from kdalab.lab import Requests
    from kdalab.lab.kv_only_agree import Agreement
    from kdalab.lab.yardsticks import Yardsticks


TRACE = Annotated[
    str | None,
    typer.Argument(
        help="Mooncake JSONL or another format of `kdalab lab formats`, gzipped or not.",
        show_default=False,
    ),
]
MODEL = Annotated[str, typer.Option(help="A preset (see `kdalab size --help`) or a config.json.")]
LIMIT = Annotated[int | None, typer.Option(min=1, help="Only the first N requests.")]
SYNTHETIC = Annotated[
    int, typer.Option(min=0, max=1_000_000, help="No file: N made-up requests instead.")
]
SEED = Annotated[int, typer.Option(help="Of the made-up requests.")]
AS_JSON = Annotated[bool, typer.Option("--json", help="Print JSON, not a table.")]


def agree_command(
    trace: TRACE = None,
    model: MODEL = "kimi-k3",
    checkpoints: Annotated[
        str, typer.Option(help="Where the hybrid's are taken: every:N, leaf, leaf+branch, all.")
    ] = "leaf+branch",
    backend: Annotated[str, typer.Option(help="The peer's: python or cpp.")] = "python",
    jobs: Annotated[int, typer.Option(min=1, max=64, help="Processes, for both.")] = 1,
    limit: LIMIT = None,
    synthetic: SYNTHETIC = 0,
    seed: SEED = 0,
    as_json: AS_JSON = False,
) -> None:
    """KV-only hit rates beside kvcache-simulator's, and beside those of the hybrid model."""
    from kdalab.cache import parse_placement
    from kdalab.lab.kv_only_agree import agree
    from kdalab.spec import resolve_model

    requests = read(trace, limit, synthetic, seed)
    spec = resolve_model(model)
    found = agree(requests, spec, parse_placement(checkpoints), backend=backend, jobs=jobs)
    if as_json:
        typer.echo(json.dumps(found.as_dict(), indent=2))
    else:
        _print_agreement(found)


def bounds_command(
    trace: TRACE = None,
    model: MODEL = "kimi-k3",
    budget: Annotated[
        str,
        typer.Option("--memory", "--budget", help="Bytes for latent KV and checkpoints together."),
    ] = "256GiB",
    checkpoints: Annotated[
        list[str] | None,
        typer.Option(help="A placement to show beside the bounds; may repeat.", show_default=False),
    ] = None,
    steps: Annotated[
        int, typer.Option(min=1, max=100_000, help="Of the search for the bound.")
    ] = 200,
    limit: LIMIT = None,
    synthetic: SYNTHETIC = 0,
    seed: SEED = 0,
    as_json: AS_JSON = False,
) -> None:
    """What any policy could restore under a budget at most, and the best schedule found."""
    from kdalab.lab.yardsticks import PLACEMENTS, yardsticks
    from kdalab.spec import resolve_model
    from kdalab.units import parse_bytes

    requests, spec = read(trace, limit, synthetic, seed), resolve_model(model)
    found = yardsticks(requests, spec, parse_bytes(budget), checkpoints or PLACEMENTS, steps)
    if as_json:
        typer.echo(json.dumps(found.as_dict(), indent=2))
    else:
        _print_bounds(found)


def read(trace: str | None, limit: int | None, synthetic: int, seed: int) -> Requests:
    """The trace that the options name, in memory.

    Raises:
        KdalabError: none named, or both; a file that cannot be read.
    """
    from kdalab.cli.traces import open_any
    from kdalab.lab import synthetic_trace
    from kdalab.lab.request import MAX_BAD_LINES

    if (trace is None) == (not synthetic):
        raise KdalabError("give a trace file, or --synthetic N for made-up requests; not both")
    if trace is None:
        return synthetic_trace(min(synthetic, limit or synthetic), seed)
    return open_any(trace, limit, MAX_BAD_LINES).load()


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

    add("known from earlier prompts (unlimited KV)", found.known)
    add(f"KV only, clairvoyant, {budget}", found.kv_only)
    add(f"[bold]proven upper bound, {budget}[/]", found.bound)
    add(f"[bold]best schedule found, {budget}[/]", found.found)
    add("gap between the two", found.gap)
    for row in found.placements:
        add(f"{row.placement}, unlimited memory", row.unlimited)
        add(f"{row.placement}, LRU, {budget}", row.lru)
    console.print(table)
    console.print(
        f"The schedule holds {format_bytes(found.peak_bytes)} at most and knows the future. "
        "docs/yardsticks.md has the argument for the bound.",
        style="dim",
    )
