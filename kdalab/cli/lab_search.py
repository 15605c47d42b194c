"""``kdalab lab sweep`` and ``advise``: many setups on one trace."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kdalab.cli import lab_options as o

if TYPE_CHECKING:
    from kdalab.lab.advise import Advice
    from kdalab.lab.sweep import Row


def sweep(
    trace: o.TraceArg = None,
    budgets: Annotated[str, typer.Option(help="Memories, with commas.")] = "64GiB,256GiB,1TiB",
    checkpoints: Annotated[
        str, typer.Option(help="Placements, with commas.")
    ] = "leaf,leaf+branch,every:4096,branch-first:8192",
    retention: Annotated[str, typer.Option(help="Retentions, with commas.")] = "lru",
    int8: Annotated[str, typer.Option(help="INT8 checkpoints: off, on or both.")] = "off,on",
    interval: Annotated[
        str, typer.Option(help="Intervals in tokens, as further placements every:N.")
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
    made_up: o.MadeUpOpt = None,
    seed: o.SeedOpt = 0,
    format: o.FormatOpt = None,
    limit: o.LimitOpt = None,
    max_bad_lines: o.BadOpt = 100,
    block_tokens: o.BlockOpt = None,
    share: o.ShareOpt = "preamble",
    gap: o.GapOpt = 60.0,
    sort: o.SortOpt = False,
    as_json: o.JsonOpt = False,
) -> None:
    """Replay a trace under every combination of settings; a table, and what no other beats."""
    from kdalab.lab import report_of
    from kdalab.lab.sweep import TABLES, check_gain, combine, pareto, write_table
    from kdalab.lab.sweep import sweep as run
    from kdalab.viz.lab_figures import GAINS

    with o.known_errors():
        check_gain(gain, GAINS)
        o.check_writable(out, *TABLES)
        o.check_writable(figure, ".html", ".json")
        base = o.build_setup(settings, model, None, policy)
        places = _list(checkpoints) + [f"every:{n}" for n in _list(interval)]
        # Policies of one's own and vLLM's blocks take no placement or INT8; then leave them be.
        axes = {"memory": _list(budgets)}
        if base.cache == "radix":
            axes |= {"checkpoints": places, "retention": _list(retention), "int8": _list(int8)}
        for text in grid or []:
            key, _, values = text.partition("=")
            axes[key.strip().replace("-", "_")] = _list(values)
        setups, impossible = combine(base, axes)
        requests = o.read_trace(
            trace, made_up, seed, format=format, limit=limit, bad=max_bad_lines,
            block=block_tokens, share=share, gap=gap, sort=sort,
        )  # fmt: skip
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
        return
    print_rows(rows, best)
    for text in impossible[:3]:
        typer.echo(f"left out: {text}")
    if len(impossible) > 3:
        typer.echo(f"left out: {len(impossible) - 3} more")
    o.print_report(report_of(requests))


def advise(
    trace: o.TraceArg = None,
    model: o.ModelOpt = None,
    memory: o.MemoryOpt = None,
    objective: Annotated[str, typer.Option(help="ttft or flops.")] = "ttft",
    host: Annotated[str, typer.Option(help="A host tier that could be had: 1TiB, off.")] = "off",
    system: Annotated[str, typer.Option(help="SGLang, vLLM or both.")] = "both",
    jobs: o.JobsOpt = 1,
    settings: o.SetOpt = None,
    policy: o.PolicyOpt = None,
    made_up: o.MadeUpOpt = None,
    seed: o.SeedOpt = 0,
    format: o.FormatOpt = None,
    limit: o.LimitOpt = None,
    max_bad_lines: o.BadOpt = 100,
    block_tokens: o.BlockOpt = None,
    share: o.ShareOpt = "preamble",
    gap: o.GapOpt = 60.0,
    sort: o.SortOpt = False,
    as_json: o.JsonOpt = False,
) -> None:
    """Search for the settings that fit a trace, as flags of SGLang and vLLM, and their gain."""
    from kdalab.errors import KdalabError
    from kdalab.lab import report_of
    from kdalab.lab.advise import advise as search
    from kdalab.units import parse_bytes

    with o.known_errors():
        base = o.build_setup(settings, model, memory)
        known = {"sglang": ("SGLang",), "vllm": ("vLLM",), "both": ("SGLang", "vLLM")}
        if system.lower() not in known:
            raise KdalabError(f"system {system!r}; allowed: SGLang, vLLM, both")
        tier = 0 if host.lower() == "off" else parse_bytes(host)
        requests = o.read_trace(
            trace, made_up, seed, format=format, limit=limit, bad=max_bad_lines,
            block=block_tokens, share=share, gap=gap, sort=sort,
        )  # fmt: skip
        with o.progress("replays", quiet=as_json) as show:
            found = search(
                requests,
                base,
                objective,
                tier,
                jobs,
                known[system.lower()],
                lambda n: show(n, None),
                policy,
            )
    if as_json:
        typer.echo(json.dumps([a.as_dict() for a in found], indent=2))
        return
    for advice in found:
        print_advice(advice)
    o.print_report(report_of(requests))


def print_rows(rows: list[Row], best: list[Row]) -> None:
    """A sweep as a table; a star marks what no other row beats."""
    from rich.console import Console
    from rich.table import Table

    from kdalab.lab.cells import failures, sweep_rows

    table = Table(title=f"{len(rows):,} replays; * no other is as small and as good")
    header, cells = sweep_rows(rows, best)
    for place, name in enumerate(header):
        wide = 26 if name == "setup" else None
        table.add_column(
            name, overflow="fold", justify="left" if place < 3 else "right", min_width=wide
        )
    for row in cells:
        table.add_row(*row)
    console = Console()
    console.print(table)
    for line in failures(rows):
        console.print(line, markup=False, highlight=False)


def print_advice(a: Advice) -> None:
    """A recommendation: flags, gain, sensitivity, assumptions."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    console.print(f"\n[bold]{a.system}[/]  (objective: {a.objective}, {a.replays} replays)")
    for flag in a.flags:
        console.print(f"  {flag}", markup=False, highlight=False)
    console.print(f"  in the lab: {a.setup}", markup=False, style="dim")
    table = Table(show_header=True)
    for name in ("", "defaults", "recommended"):
        table.add_column(name, justify="left" if not name else "right")
    if a.before.get("error"):
        console.print(f"  the defaults cannot be replayed: {a.before['error']}", markup=False)
    for name, key, form in (
        ("restored", "hit_rate", "{:.1%}"),
        ("prefill work saved", "flops_saved_share", "{:.1%}"),
        ("mean time to first token, s", "ttft_mean", "{:.3g}"),
        ("95th percentile, s", "ttft_p95", "{:.3g}"),
        ("checkpoints written", "states_written", "{:,}"),
    ):
        old = form.format(a.before[key]) if key in a.before else "-"
        table.add_row(name, old, form.format(a.after[key]))
    console.print(table)
    console.print(f"  gain over the defaults in the objective: {a.gain:+.1%}")
    near = Table(title="One setting changed", title_justify="left")
    for name in ("setting", "value", "objective", "restored"):
        near.add_column(name)
    for n in a.neighbours:
        shown = n.error or f"{n.objective:.4g}"
        near.add_row(n.setting, n.value, shown, "" if n.error else f"{n.hit_rate:.1%}")
    console.print(near)
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
