"""``kdalab bundle``: look into a model state bundle."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kdalab.cli.refuse import refuse
from kdalab.errors import KdalabError

if TYPE_CHECKING:
    from kdalab.transfer import BundleMeta

app = typer.Typer(help="Look into model state bundles.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Look into model state bundles."""


@app.command()
def inspect(
    file: Annotated[Path, typer.Argument(help="A bundle: a safetensors file.")],
    verify: Annotated[
        bool, typer.Option("--verify", help="Also read every tensor and check its checksum.")
    ] = False,
    json_: Annotated[bool, typer.Option("--json", help="Print JSON with stable keys.")] = False,
) -> None:
    """Say whose state FILE holds, of which prefix, at which boundary, in which layout."""
    from kdalab.transfer import load_bundle, load_metadata

    try:
        meta, shapes = load_metadata(file)
    except OSError as error:
        refuse(KdalabError(f"cannot read the bundle {str(file)!r}: {error.strerror}"))
    found = meta.stamp_refusals()
    if verify:
        load_bundle(file)
    if json_:
        plain: dict[str, Any] = meta.model_dump()
        for name, (dtype, shape) in shapes.items():
            if name in plain["tensors"]:
                plain["tensors"][name] |= {"dtype": dtype, "shape": list(shape)}
        plain["verified"] = verify
        plain["refused"] = [r._asdict() for r in found]
        typer.echo(json.dumps(plain, indent=2))
        return
    _print(file, meta, shapes, verify)
    for refusal in found:
        typer.echo(f"Refused: {refusal}")


def _said(value: object) -> str:
    """A field as the file has it: no markup in it counts, and no control character is sent."""
    from rich.markup import escape

    from kdalab.transfer.refusal import printable

    return escape(printable(str(value)))


def _print(
    file: Path,
    meta: BundleMeta,
    shapes: dict[str, tuple[str, tuple[int, ...]]],
    verified: bool,
) -> None:
    from math import prod

    from rich.console import Console
    from rich.table import Table

    from kdalab.spec import StateKind, itemsize
    from kdalab.transfer.metadata import TENSOR_OF
    from kdalab.transfer.refusal import printable
    from kdalab.units import format_bytes

    labels = {TENSOR_OF[kind]: kind.label for kind in StateKind}
    facts = Table(box=None, show_header=False, pad_edge=False)
    prefix, rank = meta.prefix, meta.state_identity().parallel
    facts.add_row("boundary", f"{prefix.boundary:,} tokens")
    facts.add_row("prefix", prefix.text)
    facts.add_row("images", prefix.images or "none")
    for name, value in meta.identity.items():
        if not name.startswith("parallel.") and value:
            facts.add_row(name, _said(value))
    facts.add_row("rank", f"{rank.tp_rank} of {rank.tp_size} (tensor parallel)")
    facts.add_row("page", f"{meta.page_tokens} tokens")
    facts.add_row("checkpoint", meta.checkpoint_dtype)
    facts.add_row("hint", "writable" if meta.writable else "copy on write")
    facts.add_row("format", f"{meta.format}, version {meta.version}")
    tensors = Table(box=None, pad_edge=False)
    for name in ("state", "dtype", "shape", "bytes", "checksum"):
        tensors.add_column(name, justify="right" if name == "bytes" else "left")
    for name, (dtype, shape) in shapes.items():
        stamp = meta.tensors.get(name)  # type: ignore[call-overload]
        size = prod(shape) * itemsize(dtype)
        sum_ = f"{stamp.checksum:08x}" if stamp else "-"
        tensors.add_row(
            _said(labels.get(name, name)), dtype, _said(list(shape)), format_bytes(size), sum_
        )
    console = Console()
    console.print(f"{printable(file.name)}: a model state bundle", markup=False, highlight=False)
    console.print(facts, highlight=False)
    console.print(tensors, highlight=False)
    said = "every checksum is right" if verified else "checksums not tried (--verify)"
    console.print(said, highlight=False)
