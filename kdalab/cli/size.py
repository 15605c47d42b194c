"""``kdalab size``: how many bytes each kind of state of a model takes."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Annotated, Any

import typer
from rich.console import Console, Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from kdalab.cli.refuse import refuse
from kdalab.errors import KdalabError
from kdalab.spec import PRESETS, ModelSpec, StateSizes, checkpoints_over, resolve_model, state_sizes
from kdalab.units import format_bytes, parse_tokens


def command(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help=f"A preset ({', '.join(PRESETS)}) or the path of a Hugging Face config.json.",
        ),
    ],
    tp: Annotated[int, typer.Option("--tp", help="Tensor parallel size.")] = 1,
    state_dtype: Annotated[
        str | None, typer.Option(help="Recurrent state's dtype; default: the model's.")
    ] = None,
    conv_dtype: Annotated[
        str | None, typer.Option(help="Conv state's dtype; default: the model's.")
    ] = None,
    kv_dtype: Annotated[
        str | None, typer.Option(help="Latent KV's dtype; default: the model's.")
    ] = None,
    interval: Annotated[
        str, typer.Option(help="Tokens from one checkpoint to the next, such as 4096 or 4k.")
    ] = "4096",
    context: Annotated[
        str | None, typer.Option(help="Context in tokens, such as 128k; default: the model's own.")
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print JSON with stable keys.")] = False,
) -> None:
    """Size a model's latent KV, recurrent and conv state, and its checkpoints."""
    try:
        spec = resolve_model(model).with_dtypes(state=state_dtype, conv=conv_dtype, kv=kv_dtype)
        every = parse_tokens(interval)
        length = spec.max_context if context is None else parse_tokens(context)
        report = size_report(spec, tp_size=tp, interval=every, context=length)
        if json_:
            typer.echo(json.dumps(report, indent=2))
        else:
            _print(Console(), spec, state_sizes(spec), state_sizes(spec, tp_size=tp), every, length)
    except KdalabError as error:
        refuse(error)


def size_report(spec: ModelSpec, *, tp_size: int, interval: int, context: int) -> dict[str, Any]:
    """Everything the command knows, as plain data: whole model at the top, one rank below it.

    Raises:
        KdalabError: a tp size, interval or context that does not work.
    """
    whole, rank = state_sizes(spec), state_sizes(spec, tp_size=tp_size)
    return {
        "model": spec.name,
        "source": spec.source,
        "notes": list(spec.notes),
        "linear_attention": spec.linear_name,
        "full_attention": spec.full_name,
        "num_layers": spec.num_layers,
        "num_linear_layers": spec.num_linear_layers,
        "num_full_layers": spec.num_full_layers,
        **whole.to_dict(),
        **_store(whole, interval, context),
        "per_rank": rank.to_dict() | _store(rank, interval, context),
        "tp_size": tp_size,
    }


def _store(sizes: StateSizes, interval: int, context: int) -> dict[str, int]:
    return {
        "context_tokens": context,
        "interval_tokens": interval,
        "latent_bytes": sizes.latent_bytes(context),
        "num_checkpoints": checkpoints_over(context, interval),
        "checkpoint_store_bytes": sizes.checkpoint_store_bytes(context, interval),
        "checkpoint_store_int8_bytes": sizes.checkpoint_store_bytes(context, interval, int8=True),
    }


def _print(
    console: Console,
    spec: ModelSpec,
    whole: StateSizes,
    rank: StateSizes,
    interval: int,
    context: int,
) -> None:
    kv = "latent KV" if spec.is_latent else "keys and values"
    count = checkpoints_over(context, interval)
    table = _Sizes(whole, rank)
    table.heading("one request, any length")
    table.row("S", f"recurrent state, {spec.state_dtype}", lambda s: s.recurrent_bytes)
    table.row("C", f"conv state, {spec.conv_dtype}", lambda s: s.conv_bytes)
    table.row("", "checkpoint: S and C", lambda s: s.checkpoint_bytes)
    table.row("", "checkpoint, S in INT8", lambda s: s.checkpoint_int8_bytes)
    table.heading("per token")
    table.row("KV", f"{kv}, {spec.kv_dtype}", lambda s: s.latent_bytes_per_token)
    table.heading(f"over {context:,} tokens")
    table.row("KV", kv, lambda s: s.latent_bytes(context))
    table.row("", f"{count:,} checkpoints", lambda s: s.checkpoint_store_bytes(context, interval))
    table.row(
        "", "the same in INT8", lambda s: s.checkpoint_store_bytes(context, interval, int8=True)
    )
    lines: list[Any] = [table.table, Text(""), _equals(rank, kv)]
    if spec.is_latent and rank.tp_size > 1:
        lines.append(Text("The latent KV is replicated on every rank; the state is split."))
    lines.append(Text(f"A checkpoint every {interval:,} tokens (--interval)."))
    lines += [Text(note, style="dim") for note in spec.notes]
    lines.append(Text(f"Source: {spec.source}", style="dim"))
    title = (
        f"{spec.name}: {spec.num_layers} layers = {spec.num_linear_layers} {spec.linear_name} "
        f"+ {spec.num_full_layers} {spec.full_name}"
    )
    console.print(Panel(Group(*lines), title=Text(title), title_align="left", expand=False))


class _Sizes:
    """Rows of one figure each: of the rank, exact, and of the whole model when they differ."""

    def __init__(self, whole: StateSizes, rank: StateSizes) -> None:
        self._whole, self._rank = whole, rank
        self._both = rank.tp_size > 1
        self.table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        self.table.add_column("", style="bold", no_wrap=True)
        self.table.add_column("", no_wrap=True)
        label = f"one of {rank.tp_size} ranks" if self._both else "whole model"
        self.table.add_column(label, justify="right", style="bold", no_wrap=True)
        self.table.add_column("bytes", justify="right", no_wrap=True)
        if self._both:
            self.table.add_column("whole model", justify="right", style="dim", no_wrap=True)

    def heading(self, text: str) -> None:
        self.table.add_row("", Text(text, style="italic dim"))

    def row(self, tag: str, label: str, figure: Callable[[StateSizes], int]) -> None:
        value = figure(self._rank)
        cells = [tag, label, format_bytes(value), f"{value:,}"]
        if self._both:
            cells.append(format_bytes(figure(self._whole)))
        self.table.add_row(*cells)


def _equals(sizes: StateSizes, kv: str) -> Text:
    where = "" if sizes.tp_size == 1 else " on this rank"
    return Text.assemble(
        "One checkpoint = ",
        (f"{sizes.checkpoint_equals_tokens:,} tokens", "bold"),
        f" of {kv}{where}; in INT8, {sizes.checkpoint_int8_equals_tokens:,} tokens.",
    )
