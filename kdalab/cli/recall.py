"""``kdalab recall``: what the three trained networks remember."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kdalab.cli.refuse import refuse
from kdalab.errors import KdalabError

if TYPE_CHECKING:
    from kdalab.recall import Row


def command(
    pairs: Annotated[
        str | None,
        typer.Option(help="Stored pairs, such as 8,64; default 4 to 128.", show_default=False),
    ] = None,
    episodes: Annotated[
        int, typer.Option(min=1, max=10_000, help="Episodes for each number.")
    ] = 32,
    seed: Annotated[
        int | None, typer.Option(help="Of the episodes; default: one apart from training.")
    ] = None,
    weights: Annotated[
        Path | None,
        typer.Option(help="Folder of `kdalab train recall`; default: what ships."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, not tables.")] = False,
) -> None:
    """What KDA only, 3 KDA : 1 MLA and MLA only recall, by stored pairs and their similarity."""
    from kdalab.recall import CHANCE, NETWORKS, PAIRS, read_metadata
    from kdalab.threads import use_one_thread

    use_one_thread()
    try:
        chosen = PAIRS if pairs is None else _numbers(pairs)
        made = {name: read_metadata(name, weights) for name in NETWORKS}
        rows = _measure(chosen, episodes, seed, weights, quiet=as_json)
    except KdalabError as error:
        refuse(error)
    if as_json:
        report = {"chance": CHANCE, "networks": made, "rows": [r.as_dict() for r in rows]}
        typer.echo(json.dumps(report, indent=2))
    else:
        _print(rows, made)


def _numbers(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and len(part) <= 6 for part in parts):
        raise KdalabError(f"--pairs {text[:40]!r} is not a list of whole numbers such as 8,64,128")
    return tuple(dict.fromkeys(int(part) for part in parts))


def _measure(
    pairs: tuple[int, ...], episodes: int, seed: int | None, weights: Path | None, quiet: bool
) -> list[Row]:
    from rich.console import Console
    from rich.progress import Progress

    from kdalab.recall import curves

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=quiet or not sys.stderr.isatty()) as bar:
        line = bar.add_task("asking", total=None)

        def show(done: int, total: int) -> None:
            bar.update(line, completed=done, total=total)

        given: dict[str, Any] = {} if seed is None else {"seed": seed}
        return curves(pairs=pairs, episodes=episodes, folder=weights, on_row=show, **given)


def _print(rows: list[Row], made: dict[str, dict[str, str]]) -> None:
    from rich.console import Console
    from rich.table import Table

    from kdalab.recall import CHANCE, TITLES, memory_of

    console = Console()
    pairs = list(dict.fromkeys(r.pairs for r in rows))
    for similarity in dict.fromkeys(r.similarity for r in rows):
        # Printed apart: a table folds its title to its own width.
        console.print(f"Questions answered right; keys of a family at cosine {similarity:g}")
        table = Table(box=None, pad_edge=False)
        table.add_column("stored pairs", no_wrap=True)
        for n in pairs:
            table.add_column(str(n), justify="right", no_wrap=True)
        for name, title in TITLES.items():
            of = {r.pairs: r for r in rows if (r.network, r.similarity) == (name, similarity)}
            table.add_row(title, *(_share(of[n].accuracy) for n in pairs))
        console.print(table)
        console.print()
    console.print("What they are")
    table = Table(box=None, pad_edge=False)
    table.add_column("network", no_wrap=True)
    for head in ("trained numbers", "state, bytes", "latent KV a token, bytes", "steps", "seed"):
        table.add_column(head, justify="right")
    for name, title in TITLES.items():
        memory, m = memory_of(name), made[name]
        table.add_row(
            title,
            f"{int(m['parameters']):,}",
            f"{memory.state_bytes:,}",
            f"{memory.bytes_per_token:,}",
            m["steps"],
            m["seed"],
        )
    console.print(table)
    console.print(
        f"\nGuessing is right {CHANCE:.1%} of the time. {rows[0].episodes} episodes a number; "
        "each network answers the same ones, by the engine's own network.",
        style="dim",
    )


def _share(accuracy: float) -> str:
    """Three digits; 1.000 only for no mistake at all."""
    return f"{accuracy if accuracy == 1 else min(accuracy, 0.999):.3f}"
