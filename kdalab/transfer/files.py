"""Bundles as files: whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from kdalab.transfer.atomic import map_file, open_regular, write_atomically
from kdalab.transfer.bundle import Bundle
from kdalab.transfer.container import MAX_HEADER, read_header
from kdalab.transfer.metadata import BundleMeta, parse_metadata
from kdalab.transfer.refusal import BundleFormatError, only_format_errors, printable
from kdalab.transfer.stamp import check_stamp


def save_bundle(bundle: Bundle, path: str | Path) -> Path:
    """Write a bundle; a reader sees the old file or the whole new one."""
    return write_atomically(path, bundle.parts())


def load_bundle(path: str | Path) -> Bundle:
    """Read a bundle, checked as in ``Bundle.from_bytes``.

    Its tensors are read-only views of the mapped file: reading costs the checksums, and no memory
    of its own. A file that is replaced meanwhile stays mapped as it was.

    Raises:
        BundleFormatError: no bundle, or a damaged one; the file is named.
        OSError: the file cannot be read, or is no regular file.
    """
    file = Path(path)
    try:
        return Bundle.from_bytes(map_file(file))
    except BundleFormatError as error:
        raise BundleFormatError(f"{printable(file.name)}: {error}") from None


def load_metadata(path: str | Path) -> tuple[BundleMeta, dict[str, tuple[str, tuple[int, ...]]]]:
    """The metadata of a bundle, and each tensor's (dtype, shape); no tensor is read.

    Raises:
        BundleFormatError: no bundle; the file is named.
        OSError: the file cannot be read, or is no regular file.
    """
    file = Path(path)
    try:
        with open_regular(file) as stream:
            size = os.fstat(stream.fileno()).st_size
            head = stream.read(8)
            length = min(int.from_bytes(head, "little"), MAX_HEADER) if len(head) == 8 else 0
            start = head + stream.read(length)
        with only_format_errors():
            try:
                container = read_header(memoryview(start), size)
            except BundleFormatError as error:
                raise BundleFormatError(f"this is no bundle: {error}") from None
            meta = parse_metadata(container.metadata)
            check_stamp(meta, container.entries)
        shapes = {
            name: (str(e.dtype).removeprefix("torch."), e.shape)
            for name, e in container.entries.items()
        }
        return meta, shapes
    except BundleFormatError as error:
        raise BundleFormatError(f"{printable(file.name)}: {error}") from None
