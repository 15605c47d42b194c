"""One stamp over everything that a bundle's header says, metadata and table of tensors alike.

The checksums cover the tensors' bytes; what the bytes mean is said in the header. A header that was
changed on the way, or pieced together of two, does not agree with its stamp. It is no signature:
who can write the file can stamp it anew, so that a receiver holds it against its own model as well
(``kdalab.transfer.geometry``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import blake2b

from kdalab.transfer.container import Entry, dtype_name
from kdalab.transfer.metadata import BundleMeta
from kdalab.transfer.refusal import BundleFormatError

STAMP_BYTES = 16
UNSTAMPED = "0" * (2 * STAMP_BYTES)


def stamp_of(meta: BundleMeta, entries: Mapping[str, Entry]) -> str:
    """BLAKE2b, in hex, of the canonical JSON of every field but the stamp, and of each tensor's
    name, type and shape. Where it lies is left to its checksum: other writers of safetensors order
    tensors in their own way."""
    table = {name: [dtype_name(e.dtype), list(e.shape)] for name, e in entries.items()}
    said = [meta.model_dump(exclude={"stamp"}), table]
    text = json.dumps(said, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return blake2b(text.encode(), digest_size=STAMP_BYTES).hexdigest()


def stamped(meta: BundleMeta, entries: Mapping[str, Entry]) -> BundleMeta:
    """The metadata with the stamp that belongs to it."""
    return meta.model_copy(update={"stamp": stamp_of(meta, entries)})


def check_stamp(meta: BundleMeta, entries: Mapping[str, Entry]) -> None:
    """Refuse a header that is not the one that was stamped.

    Raises:
        BundleFormatError: with both stamps.
    """
    true = stamp_of(meta, entries)
    if meta.stamp != true:
        raise BundleFormatError(
            f"the header's stamp is {meta.stamp[:12]}, its fields and shapes give {true[:12]}: the "
            "header has changed. Fetch it again"
        )
