"""Bundles as files: whole or not at all."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Sequence
from pathlib import Path

from kdalab.transfer.bundle import Bundle
from kdalab.transfer.checksum import Buffer
from kdalab.transfer.container import MAX_HEADER, read_header
from kdalab.transfer.metadata import BundleMeta, parse_metadata
from kdalab.transfer.refusal import BundleFormatError

SUFFIX = ".safetensors"
MAX_BYTES = 1 << 40

_IOV = 512


def save_bundle(bundle: Bundle, path: str | Path) -> Path:
    """Write a bundle; a reader sees the old file or the whole new one."""
    return write_atomically(path, bundle.parts())


def load_bundle(path: str | Path) -> Bundle:
    """Read a bundle into memory of its own, checked as in ``Bundle.from_bytes``.

    Raises:
        BundleFormatError: no bundle, or a damaged one; the file is named.
        OSError: the file cannot be read.
    """
    file = Path(path)
    with file.open("rb", buffering=0) as stream:
        size = os.fstat(stream.fileno()).st_size
        try:
            head = stream.read(8)
            if size > MAX_BYTES or len(head) < 8 or int.from_bytes(head, "little") > MAX_HEADER:
                read_header(memoryview(head), size)
                raise BundleFormatError(f"{size:,} bytes; at most {MAX_BYTES:,} are read")
            data = bytearray(size)
            data[:8] = head
            _fill(stream.fileno(), memoryview(data)[8:])
            return Bundle.from_bytes(data)
        except BundleFormatError as error:
            raise BundleFormatError(f"{file.name}: {error}") from None


def load_metadata(path: str | Path) -> tuple[BundleMeta, dict[str, tuple[str, tuple[int, ...]]]]:
    """The metadata of a bundle, and each tensor's (dtype, shape); no tensor is read.

    Raises:
        BundleFormatError: no bundle; the file is named.
        OSError: the file cannot be read.
    """
    file = Path(path)
    try:
        with file.open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            head = stream.read(8)
            length = min(int.from_bytes(head, "little"), MAX_HEADER) if len(head) == 8 else 0
            container = read_header(memoryview(head + stream.read(length)), size)
        shapes = {
            name: (str(e.dtype).removeprefix("torch."), e.shape)
            for name, e in container.entries.items()
        }
        return parse_metadata(container.metadata), shapes
    except BundleFormatError as error:
        raise BundleFormatError(f"{file.name}: {error}") from None


def write_atomically(path: str | Path, parts: Sequence[Buffer], sync: bool = True) -> Path:
    """Write ``parts`` one after another into a new file, then give it its name.

    With ``sync`` the bytes are on the disk before the name is, and the name before this returns.
    """
    file = Path(path)
    temporary = file.parent / f".{file.name[:80]}.{os.getpid()}-{secrets.token_hex(6)}.part"
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        try:
            _write_all(handle, parts)
            if sync:
                os.fsync(handle)
        finally:
            os.close(handle)
        os.replace(temporary, file)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    if sync:
        _sync_folder(file.parent)
    return file


def _write_all(handle: int, parts: Sequence[Buffer]) -> None:
    left = [memoryview(p).cast("B") for p in parts if len(memoryview(p).cast("B"))]
    while left:
        done = os.writev(handle, left[:_IOV])
        while left and done >= len(left[0]):
            done -= len(left.pop(0))
        if left:
            left[0] = left[0][done:]


def _fill(handle: int, target: memoryview) -> None:
    at = 0
    while at < len(target):
        got = os.readv(handle, [target[at:]])
        if got == 0:
            raise BundleFormatError(f"cut off after {at + 8:,} of {len(target) + 8:,} bytes")
        at += got


def _sync_folder(folder: Path) -> None:
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
