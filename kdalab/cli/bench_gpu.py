"""``kdalab bench gpu``: check every Triton kernel on a GPU, then time it."""

from __future__ import annotations

import json
import math
import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from kdalab.cli.bench_show import timings
from kdalab.cli.refuse import refuse
from kdalab.errors import KdalabError

if TYPE_CHECKING:
    from kdalab.bench.gpu_checks import Checked
    from kdalab.bench.kernels import Rates, Row


def command(
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
    from kdalab.bench.gpu import bench_gpu_speed, require_gpu, speed_cases
    from kdalab.bench.gpu_checks import Place, all_checks, run_checks
    from kdalab.bench.peers import require_triton
    from kdalab.bench.timing import machine

    place = Place("cpu", tiny=True) if interpret else Place()
    if dry_run:
        for check in all_checks(place):
            typer.echo(f"check  {check.op}: {check.case or 'as it is'}, {check.dtype}")
        for case in [] if interpret else speed_cases():
            typer.echo(f"speed  {case.op}: {case.size}: {', '.join(case.names)}")
        return
    try:
        if not interpret:
            require_gpu()
        require_triton()
    except KdalabError as error:
        refuse(error)
    if interpret:
        os.environ["TRITON_INTERPRET"] = "1"  # before the kernels are imported
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
            console.print(timings([r for r in rows if (r.op, r.size) == one]))
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
