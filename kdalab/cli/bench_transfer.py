"""``kdalab bench transfer``: what moving a whole state costs, and when it pays."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from kdalab.bench.engine import Figure
    from kdalab.bench.transfer import KindBytes


def command(
    model: Annotated[
        list[str] | None,
        typer.Option(help="Models whose bytes are listed; default kimi-k3 and kimi-linear-48b."),
    ] = None,
    bandwidth: Annotated[
        list[str] | None,
        typer.Option(help="Bytes a second, such as 1GB; may repeat. Default 1GB and 10GB."),
    ] = None,
    prefill_rate: Annotated[
        float, typer.Option(min=1, help="Tokens a second of one prefill instance of these models.")
    ] = 10_000,
    repeats: Annotated[int | None, typer.Option(min=1, help="Timed rounds; default 5.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Smaller; a few seconds.")] = False,
    json_: Annotated[bool, typer.Option("--json", help="Print JSON with stable keys.")] = False,
) -> None:
    """Bytes by kind, time to the first decoded token shipped or replayed, throughput of bundles."""
    from kdalab.bench import transfer as bench
    from kdalab.bench.timing import machine
    from kdalab.spec import resolve_model
    from kdalab.threads import use_one_thread
    from kdalab.units import parse_bytes

    specs = [resolve_model(name) for name in model or ("kimi-k3", "kimi-linear-48b")]
    speeds = [float(parse_bytes(b)) for b in bandwidth or ()] or list(bench.BANDWIDTHS)
    use_one_thread()
    kinds = [row for spec in specs for row in bench.bytes_by_kind(spec)]
    figures = [f for spec in specs for f in bench.modelled(spec, speeds, prefill_rate)]
    rounds, sizes = repeats or (2 if quick else 5), (16,) if quick else bench.BLOB_MIB
    prompts = (64, 256) if quick else bench.PROMPTS
    figures += bench.first_tokens(prompts, speeds, rounds)
    figures += bench.throughput(sizes, rounds)
    figures += bench.mooncake(sizes, rounds)
    if json_:
        rows = [{**asdict(f), "met": f.met} for f in figures]
        plain = [{**asdict(k), "total": k.total, "share": k.share} for k in kinds]
        data = {"machine": machine(), "bytes_by_kind": plain, "figures": rows}
        typer.echo(json.dumps(data, indent=2))
        return
    console = Console()
    console.print(", ".join(f"{k} {v}" for k, v in machine().items()), highlight=False)
    for spec in specs:
        console.print(_kinds([k for k in kinds if k.model == spec.name]), highlight=False)
    for group in dict.fromkeys(f.group for f in figures):
        console.print(_figures(group, [f for f in figures if f.group == group]), highlight=False)


def _kinds(rows: list[KindBytes]) -> Table:
    from kdalab.units import format_bytes

    title = f"{rows[0].model}: bytes of a request by kind"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for name in ("tokens", "latent KV", "recurrent", "conv", "state of all"):
        table.add_column(name, justify="right")
    for r in rows:
        sizes = [format_bytes(b) for b in (r.latent, r.recurrent, r.conv)]
        table.add_row(f"{r.tokens:,}", *sizes, f"{100 * r.share:.1f} %")
    return table


def _figures(group: str, figures: list[Figure]) -> Table:
    table = Table(title=group, title_justify="left", box=None, pad_edge=False)
    for name in ("what", "value", "unit", "aim", "note"):
        table.add_column(name, justify="right" if name in ("value", "aim") else "left")
    for f in figures:
        aim = "" if f.limit is None else f"<= {f.limit:g}{'' if f.met else ' MISSED'}"
        value = f"{f.value:,.0f}" if f.unit == "tokens" else f"{f.value:.3g}"
        table.add_row(f.name, value, f.unit, aim, f.note)
    return table
