"""``kdalab bench``: measure this machine and compare. One file a benchmark, ``bench_*.py``."""

from __future__ import annotations

from importlib import import_module

import typer

BENCHMARKS = (
    "kernels",
    "cache",
    "engine",
    "lab",
    "gpu",
    "transfer",
    "ui",
)

app = typer.Typer(help="Measure this machine and compare with others.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Measure this machine and compare with others."""


for _name in BENCHMARKS:
    app.command(_name)(import_module(f"kdalab.cli.bench_{_name}").command)


if __name__ == "__main__":
    app()
