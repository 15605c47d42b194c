"""``kdalab replay``: a trace through the engine's own cache code."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from kdalab.cli import lab_options as o
from kdalab.cli.refuse import refuse
from kdalab.errors import KdalabError

if TYPE_CHECKING:
    from kdalab.cli.traces import Bar
    from kdalab.lab import ReplayResult, Requests
    from kdalab.lab.tuning import Tuned
    from kdalab.spec import ModelSpec


def command(
    trace: Annotated[
        str | None,
        typer.Argument(
            help="Mooncake JSONL or another format of `kdalab lab formats`, gzipped or not.",
            show_default=False,
        ),
    ] = None,
    model: Annotated[
        str, typer.Option(help="A preset (see `kdalab size --help`) or a config.json.")
    ] = "kimi-k3",
    budget: Annotated[
        str,
        typer.Option(
            "--memory",
            "--budget",
            help="Bytes for latent KV and checkpoints together: 256GiB, unlimited.",
        ),
    ] = "unlimited",
    checkpoints: Annotated[
        str | None,
        typer.Option(
            help="Radix: where to take them: every:N (tokens), leaf, leaf+branch, all, chunk:N, "
            "branch-first:N, tail-first:N, both:N; default every:4096.",
            show_default=False,
        ),
    ] = None,
    retention: Annotated[
        str | None,
        typer.Option(
            help="What is kept. Radix: lru, lru-path, marconi:ALPHA, each also with +cap:N states "
            "a path, or marconi:auto; default lru. Block: dense, 0 or N tokens, also after "
            "marconi:ALPHA+ or marconi:auto+; default 0.",
            show_default=False,
        ),
    ] = None,
    cache: Annotated[
        str, typer.Option(help="radix (SGLang's way) or block (vLLM's way).")
    ] = "radix",
    block: Annotated[
        str | None,
        typer.Option(
            help="Block cache: tokens of a block; default: the smallest that holds a state.",
            show_default=False,
        ),
    ] = None,
    unit: Annotated[
        str | None,
        typer.Option(
            help="Block cache: tokens of a hash; default: the trace's block.", show_default=False
        ),
    ] = None,
    mode: Annotated[str, typer.Option(help="Block cache: align, all or none.")] = "align",
    layout: Annotated[str, typer.Option(help="Block cache: padded or packed.")] = "padded",
    state_dtype: Annotated[
        str | None, typer.Option(help="Recurrent state's dtype; default: the model's.")
    ] = None,
    kv_dtype: Annotated[
        str | None, typer.Option(help="Latent KV's dtype; default: the model's.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first N requests.")] = None,
    max_bad_lines: Annotated[int, typer.Option(min=0, help="Unusable lines to skip.")] = 100,
    strict: Annotated[bool, typer.Option("--strict", help="Stop at the first bad line.")] = False,
    made_up: o.MadeUpOpt = None,
    seed: o.SeedOpt = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, not a table.")] = False,
) -> None:
    """Replay a trace and report honest hit rates: with the recurrent state in the account."""
    from kdalab.cli.replay_block import replay_block
    from kdalab.cli.traces import Bar, open_requests, parse_budget
    from kdalab.spec import resolve_model

    bad = 0 if strict else max_bad_lines
    try:
        spec = resolve_model(model).with_dtypes(state=state_dtype, kv=kv_dtype)
        budget_bytes = parse_budget(budget)
        options = (block, unit, mode, layout)
        if cache not in ("radix", "block"):
            raise KdalabError(f"cache {cache!r}; use radix or block")
        if cache == "radix" and options != (None, None, "align", "padded"):
            raise KdalabError("--block, --unit, --mode and --layout go with --cache block")
        if cache == "block" and checkpoints is not None:
            raise KdalabError(
                "--checkpoints goes with --cache radix; which states blocks keep is said by --mode "
                "and --retention"
            )
        with Bar(quiet=as_json) as bar:
            passes = 1 if budget_bytes is None and cache == "radix" else 2
            requests = open_requests(trace, made_up, seed, limit, bad, bar, passes)
            if cache == "block":
                show = replay_block(requests, spec, budget_bytes, retention or "0", *options, bar)
            else:
                show = _replay_radix(
                    requests,
                    spec,
                    checkpoints if checkpoints is not None else "every:4096",
                    budget_bytes,
                    retention or "lru",
                    bar,
                )
    except KdalabError as error:
        refuse(error)
    show(as_json, made_up is not None)


def _replay_radix(
    requests: Requests,
    spec: ModelSpec,
    checkpoints: str,
    budget: int | None,
    retention: str,
    bar: Bar,
) -> Callable[[bool, bool], None]:
    """Replay; returns what shows the result, as JSON or as a table, and made up or not."""
    from kdalab.cache import parse_placement
    from kdalab.lab import replay
    from kdalab.lab.marconi import tuned_retention

    placement = parse_placement(checkpoints)
    kept, tuned = tuned_retention(retention, requests, spec, placement, budget)
    result = replay(requests, spec, placement, budget, on_request=bar.on_request, retention=kept)

    def show(as_json: bool, made_up: bool) -> None:
        if as_json:
            extra = {} if tuned is None else {"tuned": asdict(tuned)}
            typer.echo(json.dumps({**result.as_dict(), **extra}, indent=2))
        else:
            _print(result, made_up)
            print_tuned(tuned)

    return show


def print_tuned(tuned: Tuned | None) -> None:
    """Print what the choice of alpha rests on, if there was one."""
    if tuned is None:
        return
    if not tuned.saved:
        typer.echo("Nothing was evicted, so alpha has nothing to choose: 0.")
        return
    plain, best = tuned.saved[0.0], tuned.saved[tuned.alpha]
    typer.echo(
        f"alpha {tuned.alpha:g} of {len(tuned.saved)} saves the most FLOPs in the "
        f"{tuned.window:,} requests after the first eviction (request {tuned.first_eviction:,}): "
        f"{best:.4g}, with alpha 0 {plain:.4g}."
    )


def _print(r: ReplayResult, made_up: bool) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from kdalab.cli.traces import print_notes
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
    print_notes(console, r, made_up)
