"""A bundle as bytes: a safetensors file whose header says everything that the tensors are.

What is read is believed only when all of it has been held against the rest of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from kdalab.errors import KdalabError
from kdalab.transfer.checksum import Buffer, checksum, copy_and_sum
from kdalab.transfer.container import (
    Container,
    bytes_of,
    entries_of,
    header_bytes,
    read_header,
    read_tensor,
)
from kdalab.transfer.metadata import (
    VERSION,
    BundleMeta,
    PrefixMeta,
    TensorMeta,
    check_version,
    parse_metadata,
)
from kdalab.transfer.refusal import BundleFormatError, only_format_errors, require
from kdalab.transfer.stamp import UNSTAMPED, check_stamp, stamped

if TYPE_CHECKING:
    from kdalab.transfer.bundle import Bundle


def metadata(bundle: Bundle) -> BundleMeta:
    """See ``Bundle.metadata``."""
    known = bundle.checksums or {}
    left = {n: t for n, t in _contiguous(bundle).items() if n not in known}
    return _metadata(bundle, {**known, **{n: checksum(bytes_of(t)) for n, t in left.items()}})


def parts(bundle: Bundle, version: int = VERSION) -> list[Buffer]:
    """See ``Bundle.parts``."""
    check_version(version)
    tensors = _contiguous(bundle)
    text = metadata(bundle).model_dump_json()
    header = header_bytes(text, tensors, header_size(bundle))
    return [header, *(bytes_of(t) for t in tensors.values() if t.nbytes)]


def write_into(bundle: Bundle, target: bytearray | memoryview) -> int:
    """See ``Bundle.write_into``."""
    view, size = memoryview(target).cast("B"), bundle.blob_bytes
    if view.readonly or len(view) < size:
        kind = "read-only" if view.readonly else f"{len(view):,} bytes"
        raise KdalabError(f"a buffer of {size:,} writable bytes is needed, this one is {kind}")
    first = header_size(bundle)
    tensors, sums, at = _contiguous(bundle), {}, first
    for name, tensor in tensors.items():
        sums[name] = copy_and_sum(bytes_of(tensor), view[at:])
        at += tensor.nbytes
    header = header_bytes(_metadata(bundle, sums).model_dump_json(), tensors, first)
    view[: len(header)] = header
    return size


def header_size(bundle: Bundle) -> int:
    """Bytes of the header, the same whatever the checksums are: that of the longest ones."""
    longest = dict.fromkeys(bundle.tensors, 0xFFFFFFFF)
    text = _metadata(bundle, longest).model_dump_json()
    return len(header_bytes(text, bundle.tensors))


def read(kind: type[Bundle], data: Buffer) -> Bundle:
    """See ``Bundle.from_bytes``."""
    view = memoryview(data).cast("B")
    with only_format_errors():
        container = read_header(view)
        meta = parse_metadata(container.metadata)
        check_stamp(meta, container.entries)
        return _build(kind, view, container, meta)


def _metadata(bundle: Bundle, sums: Mapping[str, int]) -> BundleMeta:
    identity, prefix = bundle.identity.digest(), bundle.prefix
    tensors = {
        name: TensorMeta(
            identity=identity, prefix=prefix.digest, boundary=bundle.boundary, checksum=sums[name]
        )
        for name in bundle.tensors
    }
    meta = BundleMeta(
        version=VERSION,
        identity=bundle.identity.to_dict(),
        prefix=PrefixMeta(boundary=bundle.boundary, text=prefix.text, images=prefix.images),
        page_tokens=bundle.page_tokens,
        channels=list(bundle.channels),
        checkpoint_dtype=bundle.checkpoint_dtype,  # type: ignore[arg-type]
        writable=bundle.writable,
        tensors=tensors,  # type: ignore[arg-type]
        stamp=UNSTAMPED,
    )
    return stamped(meta, entries_of(bundle.tensors))


def _contiguous(bundle: Bundle) -> dict[str, torch.Tensor]:
    return {name: t.detach().cpu().contiguous() for name, t in bundle.tensors.items()}


def _build(kind: type[Bundle], view: memoryview, container: Container, meta: BundleMeta) -> Bundle:
    if set(container.entries) != set(meta.tensors):
        raise BundleFormatError(
            f"tensors {sorted(container.entries)[:6]}, the metadata speaks of "
            f"{sorted(meta.tensors)}"
        )
    require(meta.stamp_refusals(), "a tensor of this bundle")
    sums: dict[str, int] = {name: stamp.checksum for name, stamp in meta.tensors.items()}
    for name, expected in sums.items():
        entry = container.entries[name]
        got = checksum(view[container.start + entry.begin : container.start + entry.end])
        if got != expected:
            raise BundleFormatError(
                f"{name}: checksum {got:08x}, written as {expected:08x}: the bytes have "
                "changed. Fetch it again"
            )
    tensors = {name: read_tensor(view, container, name) for name in container.entries}
    q, k, v = meta.channels
    try:
        bundle = kind(
            meta.state_identity(),
            meta.prefix_hash(),
            tensors["latent"],
            tensors["recurrent"],
            tensors["conv"],
            (q, k, v),
            tensors.get("embeddings"),
            meta.checkpoint_dtype,
            meta.writable,
            sums,
        )
    except BundleFormatError:
        raise
    except KdalabError as error:
        raise BundleFormatError(str(error)) from None
    if bundle.page_tokens != meta.page_tokens:
        raise BundleFormatError(
            f"page_tokens {meta.page_tokens}, but the pages have {bundle.page_tokens} tokens"
        )
    return bundle
