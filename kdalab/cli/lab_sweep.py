"""``kdalab lab sweep``: many setups on one trace."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kdalab.cli import lab_options as o
from kdalab.cli.lab_source import Source
from kdalab.cli.refuse import say

if TYPE_CHECKING:
    from kdalab.lab import Setup
    from kdalab.lab.sweep import Row


#: What a sweep tries where neither an option nor ``--set`` says.
AXES = {
    "memory": "64GiB,256GiB,1TiB",
    "checkpoints": "leaf,leaf+branch,every:4096,branch-first:8192",
    "retention": "lru",
    "int8": "off,on",
}


def sweep(
    source: Source,
    budgets: Annotated[
        str | None,
        typer.Option(
            "--budgets", "--memory", help="Memories, with commas.", show_default=AXES["memory"]
        ),
    ] = None,
    checkpoints: Annotated[
        str | None,
        typer.Option(
            help="Placements, with commas; by default leaf, leaf+branch, every:4096 and "
            "branch-first:8192.",
            show_default=False,
        ),
    ] = None,
    retention: Annotated[
        str | None,
        typer.Option(help="Retentions, with commas.", show_default=AXES["retention"]),
    ] = None,
    int8: Annotated[
        str | None,
        typer.Option(help="INT8 checkpoints: off, on or both.", show_default=AXES["int8"]),
    ] = None,
    interval: Annotated[
        str,
        typer.Option(
            help="Intervals in tokens, as further placements every:N; cache=block: its interval."
        ),
    ] = "",
    grid: Annotated[
        list[str] | None, typer.Option(help='More settings: "KEY=A,B,C". Can be repeated.')
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write the table: .csv, .parquet or .json.")
    ] = None,
    figure: Annotated[
        Path | None, typer.Option(help="Write the Pareto figure: .html or .json.")
    ] = None,
    gain: Annotated[
        str,
        typer.Option(
            help="What stars and figure compare: hit_rate, flops_saved_share, ttft_mean, ttft_p95."
        ),
    ] = "hit_rate",
    jobs: o.JobsOpt = 1,
    ray: Annotated[str | None, typer.Option(help="Address of a Ray cluster, or local.")] = None,
    dask: Annotated[str | None, typer.Option(help="Address of a Dask scheduler, or local.")] = None,
    settings: o.SetOpt = None,
    model: o.ModelOpt = None,
    policy: o.PolicyOpt = None,
    as_json: o.JsonOpt = False,
) -> None:
    """Replay a trace under every combination of settings; a table, and what no other beats."""
    from kdalab.errors import KdalabError
    from kdalab.lab import report_of
    from kdalab.lab.sweep import TABLES, check_gain, combine, pareto, write_table
    from kdalab.lab.sweep import sweep as run
    from kdalab.viz.lab_figures import GAINS

    with o.known_errors():
        check_gain(gain, GAINS)
        o.check_writable(out, *TABLES)
        o.check_writable(figure, ".html", ".json")
        if out is not None and figure is not None and out.resolve() == figure.resolve():
            raise KdalabError(f"{out.name}: --out and --figure name one file; give two")
        o.check_no_input(source.trace, out, figure)
        given = {
            "memory": budgets, "checkpoints": checkpoints, "retention": retention, "int8": int8
        }  # fmt: skip
        axes = _axes(given, set(o.set_values(settings)))
        # The base needs a memory too where it divides one.
        limit = next((m for m in axes.get("memory", []) if m.lower() != "unlimited"), None)
        base = o.build_setup(settings, model, limit, policy)
        typed = {name for name, value in given.items() if value is not None}
        further = _list(interval)
        if further and base.cache == "block":
            axes["interval"] = further
        elif further:
            typed.add("checkpoints")
            at = [f"every:{n}" for n in further]
            axes["checkpoints"] = [*axes.get("checkpoints", [base.checkpoints]), *at]
        for text in grid or []:
            key, equals, values = text.partition("=")
            if not equals:
                raise KdalabError(f"--grid {text!r}; use KEY=A,B,C, as speed=0.5,1")
            name = key.strip().replace("-", "_").lower()
            typed.add(name)
            axes[name] = _list(values)
        _leave_out_unused(base, axes, typed, set(o.set_values(settings)))
        setups, impossible = combine(base, axes)
        requests = source.read()
        with o.progress("replays", quiet=as_json) as show:
            rows = run(requests, setups, jobs, ray, dask, on_done=show)
        best = pareto(rows, "memory" if _limited(rows) else "peak_bytes", gain)
        if out is not None:
            write_table(rows, out)
        if figure is not None:
            _write_figure(rows, best, gain, figure)
    if as_json:
        # A row that could not be replayed has its error; what could not be a setup is left out.
        found = {"rows": rows, "best": [r["setup"] for r in best], "left_out": impossible}
        typer.echo(json.dumps(found, indent=2))
        _exit_if_none(rows)
        return
    print_rows(rows, best)
    for text in impossible[:3]:
        typer.echo(f"left out: {text}")
    if len(impossible) > 3:
        typer.echo(f"left out: {len(impossible) - 3} more")
    o.print_report(report_of(requests))
    _exit_if_none(rows)


def _axes(given: dict[str, str | None], fixed: set[str]) -> dict[str, list[str]]:
    """The values to try of each setting: those given, or those of ``AXES``; a setting that
    ``--set`` fixes is not varied.

    Raises:
        KdalabError: given and fixed.
    """
    from kdalab.errors import KdalabError

    for key, values in given.items():
        if values is not None and key in fixed:
            raise KdalabError(f"{key} is given twice, by -s and as a list {values!r}; give one")
    return {k: _list(AXES[k] if v is None else v) for k, v in given.items() if k not in fixed}


def _leave_out_unused(
    base: Setup, axes: dict[str, list[str]], typed: set[str], fixed: set[str]
) -> None:
    """Take out of ``axes`` what a sweep tries by itself and this cache or policy does not use.

    Args:
        typed: axes that an option names; ``fixed``: settings that ``--set`` names.

    Raises:
        KdalabError: one that is not used was typed.
    """
    from kdalab.errors import KdalabError

    if base.cache == "block":  # it takes no placement and no INT8
        for name in ("checkpoints", "int8"):
            if name in typed:
                raise KdalabError(f"--{name} is for cache=radix; leave it out here")
            axes.pop(name, None)
        if "retention" not in typed:
            axes.pop("retention", None)
    elif base.policy is not None:
        tried = axes.get("retention", []) if "retention" in typed else []
        for retention in (base.retention, *tried):
            o.check_policy(replace(base, retention=retention), typed | fixed)
        if o.places(base.policy):
            axes.pop("checkpoints", None)


def _exit_if_none(rows: list[Row]) -> None:
    """A sweep in which nothing could be replayed has failed, and says so to a script."""
    if all(row.get("error") for row in rows):
        say(f"none of {len(rows):,} replays could run; the first: {rows[0]['error']}")
        raise typer.Exit(1)


def print_rows(rows: list[Row], best: list[Row]) -> None:
    """A sweep as a table, one part a memory; a star marks what no other row beats. It fits 80
    columns: a memory is a line, and headings fold at their spaces."""
    from rich.console import Console
    from rich.table import Table

    from kdalab.lab.cells import common_setup, failures, sweep_rows

    console = Console()
    clock = any(r.get("arrivals") for r in rows)
    waits = "waits for others included" if clock else "arrivals=off: nobody waits"
    title = f"{len(rows):,} replays; * no other is as small and as good; TTFT: {waits}"
    header, cells = sweep_rows(rows, best)
    narrow = console.width < 100
    table = Table(box=None, pad_edge=False, padding=(0, 1 if narrow else 2, 0, 0))
    for place, name in enumerate(header):
        if name == "memory":
            continue
        folded = name if place < 2 else name.replace(" ", "\n", 1)
        left = place < 2
        table.add_column(folded, justify="left" if left else "right", no_wrap=not left)
    table.columns[1].overflow = "fold"
    above = ""
    for star, words, memory, *figures in cells:
        if memory != above:
            table.add_row("", f"[bold]memory={memory}[/]", *[""] * len(figures))
            above = memory
        table.add_row(star, words or "as above", *figures)
    console.print(title, highlight=False)
    console.print(f"In common: {common_setup(rows)}", markup=False, highlight=False)
    console.print(table)
    for line in failures(rows):
        console.print(line, markup=False, highlight=False)


def _list(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _limited(rows: list[dict[str, Any]]) -> bool:
    return all(r["memory"] is not None for r in rows)


def _write_figure(rows: list[Row], best: list[Row], gain: str, path: Path) -> None:
    from kdalab.errors import KdalabError
    from kdalab.viz.lab_figures import pareto_figure

    drawn = pareto_figure(rows, best, gain)
    text = drawn.to_json() if path.suffix == ".json" else drawn.to_html(include_plotlyjs=True)
    try:
        path.write_text(text)
    except OSError as error:
        raise KdalabError(f"cannot write {str(path)!r}: {error.strerror}") from error
