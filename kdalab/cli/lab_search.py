"""``kdalab lab sweep`` and ``advise``: many setups on one trace."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kdalab.cli import lab_options as o
from kdalab.cli.lab_source import Source
from kdalab.cli.refuse import say

if TYPE_CHECKING:
    from kdalab.lab import Setup
    from kdalab.lab.advise import Advice
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


def advise(
    source: Source,
    model: o.ModelOpt = None,
    memory: o.MemoryOpt = None,
    objective: Annotated[str, typer.Option(help="ttft or flops.")] = "ttft",
    host: Annotated[str, typer.Option(help="A host tier that could be had: 1TiB, off.")] = "off",
    system: Annotated[str, typer.Option(help="SGLang, vLLM or both.")] = "both",
    jobs: o.JobsOpt = 1,
    settings: o.SetOpt = None,
    policy: o.PolicyOpt = None,
    as_json: o.JsonOpt = False,
) -> None:
    """Search for the settings that fit a trace, as flags of SGLang and vLLM, and their gain."""
    from kdalab.errors import KdalabError
    from kdalab.lab import report_of
    from kdalab.lab.advise import advise as search
    from kdalab.units import parse_bytes

    with o.known_errors():
        known = {"sglang": ("SGLang",), "vllm": ("vLLM",), "both": ("SGLang", "vLLM")}
        if system.lower() not in known:
            raise KdalabError(f"system {system!r}; allowed: SGLang, vLLM, both")
        systems = known[system.lower()]
        tier = 0 if host.lower() == "off" else parse_bytes(host)
        check_asked(o.set_values(settings), objective, systems, tier)
        cache = "block" if systems == ("vLLM",) else "radix"
        base = o.build_setup(settings, model, memory, cache=cache)
        requests = source.read()
        with o.progress("replays", quiet=as_json) as show:
            found = search(
                requests,
                base,
                objective,
                tier,
                jobs,
                systems,
                lambda n: show(n, None),
                policy,
            )
    if as_json:
        told = [{**a.as_dict(), "command": replay_command(a, source.words)} for a in found]
        typer.echo(json.dumps(told, indent=2))
        return
    for advice in found:
        print_advice(advice, source.words)
    o.print_report(report_of(requests))


def check_asked(
    asked: dict[str, Any], objective: str, systems: Sequence[str], host: int = 0
) -> None:
    """See that ``advise`` takes every setting that ``--set`` names, and drops none.

    Args:
        asked: setting -> value, as ``--set`` has them.
        host: bytes of a host tier that could be had.

    Raises:
        KdalabError: one that it chooses itself, or that is no part of what it advises.
    """
    from kdalab.errors import KdalabError
    from kdalab.lab.setup import BLOCK_ONLY, DEFAULTS, shown

    typed = {name: f"{name}={shown(name, value)}" for name, value in asked.items()}
    chosen = {"cache", "checkpoints", "retention", "split", "int8", *BLOCK_ONLY} - {"chunk"}
    for name in sorted(set(asked) & {*chosen, "pd", "host", "policy"}):
        if name not in chosen and asked[name] == DEFAULTS[name]:
            continue  # pd=off and the like: so it is
        if name in chosen:
            why = "advise chooses it itself; leave it out"
        elif name == "pd":
            why = "advise is for one deployment that does both; leave it out"
        else:
            why = f"advise takes it as --{name}"
        see = typed[name] if name not in BLOCK_ONLY else f'"cache=block {typed[name]}"'
        raise KdalabError(f"{typed[name]}: {why}. To see what it does: lab replay ... -s {see}")
    if asked.get("arrivals") is False and objective == "ttft":
        raise KdalabError(
            "arrivals=off: the objective ttft counts waiting, so advise takes the arrival times; "
            "leave it out, or use --objective flops"
        )
    if "chunk" in asked and "SGLang" in systems:
        raise KdalabError(
            f"{typed['chunk']}: for SGLang advise chooses it itself; leave it out, or add "
            "--system vLLM"
        )
    if asked.get("decoded") and "vLLM" in systems:
        raise KdalabError("decoded=on is a setting of the radix cache; add --system SGLang")
    if host and "SGLang" not in systems:
        raise KdalabError("--host: only SGLang's advice has a host tier; add --system SGLang")
    if "write_through" in asked and not host:
        raise KdalabError(f"{typed['write_through']} is of a host tier; add --host SIZE")


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


def replay_command(a: Advice, words: str) -> str:
    """The command that replays a recommendation, to the figures that it promises; ``words`` are
    those of its trace."""
    return f"kdalab lab replay {words} -s {shlex.quote(a.setup)}"


def print_advice(a: Advice, words: str) -> None:
    """A recommendation: flags, gain, sensitivity, assumptions; ``words`` as in
    ``replay_command``."""
    from rich.console import Console
    from rich.table import Table

    from kdalab.lab.advise import OBJECTIVES
    from kdalab.lab.cells import (
        advice_failures,
        advice_gain,
        advice_rows,
        significant,
        simpler_words,
    )
    from kdalab.lab.setup import shown

    console = Console()
    console.print(
        f"\n[bold]{a.system}[/]  (objective: {OBJECTIVES[a.objective]}; memory: "
        f"{shown('memory', a.after['memory'])}; machine: {a.after['hardware']}; "
        f"{a.replays} replays)",
        highlight=False,
    )
    for flag in a.flags:
        console.print(f"  {flag}", markup=False, highlight=False, soft_wrap=True)
    command = replay_command(a, words)
    console.print(f"  in the lab: {command}", markup=False, style="dim", soft_wrap=True)
    table = Table(show_header=True)
    for name in ("", "defaults", "recommended"):
        table.add_column(name, justify="left" if not name else "right")
    for name, key, form in (
        ("restored", "hit_rate", "{:.1%}".format),
        ("prefill work saved", "flops_saved_share", "{:.1%}".format),
        ("time to first token, mean, s", "ttft_mean", significant),
        ("time to first token, 95th percentile, s", "ttft_p95", significant),
        ("checkpoints written", "states_written", "{:,}".format),
    ):
        table.add_row(name, form(a.before[key]) if key in a.before else "-", form(a.after[key]))
    console.print(table)
    console.print(f"  {advice_gain(a)} {simpler_words()}", markup=False, highlight=False)
    near = Table(title="One setting changed", title_justify="left")
    header, cells = advice_rows(a)
    for place, name in enumerate(header):
        near.add_column(name, justify="left" if place < 2 else "right", overflow="fold")
    for row in cells:
        near.add_row(*row)
    console.print(near)
    for text in advice_failures(a):
        console.print(text, markup=False, highlight=False)
    for text in a.warnings:
        console.print(f"[yellow]Warning:[/] {text}")
    console.print(f"Assumed: {'; '.join(a.assumptions)}.", style="dim", markup=False)


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
