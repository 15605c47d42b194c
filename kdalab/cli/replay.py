"""``kdalab replay``: a trace through the engine's own cache code."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kdalab.errors import KdalabError

if TYPE_CHECKING:
    from kdalab.lab import ReplayResult, Trace


def command(
    trace: Annotated[
        str | None, typer.Argument(help="Mooncake JSONL, gzipped or not.", show_default=False)
    ] = None,
    model: Annotated[
        str, typer.Option(help="A preset (see `kdalab size --help`) or a config.json.")
    ] = "kimi-k3",
    budget: Annotated[
        str, typer.Option(help="Bytes for latent KV and checkpoints together: 256GiB, unlimited.")
    ] = "unlimited",
    checkpoints: Annotated[
        str, typer.Option(help="Where to take them: every:N (tokens), leaf, leaf+branch, all.")
    ] = "every:4096",
    state_dtype: Annotated[str | None, typer.Option(help="Of the recurrent state.")] = None,
    kv_dtype: Annotated[str | None, typer.Option(help="Of the latent KV.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first N requests.")] = None,
    max_bad_lines: Annotated[int, typer.Option(min=0, help="Unusable lines to skip.")] = 100,
    synthetic: Annotated[
        int, typer.Option(min=0, max=1_000_000, help="No file: replay N made-up requests instead.")
    ] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, not a table.")] = False,
) -> None:
    """Replay a trace and report honest hit rates: with the recurrent state in the account."""
    from kdalab.cache import parse_placement
    from kdalab.lab import replay
    from kdalab.spec import resolve_model

    placement = parse_placement(checkpoints)
    spec = resolve_model(model).with_dtypes(state=state_dtype, kv=kv_dtype)
    limit_bytes = _budget(budget)
    begin = time.perf_counter()
    requests = _read(trace, synthetic, limit, max_bad_lines, quiet=as_json)
    reading = time.perf_counter() - begin
    with _Bar("replaying", len(requests.requests), quiet=as_json) as bar:
        result = replay(requests, spec, placement, limit_bytes, on_request=bar.at)
    if as_json:
        typer.echo(json.dumps({**result.as_dict(), "read_seconds": reading}, indent=2))
    else:
        _print(result, requests, reading, synthetic > 0)


def _budget(text: str) -> int | None:
    from kdalab.units import parse_bytes

    return None if text.strip().lower() == "unlimited" else parse_bytes(text)


def _read(trace: str | None, synthetic: int, limit: int | None, max_bad: int, quiet: bool) -> Trace:
    from kdalab.lab import read_mooncake, write_synthetic

    if (trace is None) == (synthetic == 0):
        raise KdalabError("give a trace file, or --synthetic N for made-up requests; not both")
    if trace is None:
        with tempfile.TemporaryDirectory() as folder:
            return read_mooncake(
                write_synthetic(Path(folder) / f"synthetic-{synthetic}.jsonl", synthetic), limit
            )
    size = os.path.getsize(trace) if os.path.isfile(trace) else 0
    gzipped = trace.endswith(".gz")
    with _Bar("reading", size, quiet or gzipped) as bar:
        return read_mooncake(trace, limit, max_bad, on_bytes=bar.more)


class _Bar:
    """A progress bar on standard error, on a terminal only."""

    def __init__(self, what: str, total: int, quiet: bool) -> None:
        from rich.console import Console
        from rich.progress import Progress

        off = quiet or not sys.stderr.isatty()
        self.progress = Progress(console=Console(stderr=True), transient=True, disable=off)
        self.task = self.progress.add_task(what, total=total)
        self.seen = self.shown = 0

    def __enter__(self) -> _Bar:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def at(self, done: int) -> None:
        self.progress.update(self.task, completed=done)

    def more(self, count: int) -> None:
        self.seen += count
        if self.seen - self.shown > 1 << 18:
            self.shown = self.seen
            self.progress.update(self.task, completed=self.seen)


def _print(r: ReplayResult, trace: Trace, reading: float, synthetic: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    from kdalab.units import format_bytes

    budget = "unlimited" if r.budget_bytes is None else format_bytes(r.budget_bytes)
    table = Table(title=f"{r.trace}: {r.model}, {r.placement}, budget {budget}", min_width=64)
    table.add_column("")
    table.add_column("", justify="right")

    def share(tokens: int) -> str:
        return f"{tokens:,} ({tokens / r.input_tokens:.1%})"

    read_back = r.states_read / r.states_written if r.states_written else 0.0
    rows = [
        ("requests", f"{r.requests:,}"),
        ("prompt tokens", f"{r.input_tokens:,}"),
        ("[bold]restored (honest hit rate)[/]", f"[bold]{share(r.hit_tokens)}[/]"),
        ("latent KV known (KV-only hit rate)", share(r.known_tokens)),
        ("known text replayed", share(r.replayed_tokens)),
        ("new tokens computed", share(r.new_tokens)),
        ("checkpoints written", f"{r.states_written:,}"),
        ("  read at least once", f"{r.states_read:,} ({read_back:.1%})"),
        ("  restores", f"{r.reads:,}"),
        ("commits skipped for want of room", f"{r.skipped_commits:,}"),
        ("evicted: latent KV", format_bytes(r.evicted_kv_bytes)),
        ("evicted: checkpoints", format_bytes(r.evicted_state_bytes)),
        ("at the end: latent KV", format_bytes(r.kv_bytes)),
        ("at the end: checkpoints", format_bytes(r.state_bytes)),
        ("peak", format_bytes(r.peak_bytes)),
        ("time", f"{reading:.2f} s reading + {r.seconds:.2f} s replaying"),
    ]
    for name, value in rows:
        table.add_row(name, value)
    console = Console()
    console.print(table)
    console.print(
        f"Assumed: hits are whole blocks of {trace.block_tokens} tokens; output tokens have no "
        "ids in this form of trace and are not cached; requests run one after the other.",
        style="dim",
    )
    if synthetic:
        console.print("Made-up requests: see how it works, do not choose settings by them.")
    if r.skipped_lines:
        console.print(f"[yellow]{r.skipped_lines:,} lines skipped[/]; the first:")
        for line in r.skipped_examples:
            console.print(f"  {line}", markup=False)
