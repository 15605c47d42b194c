"""``kdalab train``: make the weights that ship with the package, or others."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kdalab.cli.refuse import refuse
from kdalab.errors import KdalabError

if TYPE_CHECKING:
    from kdalab.recall import Plan, Trained

app = typer.Typer(help="Train tiny networks on this machine's CPU.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Train tiny networks on this machine's CPU."""


@app.command()
def recall(
    network: Annotated[
        str, typer.Option(help="kda, hybrid, mla, or all: one after the other.")
    ] = "all",
    steps: Annotated[
        int | None, typer.Option(help="Optimiser steps; default: as the shipped weights.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the weights and the episodes.")] = 0,
    out: Annotated[
        str, typer.Option(help="Folder for the weights, one sub-folder a network.")
    ] = "recall-weights",
    force: Annotated[bool, typer.Option("--force", help="Overwrite weights in --out.")] = False,
) -> None:
    """Train KDA only, 3 KDA : 1 MLA and MLA only on associative recall. See `kdalab recall`."""
    from kdalab.recall import NETWORKS, Plan, check_free, save

    try:
        names = [name for name in NETWORKS if network in (name, "all")]
        if not names:
            allowed = ", ".join([*NETWORKS, "all"])
            raise KdalabError(f"unknown network {network!r}; use one of {allowed}")
        if not out.strip():  # as a path, nothing is the current folder
            raise KdalabError("--out is empty; name a folder for the weights (. is this one)")
        folder = Path(out)
        plan = Plan(seed=seed) if steps is None else Plan(steps=steps, seed=seed)
        check_free(folder, names, force)  # before minutes are spent, not after
        for name in names:
            trained = _train(name, plan)
            file = save(trained, folder, force)
            typer.echo(
                f"{file}: {trained.parameters:,} trained numbers, {file.stat().st_size:,} bytes, "
                f"{trained.seconds:.0f} s"
            )
    except KdalabError as error:
        refuse(error)
    typer.echo(f"Measure them with: kdalab recall --weights {out}")


def _train(name: str, plan: Plan) -> Trained:
    from rich.console import Console
    from rich.progress import Progress

    from kdalab.recall import TITLES, train

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not sys.stderr.isatty()) as bar:
        line = bar.add_task(TITLES[name], total=plan.steps)

        def show(done: int, loss: float, right: float) -> None:
            text = f"{TITLES[name]}: loss {loss:.3f}, {right:.0%} right"
            bar.update(line, completed=done, description=text)

        return train(name, plan, show)
