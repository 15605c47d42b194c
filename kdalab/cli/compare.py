"""``kdalab compare``: one workload, both ways of caching, under the same bytes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kdalab.cli import lab_options as o
from kdalab.cli.refuse import refuse
from kdalab.errors import KdalabError

if TYPE_CHECKING:
    from rich.console import Console

    from kdalab.cli.traces import Bar
    from kdalab.lab.figures import Comparison
    from kdalab.lessons.both import Chapter


def command(
    context: typer.Context,
    workload: Annotated[
        str | None,
        typer.Argument(
            help="A named scenario (--list), or a trace: Mooncake JSONL or another format of "
            "`kdalab lab formats`, gzipped or not.",
            show_default=False,
        ),
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="Name the scenarios and stop.")] = False,
    budget: Annotated[
        str,
        typer.Option(
            "--memory", "--budget", help="Trace: bytes of one rank for each way: 256GiB, unlimited."
        ),
    ] = "256GiB",
    model: Annotated[str, typer.Option(help="Trace: a preset or a config.json.")] = "kimi-k3",
    tp: Annotated[int, typer.Option(min=1, help="Trace: tensor-parallel ranks.")] = 1,
    checkpoints: Annotated[
        str, typer.Option(help="Radix: where to take them (see `kdalab replay --help`).")
    ] = "leaf+branch",
    retention: Annotated[
        str, typer.Option(help="Radix: lru, lru-path, marconi:ALPHA or :auto; also with +cap:N.")
    ] = "lru",
    donate: Annotated[
        bool, typer.Option("--donate", help="Radix: slots become snapshots without a copy.")
    ] = False,
    block_retention: Annotated[
        str,
        typer.Option(
            help="Block: dense, 0 (reachable boundaries) or N tokens; also after marconi:ALPHA+ or "
            "marconi:auto+."
        ),
    ] = "0",
    block: Annotated[
        str | None,
        typer.Option(
            help="Block: tokens of a block; default: the smallest that holds a state.",
            show_default=False,
        ),
    ] = None,
    unit: Annotated[
        str | None,
        typer.Option(help="Block: tokens of a hash; default: the trace's.", show_default=False),
    ] = None,
    mode: Annotated[str, typer.Option(help="Block: align, all or none.")] = "align",
    layout: Annotated[str, typer.Option(help="Block: padded or packed.")] = "padded",
    device: Annotated[
        str, typer.Option(help="Trace: whose rates the time to the first token is counted by.")
    ] = "h100-sxm",
    flops: Annotated[
        float | None,
        typer.Option(
            help="Trace: FLOP/s that prefill reaches on one device; default 40 % of its peak.",
            show_default=False,
        ),
    ] = None,
    copy_bandwidth: Annotated[
        str | None,
        typer.Option(
            help="Trace: bytes/s of a copy on one device, reads and writes together: 3.35TB.",
            show_default=False,
        ),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first N requests.")] = None,
    max_bad_lines: Annotated[int, typer.Option(min=0, help="Unusable lines to skip.")] = 100,
    made_up: o.MadeUpOpt = None,
    seed: o.SeedOpt = 0,
    events: Annotated[
        bool, typer.Option("--events", help="Scenario: also print both event logs.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, not a table.")] = False,
) -> None:
    """Compare SGLang's way (radix tree) with vLLM's way (blocks) on the same requests."""
    from kdalab.cli.traces import Bar

    try:
        if list_:
            _list(as_json)
            return
        if made_up is None and not _is_trace(workload):
            _refuse_trace_options(context)
            _example(workload, events, as_json)
            return
        if events:
            raise KdalabError("--events goes with a named scenario: a trace has no event log")
        with Bar(quiet=as_json) as bar:
            found = _trace(
                workload, made_up, seed, limit, max_bad_lines, budget, model, tp, checkpoints,
                retention, donate, block_retention, block, unit, mode, layout, device, flops,
                copy_bandwidth, bar,
            )  # fmt: skip
    except KdalabError as error:
        refuse(error)
    if as_json:
        typer.echo(json.dumps(found.as_dict(), indent=2))
    else:
        show(found, made_up is not None)


def _refuse_trace_options(context: typer.Context) -> None:
    """A scenario has its own sizes: an option that it would not follow is refused by name."""
    ours = {"workload", "list_", "events", "as_json"}
    given = [
        " or ".join(option.opts)
        for option in context.command.params
        if option.name not in ours
        and getattr(context.get_parameter_source(option.name or ""), "name", "") == "COMMANDLINE"
    ]
    if given:
        raise KdalabError(
            f"{', '.join(given)}: only for a trace or --made-up N. A scenario brings its own "
            "memory, placement and sizes"
        )


def _is_trace(workload: str | None) -> bool:
    """A path, and no scenario's name: those have neither a dot nor a slash."""
    if workload is None:
        return False
    return any(mark in workload for mark in "./\\") or Path(workload).is_file()


