"""``kdalab bench cache``: the radix tree's and the block cache's own time."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from kdalab.bench.blocks import BlockTiming

LEGEND = (
    "us: median of the calls. limit, goal: the most that is allowed, and what is aimed at, in us. "
    "meets: the better of the two that the median keeps to, or missed. -: nothing was promised."
)


def command(
    nodes: Annotated[
        list[int] | None, typer.Option(help="Nodes of the tree; may repeat.", show_default=False)
    ] = None,
    tokens: Annotated[
        list[int] | None, typer.Option(help="Tokens of the prompt; may repeat.", show_default=False)
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Calls a median is taken over.")] = 50,
    quick: Annotated[bool, typer.Option("--quick", help="Small trees, a second or two.")] = False,
    json_: Annotated[bool, typer.Option("--json", help="Print JSON with stable keys.")] = False,
) -> None:
    """Time the radix cache and, beside vLLM's, the block cache; no tensor takes part."""
    from kdalab.bench import cache as bench
    from kdalab.bench.blocks import TOKENS, block_timings
    from kdalab.bench.timing import machine

    sizes = nodes or ([1_000] if quick else bench.DEFAULT_NODES)
    lengths = tokens or (bench.DEFAULT_TOKENS[:3] if quick else bench.DEFAULT_TOKENS)
    rows = list(bench.bench_cache(sizes, lengths, repeats))
    blocks = block_timings(repeats=2 if quick else 7, n_tokens=TOKENS)
    if json_:
        plain = [{**asdict(r), "verdict": r.verdict} for r in rows]
        block_rows = [{**asdict(b), "verdict": b.verdict} for b in blocks]
        found = {"machine": machine(), "rows": plain, "block_rows": block_rows}
        typer.echo(json.dumps(found, indent=2))
        return
    table = Table(box=None, pad_edge=False)
    table.add_column("operation", no_wrap=True)
    for name in ("nodes", "tokens", "us", "limit", "goal", "meets"):
        table.add_column(name, justify="right", no_wrap=True)
    for r in rows:
        ends = [f"{v:,.0f}" if v is not None else "-" for v in (r.limit_us, r.goal_us)]
        sized = (f"{r.nodes:,}", f"{r.tokens:,}" if r.tokens else "-")
        table.add_row(r.operation, *sized, f"{r.median_us:,.1f}", *ends, r.verdict)
    console = Console()
    console.print(", ".join(f"{k} {v}" for k, v in machine().items()), highlight=False)
    console.print(table)
    _print_blocks(console, blocks)
    console.print(LEGEND, style="dim", highlight=False)


def _print_blocks(console: Console, blocks: list[BlockTiming]) -> None:
    """The block cache's times beside vLLM's."""
    from kdalab.bench.blocks import TOKENS

    console.print(f"\nBlock cache, a prompt of {TOKENS:,} tokens, 1 attention and 3 state groups:")
    table = Table(box=None, pad_edge=False)
    table.add_column("operation", no_wrap=True)
    for name in ("block", "unit", "ms", "vLLM 0.33, ms", "meets"):
        table.add_column(name, justify="right", no_wrap=True)
    for b in blocks:
        theirs = f"{b.vllm_ms:,.2f}" if b.vllm_ms is not None else "-"
        cells = (f"{b.block:,}", f"{b.unit:,}", f"{b.ms:,.3f}")
        table.add_row(b.what, *cells, theirs, b.verdict)
    console.print(table)
    console.print(
        "vLLM's figures: a 2-core AMD EPYC, least of two runs, xxhash for hashing.\n", style="dim"
    )
