"""``kdalab replay --cache block``: the same trace through the block cache."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from kdalab.errors import KdalabError

if TYPE_CHECKING:
    from kdalab.cache import CacheMode
    from kdalab.cli.traces import Bar
    from kdalab.lab import Requests
    from kdalab.lab.block_replay import BlockReplayResult
    from kdalab.spec import ModelSpec


def replay_block(
    requests: Requests,
    spec: ModelSpec,
    budget: int | None,
    retention: str,
    block: str | None,
    unit: str | None,
    mode: str,
    layout: str,
    bar: Bar,
) -> Callable[[bool, bool], None]:
    """Replay; returns what shows the result, as JSON or as a table, and made up or not.

    Raises:
        KdalabError: options that do not go together; the message says which.
    """
    from kdalab.cli.replay import print_tuned
    from kdalab.lab.block_replay import block_config, model_layout, replay_blocks
    from kdalab.lab.marconi_block import tuned_block_retention
    from kdalab.units import parse_tokens

    how = parse_mode(mode)
    fine = parse_tokens(unit) if unit is not None else requests.block_tokens
    if fine < 1 or fine % requests.block_tokens:
        raise KdalabError(
            f"hashes of {fine:,} tokens; the trace names blocks of {requests.block_tokens}, so use "
            "a multiple of that"
        )
    size = parse_tokens(block) if block is not None else None
    blocks = model_layout(spec, fine, size, layout)
    wanted = fine if how.value == "align" or unit is not None else None
    kept, tuned = tuned_block_retention(retention, requests, spec, blocks, budget, wanted, how)
    config = block_config(requests, blocks, budget, wanted, how, kept)
    result = replay_blocks(requests, config, layout=blocks, on_request=bar.on_request)
    result.model, result.budget_bytes = spec.name, budget

    def show(as_json: bool, made_up: bool) -> None:
        if as_json:
            extra = {} if tuned is None else {"tuned": asdict(tuned)}
            typer.echo(json.dumps({**result.as_dict(), **extra}, indent=2))
        else:
            _print(result, made_up)
            print_tuned(tuned)

    return show


def parse_mode(text: str) -> CacheMode:
    """A cache mode by name; KdalabError lists the known ones."""
    from kdalab.cache import CacheMode

    try:
        return CacheMode(text.strip().lower())
    except ValueError:
        known = ", ".join(m.value for m in CacheMode)
        raise KdalabError(f"mode {text!r}; use one of {known}") from None


def _print(r: BlockReplayResult, made_up: bool) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from kdalab.cli.traces import print_notes
    from kdalab.units import format_bytes, format_seconds

    budget = "unlimited" if r.budget_bytes is None else format_bytes(r.budget_bytes)
    title = f"{r.trace}: {r.model}, blocks of {r.block_tokens:,}, hashes of {r.unit_tokens:,}"
    table = Table(
        title=escape(f"{title}, {r.mode}, {r.layout}, retention {r.retention}, budget {budget}"),
        show_header=False,
        min_width=64,
    )
    table.add_column()
    table.add_column(justify="right")

    def share(tokens: int) -> str:
        return f"{tokens:,} ({tokens / r.input_tokens:.1%})"

    waste = r.padding_bytes / r.held_bytes if r.held_bytes else 0.0
    rows = [
        ("requests", f"{r.requests:,}"),
        ("prompt tokens", f"{r.input_tokens:,}"),
        ("[bold]restored (honest hit rate)[/]", f"[bold]{share(r.hit_tokens)}[/]"),
        ("KV known (KV-only hit rate)", share(r.known_tokens)),
        ("known text replayed", share(r.replayed_tokens)),
        ("new tokens computed", share(r.new_tokens)),
        (
            "state blocks written",
            f"{r.states_written:,} (in {r.state_groups} groups)",
        ),
        ("  restores", f"{r.reads:,}"),
        (
            "copies before a forward",
            f"{r.copies:,} ({r.state_copies:,} of states, {format_bytes(r.copied_bytes)})",
        ),
        ("forwards", f"{r.steps:,}"),
        ("evicted: KV blocks", f"{r.evicted_kv_blocks:,}"),
        ("evicted: state blocks", f"{r.evicted_state_blocks:,}"),
        ("a block", format_bytes(r.block_bytes)),
        ("at the end", f"{format_bytes(r.held_bytes)} in {r.held_blocks:,} blocks"),
        ("  of which padding", f"{format_bytes(r.padding_bytes)} ({waste:.1%})"),
        ("  of which unfilled KV", format_bytes(r.unfilled_bytes)),
        ("peak", format_bytes(r.peak_bytes)),
        ("time, reading included", format_seconds(r.seconds)),
    ]
    for name, value in rows:
        table.add_row(name, value)
    console = Console()
    console.print(table)
    print_notes(console, r, made_up)