def _list(as_json: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    from kdalab.lessons.both import examples, where

    if as_json:
        found = [{"name": n, "runs_on": where(n), "shows": text} for n, text in examples().items()]
        typer.echo(json.dumps(found, indent=2))
        return
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, style="dim")
    table.add_column()
    for name, sentence in examples().items():
        table.add_row(name, where(name), sentence)
    Console().print(table)


def _example(name: str | None, events: bool, as_json: bool) -> None:
    from kdalab.lessons.both import run_both

    if name is None:
        raise KdalabError("give a scenario (--list names them), a trace, or --made-up N")
    run = run_both(name, on_run=_running)
    if as_json:
        chapters = {"chapters": [asdict(c) for c in run.chapters]}
        typer.echo(json.dumps({**run.comparison.as_dict(), **chapters}, indent=2))
        return
    show(run.comparison)
    if events:
        _show_chapters(run.chapters)


def _running(way: str, run: int, runs: int) -> None:
    """One line on standard error before an engine begins: on a busy machine a run takes a while."""
    how = "timed" if run > 1 else "every rule checked after every step"
    typer.echo(f"run {run} of {runs}: {way} engine, {how}", err=True)


def _show_chapters(chapters: Sequence[Chapter]) -> None:
    """Both logs, one row a group of arrivals."""
    from rich.console import Console
    from rich.table import Table

    if not chapters:
        typer.echo("No engine ran, so there is no event log.")
        return
    table = Table(show_lines=True)
    for name in ("arrival", "radix", "block"):
        table.add_column(name)
    for c in chapters:
        table.add_row(", ".join(c.requests), "\n".join(c.radix), "\n".join(c.block))
    Console().print(table, markup=False)


def _trace(
    trace: str | None,
    made_up: str | None,
    seed: int,
    limit: int | None,
    max_bad: int,
    budget: str,
    model: str,
    tp: int,
    checkpoints: str,
    retention: str,
    donate: bool,
    block_retention: str,
    block: str | None,
    unit: str | None,
    mode: str,
    layout: str,
    device: str,
    flops: float | None,
    copy_bandwidth: str | None,
    bar: Bar,
) -> Comparison:
    from kdalab.cache import CacheMode, parse_placement
    from kdalab.cli.replay_block import parse_mode
    from kdalab.cli.traces import open_requests, parse_budget
    from kdalab.lab.block_replay import model_layout
    from kdalab.lab.compare import compare_trace
    from kdalab.lab.cost import cost_model
    from kdalab.lab.marconi import tuned_retention
    from kdalab.lab.marconi_block import tuned_block_retention
    from kdalab.spec import resolve_model
    from kdalab.units import parse_bytes, parse_tokens

    spec, nbytes = resolve_model(model), parse_budget(budget)
    placement = parse_placement(checkpoints)
    how = parse_mode(mode)
    size = parse_tokens(block) if block is not None else None
    fine = parse_tokens(unit) if unit is not None else None
    speed = parse_bytes(copy_bandwidth) if copy_bandwidth is not None else None
    cost = cost_model(device, flops, speed, tp)
    passes = 2 if nbytes is None else 3
    requests = open_requests(trace, made_up, seed, limit, max_bad, bar, passes)
    kept, _ = tuned_retention(retention, requests, spec, placement, nbytes)
    blocks = model_layout(spec, fine or requests.block_tokens, size, layout, tp)
    wanted = (fine or requests.block_tokens) if how is CacheMode.ALIGN else fine
    blocks_kept, _ = tuned_block_retention(
        block_retention, requests, spec, blocks, nbytes, wanted, how
    )
    return compare_trace(
        requests,
        spec,
        nbytes,
        placement,
        kept,
        cost,
        block=size,
        unit=fine,
        mode=how,
        layout=layout,
        block_retention=blocks_kept,
        donate=donate,
        tp_size=tp,
        on_request=bar.on_request,
    )


