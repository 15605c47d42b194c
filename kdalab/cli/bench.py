"""``kdalab bench``: measure this machine and compare."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from kdalab.bench.kernels import DEFAULT_SHAPES, QUICK_SHAPES, Row, bench_kernels, parse_shape
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
        typer.Option(help="B,T,H,K,V; may be given several times.", show_default=False),
    ] = None,
    repeats: Annotated[
        int | None, typer.Option(min=1, help="Timed rounds; default 5, quick 3.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Short inputs, a few seconds.")] = False,
    json_: Annotated[bool, typer.Option("--json", help="Print JSON with stable keys.")] = False,
) -> None:
    """Time the ops of Kimi Delta Attention beside FLA's naive functions, float32 on the CPU."""
    try:
        shapes = [parse_shape(s) for s in shape] if shape else None
    except KdalabError as error:
        Console(stderr=True).print(f"kdalab bench: {error}", markup=False, highlight=False)
        raise typer.Exit(2) from error
    chosen = shapes or (QUICK_SHAPES if quick else DEFAULT_SHAPES)
    rows = bench_kernels(chosen, repeats or (3 if quick else 5))
    if json_:
        typer.echo(json.dumps({"machine": machine(), "rows": [_plain(r) for r in rows]}, indent=2))
        return
    console = Console()
    console.print(", ".join(f"{k} {v}" for k, v in machine().items()), highlight=False)
    for one in dict.fromkeys(r.shape for r in rows):
        console.print(_table([r for r in rows if r.shape == one]))


def _plain(row: Row) -> dict[str, Any]:
    return {**asdict(row), "shape": row.shape._asdict()}


def _table(rows: list[Row]) -> Table:
    s = rows[0].shape
    table = Table(
        title=f"B={s.B} T={s.T} H={s.H} K={s.K} V={s.V}",
        title_justify="left",
        box=None,
        pad_edge=False,
    )
    table.add_column("implementation", no_wrap=True)
    for name in ("ms", "x recurrence", "x FLA chunk", "error"):
        table.add_column(name, justify="right", no_wrap=True)
    for r in rows:
        name = f"{r.name.split(':')[0]}: {r.note}" if r.name.startswith("floor") else r.name
        if r.ms is None:
            table.add_row(f"{name}: {r.note}", "-", "-", "-", "-")
            continue
        table.add_row(
            name,
            f"{r.ms:.3g}" if r.ms < 100 else f"{r.ms:.0f}",
            "-" if r.times_recurrence is None else f"{r.times_recurrence:.2f}",
            "-" if r.times_fla_chunk is None else f"{r.times_fla_chunk:.2f}",
            "-" if r.error is None else f"{r.error:.1e}",
        )
    return table


if __name__ == "__main__":
    app()
