"""Files that are whole or not there at all."""

from __future__ import annotations

import contextlib
import mmap
import os
import secrets
from collections.abc import Sequence
from pathlib import Path

from kdalab.transfer.checksum import Buffer

_IOV = 512
"""Pieces of one vectored write; every system takes at least 16, Linux 1,024."""


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


def map_file(path: str | Path) -> Buffer:
    """The bytes of a file, mapped and read-only.

    Only for files that are written by :func:`write_atomically`: one that is cut while it is
    mapped ends the process that reads it.

    Raises:
        OSError: the file cannot be opened.
    """
    with Path(path).open("rb", buffering=0) as stream:
        if os.fstat(stream.fileno()).st_size == 0:
            return b""  # nothing cannot be mapped
        return mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)


def _write_all(handle: int, parts: Sequence[Buffer]) -> None:
    left = [memoryview(p).cast("B") for p in parts if len(memoryview(p).cast("B"))]
    while left:
        done = os.writev(handle, left[:_IOV])
        while left and done >= len(left[0]):
            done -= len(left.pop(0))
        if left:
            left[0] = left[0][done:]


def _sync_folder(folder: Path) -> None:
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
