"""Files that are whole or not there at all."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import secrets
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO

from kdalab.transfer.checksum import Buffer

_IOV = 512
"""Pieces of one vectored write; every system takes at least 16, Linux 1,024."""


def write_atomically(path: str | Path, parts: Sequence[Buffer], sync: bool = True) -> Path:
    """Write ``parts`` one after another into a new file, then give it its name.

    With ``sync`` the bytes are on the disk before the name is, and the name before this returns.
    """
    with staged(path, parts, sync) as name_it:
        name_it()
    return Path(path)


@contextlib.contextmanager
def staged(
    path: str | Path, parts: Sequence[Buffer], sync: bool = True
) -> Iterator[Callable[[], None]]:
    """A new file with ``parts`` beside ``path``, and what gives it its name; without that it goes.

    For those who have more to do between the writing, which takes long, and the name.
    """
    file = Path(path)
    temporary = file.parent / f".{file.name[:80]}.{os.getpid()}-{secrets.token_hex(6)}.part"
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)

    def name_it() -> None:
        os.replace(temporary, file)
        if sync:
            _sync_folder(file.parent)

    try:
        try:
            _write_all(handle, parts)
            if sync:
                os.fsync(handle)
        finally:
            os.close(handle)
        yield name_it
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary)


def map_file(path: str | Path) -> Buffer:
    """The bytes of a file, mapped and read-only.

    Only for files that are written by :func:`write_atomically`: one that is cut while it is
    mapped ends the process that reads it.

    Raises:
        OSError: the file cannot be opened, or is none.
    """
    with open_regular(path) as stream:
        if os.fstat(stream.fileno()).st_size == 0:
            return b""  # nothing cannot be mapped
        return mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)


def open_regular(path: str | Path) -> IO[bytes]:
    """Open a file to read, without waiting for the other end of what is a pipe.

    Raises:
        OSError: it cannot be opened, or is a folder, a pipe, a device or a socket.
    """
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    handle = os.open(path, flags)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "is no regular file; give the file of a bundle", str(path))
        return os.fdopen(handle, "rb", buffering=0)
    except BaseException:
        os.close(handle)
        raise


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
