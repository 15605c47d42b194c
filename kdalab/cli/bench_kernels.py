"""``kdalab bench kernels``: the ops beside their peers, or compiled for real GPUs."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from kdalab.bench.compile import TARGETS
from kdalab.cli.bench_show import timings
from kdalab.cli.refuse import refuse
from kdalab.errors import KdalabError

if TYPE_CHECKING:
    from kdalab.bench.cases import Case
    from kdalab.bench.compile import Compiled


def command(
    shape: Annotated[
        list[str] | None,
        typer.Option(help="B,T,H,K,V of a prefill; may be given several times, and alone."),
    ] = None,
    repeats: Annotated[
        int | None, typer.Option(min=1, help="Timed rounds; default 5, quick 3.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Tiny inputs: seconds, and rough ratios.")
    ] = False,
    compile_: Annotated[
        bool, typer.Option("--compile", help="Instead: compile every Triton kernel for real GPUs.")
    ] = False,
    target: Annotated[
        list[str] | None, typer.Option(help=f"For --compile: {', '.join(TARGETS)}; default all.")
    ] = None,
    solve: Annotated[
        bool, typer.Option("--solve", help="Instead: errors of three ways to invert I + Akk.")
    ] = False,
    json_: Annotated[bool, typer.Option("--json", help="Print JSON with stable keys.")] = False,
) -> None:
    """Time the KDA ops beside their peers, float32 on the CPU; or compile the Triton kernels."""
    from kdalab.bench.cases import parse_shape
    from kdalab.bench.kernels import bench_kernels, default_cases, quick_cases
    from kdalab.bench.timing import machine

    if solve:
        if shape or quick or repeats or compile_ or target:
            refuse("--solve takes --json only")
        _solve(json_)
        return
    if target and not compile_:
        refuse("--target belongs to --compile")
    if compile_:
        if shape or quick or repeats:
            refuse("--compile takes --target and --json only")
        _compile(target or list(TARGETS), json_)
        return
    try:
        shapes = [parse_shape(s) for s in shape] if shape else None
    except KdalabError as error:
        refuse(error)
    every = quick_cases() if quick else default_cases()
    chosen = default_cases(shapes)[: len(shapes)] if shapes else every
    rates, rows = bench_kernels(chosen, repeats or (3 if quick else 5), on_case=_say)
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
        console.print(timings([r for r in rows if (r.op, r.size) == one]))


def _say(case: Case) -> None:
    """A plain line and no spinner, whose thread would take time from what is measured."""
    if sys.stderr.isatty():
        typer.echo(f"measuring {case.op}: {case.size}", err=True)


def _solve(as_json: bool) -> None:
    from kdalab.bench.solve import BETA, COSINE, GATE, solve_errors

    rows = solve_errors()
    if as_json:
        typer.echo(json.dumps([asdict(r) for r in rows], indent=2))
        return
    table = Table(
        title=f"Relative error of (I + Akk)^-1 in float32: cosine of the keys {COSINE}, "
        f"beta {BETA}, g = {GATE}",
        title_justify="left",
        box=None,
        pad_edge=False,
    )
    for name in ("C", "doubling", "forward substitution", "blocks joined (chunk_kda)"):
        table.add_column(name, justify="right")
    for r in rows:
        table.add_row(str(r.C), *(f"{x:.0e}" for x in (r.doubling, r.substitution, r.blocks)))
    Console().print(table)


def _compile(targets: list[str], as_json: bool) -> None:
    from kdalab.bench.compile import compile_kernels
    from kdalab.bench.peers import require_triton

    try:
        require_triton()
        compiled = compile_kernels(targets)
    except KdalabError as error:
        refuse(error)
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
    for name in ("regs", "spilled B", "shared B", "warps", "stages"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("")
    for r in compiled.rows:
        numbers = (r.registers, r.spill_bytes, r.shared_bytes, r.warps, r.stages)
        note = r.problem or (f"more shared memory than {r.target} has" if r.over_limit else "")
        table.add_row(r.kernel, r.target, *map(str, numbers), note)
    return table
