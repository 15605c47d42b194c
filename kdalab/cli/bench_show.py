"""What the benchmarks print alike: tables of timings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

if TYPE_CHECKING:
    from kdalab.bench.kernels import Row


def timings(rows: list[Row]) -> Table:
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