def show(found: Comparison, made_up: bool = False) -> None:
    """Print the table, then the first request that the two restore at different boundaries."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from kdalab.cli.traces import print_notes
    from kdalab.units import format_bytes, format_seconds

    budget = "unlimited" if found.budget_bytes is None else format_bytes(found.budget_bytes)
    table = Table(title=escape(f"{found.workload}: {found.model}, budget {budget}"), min_width=72)
    table.add_column(f"{found.requests:,} requests, {found.input_tokens:,} tokens")
    table.add_column("radix (SGLang's way)", justify="right")
    table.add_column("block (vLLM's way)", justify="right")

    def share(tokens: int) -> str:
        return f"{tokens:,} ({tokens / max(1, found.input_tokens):.1%})"

    def part(nbytes: int, of: int) -> str:
        return f"{format_bytes(nbytes)} ({nbytes / max(1, of):.1%})"

    pair = (found.radix, found.block)
    rows = [
        ("[bold]hit tokens (restored)[/]", [f"[bold]{share(w.hit_tokens)}[/]" for w in pair]),
        ("known tokens (KV)", [share(w.known_tokens) for w in pair]),
        ("replayed tokens", [share(w.replayed_tokens) for w in pair]),
        ("requests restored further", [f"{w.further:,}" for w in pair]),
        ("states written", [f"{w.states_written:,}" for w in pair]),
        ("states read back", [f"{w.states_read:,}" for w in pair]),
        ("copies", [f"{w.copies:,} ({format_bytes(w.copied_bytes)})" for w in pair]),
        ("held at the end", [format_bytes(w.held_bytes) for w in pair]),
        ("  of which padding", [part(w.padding_bytes, w.held_bytes) for w in pair]),
        ("  of which unfilled KV", [part(w.unfilled_bytes, w.held_bytes) for w in pair]),
        ("peak", [format_bytes(w.peak_bytes) for w in pair]),
        ("evicted states", [f"{w.evicted_states:,}" for w in pair]),
        ("evicted KV", [format_bytes(w.evicted_kv_bytes) for w in pair]),
    ]  # fmt: skip
    if any(w.skipped_states for w in pair):
        rows.append(("states skipped for want of room", [f"{w.skipped_states:,}" for w in pair]))
    times = [w.first_token for w in pair]
    if times[0] is not None and times[1] is not None:
        for name in ("mean", "median", "p95"):
            each = [format_seconds(getattr(t, name)) for t in times]
            rows.append((f"time to first token, {name}", each))
            runs = len(found.radix.first_token_runs)
            if runs > 1:
                spread = [_spread([getattr(t, name) for t in w.first_token_runs]) for w in pair]
                rows.append((f"  the median of {runs} runs, from", spread))
    for name, cells in rows:
        table.add_row(name, *cells)
    console = Console()
    console.print(table)
    for way in pair:
        console.print(f"{way.way}: {way.setup}", style="dim", markup=False)
    if found.first_token_is:
        console.print(f"Time to first token: {found.first_token_is}.", style="dim", markup=False)
    show_difference(console, found)
    print_notes(console, found, made_up)


def _spread(seconds: Sequence[float]) -> str:
    """From the least to the most, the unit once where both have the same."""
    from kdalab.units import format_seconds

    least, most = format_seconds(min(seconds)), format_seconds(max(seconds))
    number, _, unit = least.partition(" ")
    return f"{number if most.endswith(f' {unit}') else least} to {most}"


def show_difference(console: Console, found: Comparison) -> None:
    """Both reasons for the first request that the two ways restore at different boundaries."""
    from rich.table import Table

    first = found.first
    if first is None:
        console.print(f"Both restore all {found.requests:,} requests at the same boundaries.")
        return
    console.print(
        f"\nRestored at different boundaries: {found.requests - found.same:,} of "
        f"{found.requests:,} requests. The first: {first.request}, {first.n_tokens:,} tokens."
    )
    table = Table(show_header=True)
    table.add_column(f"radix: restore {first.radix_restore:,}")
    table.add_column(f"block: restore {first.block_restore:,}")
    table.add_row("\n".join(first.radix_why), "\n".join(first.block_why))
    console.print(table, markup=False)
