"""``kdalab replay``: a trace through the engine's own cache code."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kdalab.errors import KdalabError

if TYPE_CHECKING:
    from kdalab.lab import ReplayResult, Requests


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
        str,
        typer.Option(
            help="Where to take them: every:N (tokens), leaf, leaf+branch, all, chunk:N, "
            "branch-first:N, tail-first:N, both:N."
        ),
    ] = "every:4096",
    retention: Annotated[
        str, typer.Option(help="What is kept: lru, lru-path, either with +cap:N states a path.")
    ] = "lru",
    state_dtype: Annotated[
        str | None, typer.Option(help="Recurrent state's dtype; default: the model's.")
    ] = None,
    kv_dtype: Annotated[
        str | None, typer.Option(help="Latent KV's dtype; default: the model's.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first N requests.")] = None,
    max_bad_lines: Annotated[int, typer.Option(min=0, help="Unusable lines to skip.")] = 100,
    strict: Annotated[bool, typer.Option("--strict", help="Stop at the first bad line.")] = False,
    synthetic: Annotated[
        int, typer.Option(min=0, max=1_000_000, help="No file: replay N made-up requests instead.")
    ] = 0,
    seed: Annotated[int, typer.Option(help="Of the made-up requests.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, not a table.")] = False,
) -> None:
    """Replay a trace and report honest hit rates: with the recurrent state in the account."""
    from kdalab.cache import parse_placement, parse_retention
    from kdalab.lab import replay
    from kdalab.spec import resolve_model

    try:
        placement, kept = parse_placement(checkpoints), parse_retention(retention)
        spec = resolve_model(model).with_dtypes(state=state_dtype, kv=kv_dtype)
        budget_bytes = _budget(budget)
        with _Bar(quiet=as_json) as bar:
            if synthetic:
                requests = _made_up(trace, synthetic, seed, limit, bar)
            else:
                bad = 0 if strict else max_bad_lines
                requests = _file(trace, limit, bad, bar, passes=1 if budget_bytes is None else 2)
            result = replay(
                requests,
                spec,
                placement,
                budget_bytes,
                on_request=bar.on_request,
                retention=kept,
            )
    except KdalabError as error:
        typer.echo(f"Error: {error}", err=True)
        raise typer.Exit(2) from error
    if as_json:
        typer.echo(json.dumps(result.as_dict(), indent=2))
    else:
        _print(result, synthetic > 0)


def _budget(text: str) -> int | None:
    from kdalab.units import parse_bytes

    return None if text.strip().lower() == "unlimited" else parse_bytes(text)


def _made_up(trace: str | None, n: int, seed: int, limit: int | None, bar: _Bar) -> Requests:
    from kdalab.lab import synthetic_trace

    if trace is not None:
        raise KdalabError("give a trace file or --synthetic N, not both")
    requests = synthetic_trace(min(n, limit or n), seed)
    bar.expect_requests(len(requests.requests))
    return requests


def _file(trace: str | None, limit: int | None, bad: int, bar: _Bar, passes: int) -> Requests:
    from kdalab.lab import TraceFile, read_mooncake

    if trace is None:
        raise KdalabError("give a trace file, or --synthetic N for made-up requests")
    path = Path(trace)
    try:
        size = path.stat().st_size
        if not path.is_file() and not path.is_dir():
            return read_mooncake(path, limit, bad)  # a pipe: it cannot be read twice
    except (OSError, ValueError):
        size = 0  # reading it will say why
    bar.expect_bytes(size * passes)
    return TraceFile(path, limit, bad, on_bytes=bar.on_bytes)


class _Bar:
    """A progress bar on standard error, on a terminal only."""

    def __init__(self, quiet: bool) -> None:
        from rich.console import Console
        from rich.progress import Progress

        off = quiet or not sys.stderr.isatty()
        self.progress = Progress(console=Console(stderr=True), transient=True, disable=off)
        self.task = self.progress.add_task("replaying", total=None)
        self.in_bytes = False
        self.passed = self.position = 0  # bytes of the passes that are over, and of this one

    def __enter__(self) -> _Bar:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def expect_requests(self, total: int) -> None:
        self.progress.update(self.task, total=total)

    def expect_bytes(self, total: int) -> None:
        self.in_bytes = True
        self.progress.update(self.task, total=total)

    def on_request(self, done: int) -> None:
        if not self.in_bytes:
            self.progress.update(self.task, completed=done)

    def on_bytes(self, position: int) -> None:
        if position < self.position:
            self.passed += self.position
        if position != self.position:
            self.position = position
            self.progress.update(self.task, completed=self.passed + position)


def _print(r: ReplayResult, made_up: bool) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from kdalab.units import format_bytes, format_seconds

    budget = "unlimited" if r.budget_bytes is None else format_bytes(r.budget_bytes)
    table = Table(
        title=escape(f"{r.trace}: {r.model}, {r.placement}, budget {budget}"),
        show_header=False,
        min_width=64,
    )
    table.add_column()
    table.add_column(justify="right")

    def share(tokens: int) -> str:
        return f"{tokens:,} ({tokens / r.input_tokens:.1%})"

    rows = [
        ("requests", f"{r.requests:,}"),
        ("prompt tokens", f"{r.input_tokens:,}"),
        ("[bold]restored (honest hit rate)[/]", f"[bold]{share(r.hit_tokens)}[/]"),
        ("latent KV known (KV-only hit rate)", share(r.known_tokens)),
        ("known text replayed", share(r.replayed_tokens)),
        ("new tokens computed", share(r.new_tokens)),
        ("checkpoints written", f"{r.states_written:,}"),
        (
            "  read at least once",
            f"{r.states_read_at_least_once:,} ({r.states_read_share:.1%})",
        ),
        ("  restores", f"{r.reads:,}"),
        ("commits skipped for want of room", f"{r.skipped_commits:,}"),
        ("evicted: latent KV", f"{format_bytes(r.evicted_kv_bytes)} in {r.evicted_pages:,} pages"),
        (
            "evicted: checkpoints",
            f"{format_bytes(r.evicted_state_bytes)} in {r.evicted_states:,}",
        ),
        ("at the end: latent KV", format_bytes(r.kv_bytes)),
        ("at the end: checkpoints", format_bytes(r.state_bytes)),
        ("peak", format_bytes(r.peak_bytes)),
        ("time, reading included", format_seconds(r.seconds)),
    ]
    for name, value in rows:
        table.add_row(name, value)
    console = Console()
    console.print(table)
    console.print(f"Assumed: {'; '.join(r.assumptions)}.", style="dim")
    if made_up:
        console.print("Made-up requests: see how it works, do not choose settings by them.")
    if r.skipped_lines:
        console.print(f"[yellow]{r.skipped_lines:,} lines skipped[/]; the first:")
        for line in r.skipped_examples:
            console.print(f"  {line}", markup=False)
