"""What is refused, tried here and now: each row changes one thing and runs the real check."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from kdalab.cache import Image
from kdalab.errors import KdalabError
from kdalab.spec import ParallelLayout, StateIdentity
from kdalab.transfer.bundle import Bundle, combine
from kdalab.transfer.container import bytes_of, entries_of, header_bytes, torch_dtype
from kdalab.transfer.metadata import VERSION
from kdalab.transfer.prefix import PrefixHash
from kdalab.transfer.ranks import relayout, split
from kdalab.transfer.refusal import BundleRefusedError
from kdalab.transfer.stamp import stamped

TEXT = tuple(range(1, 97))


class MatrixRow(NamedTuple):
    """One attempt: what was changed, whether it was refused, and the field that differed."""

    case: str
    refused: bool
    field: str
    ours: str
    theirs: str
    message: str


def refusal_matrix() -> list[MatrixRow]:
    """Every way in which a state can be the wrong one, and a control that is taken.

    The receiver expects a small bundle's identity, prefix, boundary and page size. Each row offers
    it another bundle, complete and valid in itself, through its bytes.
    """
    ours = _bundle()
    rows = [_row("the same state", ours, ours)]
    rows.append(_row_of("latent KV of A, state of B", lambda: combine(ours, _of_other_text())))
    for case, theirs in _offers(ours):
        rows.append(_row(case, ours, theirs))
    rows.append(_row_of("two states in one file", lambda: Bundle.from_bytes(_mixed(ours))))
    rows.append(_row_of("one bit changed on the way", lambda: Bundle.from_bytes(_flipped(ours))))
    rows.append(_row_of("a newer format", lambda: ours.to_bytes(VERSION + 1)))
    return rows


def _offers(ours: Bundle) -> list[tuple[str, Bundle]]:
    """(case, a valid bundle that differs in that one thing)."""
    n = len(TEXT)
    image = (Image(8, 12, b"another image"),)

    def who(**changes: Any) -> Bundle:
        return ours.changed(identity=replace(ours.identity, **changes))

    return [
        ("another model", who(model="tiny-k3")),
        ("another version of the weights", who(model_version="seed-1")),
        ("another tokenizer", who(tokenizer="words")),
        ("an adapter's state", who(extra=(("adapter", "lora-7"),))),
        ("recurrent state of another dtype", _cast(ours, recurrent="bf16")),
        ("conv state of another dtype", _cast(ours, conv="bf16")),
        ("latent KV of another dtype", _cast(ours, latent="fp16")),
        ("K and V swapped", relayout(ours, "k_first")),
        ("conv axes swapped", relayout(ours, None, "channel_first")),
        ("one of two ranks", split(ours, 2)[0]),
        ("another pipeline stage", who(parallel=ParallelLayout(1, 0, 2, 1))),
        ("another page size", _bundle(page_tokens=32)),
        ("rounded to INT8", ours.changed(checkpoint_dtype="int8")),
        ("another boundary", _bundle(boundary=64)),
        ("other text of equal length", _of_other_text()),
        ("another image in the same text", ours.changed(prefix=PrefixHash.of(TEXT, n, image))),
    ]


def _row(case: str, ours: Bundle, theirs: Bundle) -> MatrixRow:
    blob = theirs.to_bytes()

    def take() -> None:
        read = Bundle.from_bytes(blob)
        expected = (ours.identity, ours.prefix, ours.page_tokens, ours.checkpoint_dtype)
        read.require(*expected)

    return _row_of(case, take)


def _row_of(case: str, attempt: Callable[[], object]) -> MatrixRow:
    try:
        attempt()
    except BundleRefusedError as error:
        first = error.refusals[0]
        return MatrixRow(case, True, first.field, first.ours, first.theirs, str(error))
    except KdalabError as error:
        return MatrixRow(case, True, str(error).partition(":")[0], "", "", str(error))
    return MatrixRow(case, False, "", "", "", "taken")


def _bundle(boundary: int = 96, page_tokens: int = 16, text: tuple[int, ...] = TEXT) -> Bundle:
    """2 KDA and 1 MLA layers, 2 heads with K = V, so that a swap of the two cannot be seen."""
    layers, heads, size, width = 2, 2, 8, 3
    random = torch.Generator().manual_seed(boundary)
    channels = 3 * (heads * size,)
    identity = StateIdentity(
        "tiny", "seed-0", "bytes", "fp32", "fp32", "fp32", conv_layout="time_first"
    )
    pages = -(-boundary // page_tokens)
    return Bundle(
        identity,
        PrefixHash.of(text, boundary),
        torch.randn(pages, 1, page_tokens, 12, generator=random),
        torch.randn(layers, heads, size, size, generator=random),
        torch.randn(layers, width, sum(channels), generator=random),
        channels,
    )


def _of_other_text() -> Bundle:
    return _bundle(text=(*TEXT[:-1], 7))


def _cast(bundle: Bundle, **kinds: str) -> Bundle:
    """One kind in another dtype; the identity says so."""
    ((name, dtype),) = kinds.items()
    key = {"recurrent": "state_dtype", "conv": "conv_dtype", "latent": "kv_dtype"}[name]
    return bundle.changed(
        identity=replace(bundle.identity, **{key: dtype}),  # type: ignore[arg-type]
        **{name: getattr(bundle, name).to(torch_dtype(dtype))},
    )


def _mixed(bundle: Bundle) -> bytes:
    """A file with the latent KV of one text, and the state of another with that state's stamps."""
    other = _of_other_text()
    stamps = {**other.metadata().tensors, "latent": bundle.metadata().tensors["latent"]}
    meta = bundle.metadata().model_copy(update={"tensors": stamps})
    tensors = {**other.tensors, "latent": bundle.latent}
    meta = stamped(meta, entries_of(tensors))
    pieces = [bytes_of(t) for t in tensors.values()]
    return b"".join([header_bytes(meta.model_dump_json(), tensors), *pieces])


def _flipped(bundle: Bundle) -> bytearray:
    data = bytearray(bundle.to_bytes())
    data[-5] ^= 16
    return data
