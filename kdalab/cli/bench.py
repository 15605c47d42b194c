"""``kdalab bench``: measure this machine and compare."""

from __future__ import annotations

import json
import math
import os
from dataclasses import asdict
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.table import Table

from kdalab.bench.cases import parse_shape
from kdalab.bench.compile import TARGETS, Compiled, compile_kernels
from kdalab.bench.gpu import bench_gpu_speed, require_gpu, speed_cases
from kdalab.bench.gpu_checks import Checked, Place, all_checks, run_checks
from kdalab.bench.kernels import (
    DEFAULT_SHAPES,
    QUICK_SHAPES,
    Rates,
    Row,
    bench_kernels,
    default_cases,
)
from kdalab.bench.timing import machine
from kdalab.errors import KdalabError

app = typer.Typer(help="Measure this machine and compare with others.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Measure this machine and compare with others."""


@app.command()
def kernels(
    shape: Annotated[
        list[str] | None,
        typer.Option(help="B,T,H,K,V of a prefill; may be given several times, and alone."),
    ] = None,
    repeats: Annotated[
        int | None, typer.Option(min=1, help="Timed rounds; default 5, quick 3.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Short prefills, a few seconds.")] = False,
    compile_: Annotated[
        bool, typer.Option("--compile", help="Instead: compile every Triton kernel for real GPUs.")
    ] = False,
    target: Annotated[
        list[str] | None, typer.Option(help=f"For --compile: {', '.join(TARGETS)}; default all.")
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print JSON with stable keys.")] = False,
) -> None:
    """Time the KDA ops beside their peers, float32 on the CPU; or compile the Triton kernels."""
    if target and not compile_:
        _refuse("--target belongs to --compile")
    if compile_:
        if shape or quick or repeats:
            _refuse("--compile takes --target and --json only")
        _compile(target or list(TARGETS), json_)
        return
    try:
        shapes = [parse_shape(s) for s in shape] if shape else None
    except KdalabError as error:
        _refuse(str(error))
    every = default_cases(QUICK_SHAPES if quick else DEFAULT_SHAPES)
    chosen = default_cases(shapes)[: len(shapes)] if shapes else every
    rates, rows = bench_kernels(chosen, repeats or (3 if quick else 5))
    if json_:
        out = {"machine": machine(), "rates": asdict(rates), "rows": [asdict(r) for r in rows]}
        typer.echo(json.dumps(out, indent=2))
        return
    console = Console()
    console.print(", ".join(f"{k} {v}" for k, v in machine().items()), highlight=False)
    console.print(
        f"This machine: {rates.flop / 1e9:.0f} GFLOP/s in matrix products, "
        f"{rates.nbytes / 1e9:.1f} GB/s copying (read plus written).\n"
        "Ratios: the first implementation's time over this one's; this time over what the least "
        "operations, and the least bytes, take at those rates.",
        highlight=False,
    )
    for one in dict.fromkeys((r.op, r.size) for r in rows):
        console.print(_table([r for r in rows if (r.op, r.size) == one]))


@app.command()
def cache(
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
    """Time the radix cache's lookup, insertion, locks and eviction; no tensor takes part."""
    from kdalab.bench import cache as bench

    sizes = nodes or ([1_000] if quick else bench.DEFAULT_NODES)
    lengths = tokens or (bench.DEFAULT_TOKENS[:3] if quick else bench.DEFAULT_TOKENS)
    rows = list(bench.bench_cache(sizes, lengths, repeats))
    if json_:
        plain = [{**asdict(r), "verdict": r.verdict} for r in rows]
        typer.echo(json.dumps({"machine": machine(), "rows": plain}, indent=2))
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


@app.command()
def engine(
    repeats: Annotated[
        int | None, typer.Option(min=1, help="Timed rounds; default 7, quick 3.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Smaller; a few seconds.")] = False,
    json_: Annotated[bool, typer.Option("--json", help="Print JSON with stable keys.")] = False,
) -> None:
    """Time to first token by hit, restore, donation and decode steps, on the tiny model."""
    from kdalab.bench.engine import bench_engine
    from kdalab.threads import use_one_thread

    use_one_thread()
    figures = bench_engine(quick, repeats)
    if json_:
        rows = [{**asdict(f), "met": f.met} for f in figures]
        typer.echo(json.dumps({"machine": machine(), "figures": rows}, indent=2))
        return
    console = Console()
    console.print(", ".join(f"{k} {v}" for k, v in machine().items()), highlight=False)
    for group in dict.fromkeys(f.group for f in figures):
        table = Table(title=group, title_justify="left", box=None, pad_edge=False)
        for name in ("what", "value", "unit", "aim", ""):
            table.add_column(name, justify="right" if name in ("value", "aim") else "left")
        for f in (f for f in figures if f.group == group):
            aim = "" if f.limit is None else f"<= {f.limit:g}{'' if f.met else ' MISSED'}"
            table.add_row(f.name, f"{f.value:.3g}", f.unit, aim, f.note)
        console.print(table)


@app.command()
def gpu(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List what would be done.")] = False,
    interpret: Annotated[
        bool, typer.Option("--interpret", help="The checks alone, in tiny, without a GPU.")
    ] = False,
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Measure speed even where a check fails.")
    ] = False,
    json_: Annotated[bool, typer.Option("--json", help="Print JSON with stable keys.")] = False,
) -> None:
    """Check every Triton kernel on this GPU, then time them beside fla-core (about 6 minutes)."""
    place = Place("cpu", tiny=True) if interpret else Place()
    if dry_run:
        for check in all_checks(place):
            typer.echo(f"check  {check.op}: {check.case or 'as it is'}, {check.dtype}")
        for case in [] if interpret else speed_cases():
            typer.echo(f"speed  {case.op}: {case.size}: {', '.join(case.names)}")
        return
    if interpret:
        os.environ["TRITON_INTERPRET"] = "1"  # before the kernels are imported
    else:
        try:
            require_gpu()
        except KdalabError as error:
            _refuse(str(error))
    log = Console(stderr=True)
    done = run_checks(
        all_checks(place),
        lambda i, n, c: log.print(f"{i + 1}/{n} {c.op}: {c.case}, {c.dtype}", highlight=False),
    )
    failed = [c for c in done if not c.passed]
    rates: Rates | None = None
    rows: list[Row] = []
    if not interpret and (anyway or not failed):
        log.print("measuring speed ...")
        rates, rows = bench_gpu_speed()
    if json_:
        checks = [{**asdict(c), "passed": c.passed, "worst": _finite(c.worst)} for c in done]
        out = {
            "machine": machine(),
            "checks": checks,
            "rates": None if rates is None else asdict(rates),
            "rows": [asdict(r) for r in rows],
        }
        typer.echo(json.dumps(out, indent=2))
    else:
        console = Console()
        console.print(", ".join(f"{k} {v}" for k, v in machine().items()), highlight=False)
        console.print(_check_table(done))
        for one in dict.fromkeys((r.op, r.size) for r in rows):
            console.print(_table([r for r in rows if (r.op, r.size) == one]))
        typer.echo(f"{len(done) - len(failed)} of {len(done)} checks passed")
    if failed:
        raise typer.Exit(1)


def _finite(x: float) -> float | None:
    return x if math.isfinite(x) else None


def _check_table(done: list[Checked]) -> Table:
    """One line an op: the worst of its cases in each dtype; failures in full."""
    table = Table(box=None, pad_edge=False)
    for name in ("op", "dtype", "cases", "worst", "limit", ""):
        table.add_column(name)
    for op, dtype in dict.fromkeys((c.op, c.dtype) for c in done):
        of = [c for c in done if (c.op, c.dtype) == (op, dtype)]
        worst = max(c.worst for c in of)
        wrong = [c for c in of if not c.passed]
        note = "; ".join(f"{c.case}: {c.error or f'{c.worst:.1e}'}" for c in wrong) or "passed"
        table.add_row(op, dtype, str(len(of)), f"{worst:.1e}", f"{of[0].limit:.0e}", note)
    return table


def _refuse(message: str) -> NoReturn:
    Console(stderr=True).print(f"kdalab bench: {message}", markup=False, highlight=False)
    raise typer.Exit(2)


def _table(rows: list[Row]) -> Table:
    table = Table(
        title=f"{rows[0].op}: {rows[0].size}", title_justify="left", box=None, pad_edge=False
    )
    table.add_column("implementation")
    for name in ("ms", "x first", "over ops", "over bytes", "error"):
        table.add_column(name, justify="right", no_wrap=True)
    for r in rows:
        name = f"{r.name} ({r.note})" if r.note else r.name
        if r.ms is None:
            table.add_row(name, *["-"] * 5)
            continue
        table.add_row(
            name,
            f"{r.ms:.3g}" if r.ms < 100 else f"{r.ms:.0f}",
            *(_ratio(x) for x in (r.times_baseline, r.over_operations, r.over_bytes)),
            "-" if r.error is None else f"{r.error:.1e}",
        )
    return table


def _ratio(x: float | None) -> str:
    return "-" if x is None else f"{x:.2f}" if x < 100 else f"{x:.0f}"


def _compile(targets: list[str], as_json: bool) -> None:
    try:
        compiled = compile_kernels(targets)
    except KdalabError as error:
        _refuse(str(error))
    problems = [r for r in compiled.rows if r.problem]
    if as_json:
        rows = [{**asdict(r), "problem": r.problem} for r in compiled.rows]
        typer.echo(json.dumps({"triton": compiled.triton, "rows": rows}, indent=2))
    else:
        Console().print(_compile_table(compiled))
        typer.echo(
            f"{len(compiled.rows)} built, {len(problems)} with a problem (Triton {compiled.triton})"
        )
    if problems or not compiled.rows:
        raise typer.Exit(1)


def _compile_table(compiled: Compiled) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("kernel", no_wrap=True)
    table.add_column("target")
    for name in ("registers", "spilled B", "shared B", "warps", "stages"):
        table.add_column(name, justify="right")
    table.add_column("")
    for r in compiled.rows:
        numbers = (r.registers, r.spill_bytes, r.shared_bytes, r.warps, r.stages)
        note = r.problem or (f"more shared memory than {r.target} has" if r.over_limit else "")
        table.add_row(r.kernel, r.target, *map(str, numbers), note)
    return table


if __name__ == "__main__":
    app()
