"""Bundles in a Mooncake Store: memory of many machines, behind one master.

The store keeps and moves bytes that were judged valid before, and knows nothing of their meaning.
Everything of Mooncake stays in this file and in ``mooncake_master``; it is an optional package.
"""

from __future__ import annotations

import atexit
import os
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from kdalab.errors import KdalabError
from kdalab.transfer.checksum import Buffer
from kdalab.transfer.store import StoreError, is_key

PACKAGE = "mooncake-transfer-engine-non-cuda"
HOW_TO_INSTALL = (
    f"Mooncake is not installed: pip install {PACKAGE} (Linux; it needs libibverbs1, librdmacm1 "
    "and libnuma1, also without RDMA hardware), or use FolderStore"
)

SEGMENT_BYTES = 64 << 20
BUFFER_BYTES = 64 << 20
CONNECT_SECONDS = 3.0

_QUIET = {"GLOG_minloglevel": "3", "MC_LOG_LEVEL": "ERROR"}

_CODES = {
    -200: "no space left in the segments",
    -600: "larger than the client's buffer",
    -704: "no such key",
    -706: "somebody is still reading it",
    -900: "the master does not answer",
}


_LEFT: list[Any] = []
"""Clients whose master was gone when they were closed: to let go of one takes the library 10 s."""


class MooncakeStore:
    """One client of a Mooncake master, which also lends memory of this process to the store.

    A master that is gone is an error of every call (``StoreError``), never a key that is not there.
    It is looked for before each, since the library itself would try for four seconds and more, in
    which no thread of this process runs. A master that hangs is not found out so: calls then take
    as long as the library's own limit (30 s).

    Args:
        metadata_server: ``http://host:port/metadata``.
        master: ``host:port`` of the master.
        segment_bytes: memory of this process that holds others' values as well.
        buffer_bytes: memory that values pass through; no value can be larger.
        host: this process' own address.
        protocol: "tcp", or "rdma" with ``devices``.

    Raises:
        KdalabError: the package is missing, or the master does not answer.
    """

    def __init__(
        self,
        metadata_server: str,
        master: str,
        segment_bytes: int = SEGMENT_BYTES,
        buffer_bytes: int = BUFFER_BYTES,
        host: str = "127.0.0.1",
        protocol: str = "tcp",
        devices: str = "",
    ) -> None:
        self.name = "mooncake"
        self.segment_bytes, self.buffer_bytes = segment_bytes, buffer_bytes
        self._store: Any = None
        self._master = f"tcp://{master}"
        client = _client()
        for what, url in (("master", f"tcp://{master}"), ("metadata server", metadata_server)):
            _require_answer(what, url)
        self._store = client
        with _held_back() as noise:
            code = self._store.setup(
                host, metadata_server, segment_bytes, buffer_bytes, protocol, devices, master
            )
        if code != 0:
            self._store = None
            raise StoreError(
                f"the Mooncake master at {master} did not take this client "
                f"({_said(code)}{noise()}); its log may say why"
            )
        atexit.register(self.close)

    def put(self, key: str, parts: Sequence[Buffer]) -> None:
        """As ``StoreProtocol.put``; values never change, so what is there under the key stays.

        A store that is nearly full gives up old values by itself.
        """
        size = sum(memoryview(p).nbytes for p in parts)
        if size > self.buffer_bytes:
            raise StoreError(
                f"{size:,} bytes; this client passes at most {self.buffer_bytes:,} "
                "(buffer_bytes) at once"
            )
        code = self._ask().put_parts(_checked(key), *(memoryview(p).cast("B") for p in parts))
        if code != 0:
            raise StoreError(f"mooncake: {key} of {size:,} bytes was not put ({_said(code)})")

    def get(self, key: str) -> Buffer | None:
        """As ``StoreProtocol.get``; a copy, so that nothing of the store stays pinned."""
        handle = self._ask().get_buffer(_checked(key))
        if handle is not None:
            return bytearray(memoryview(handle))
        code = self._ask().is_exist(key)  # None is also what an error looks like
        if code == 0:
            return None
        why = _said(code) if code < 0 else "it is there and cannot be read"
        raise StoreError(f"mooncake: {key} was not read ({why})")

    def exists(self, keys: Sequence[str]) -> list[bool]:
        """As ``StoreProtocol.exists``, in one round trip."""
        if not keys:
            return []
        found = self._ask().batch_is_exist([_checked(k) for k in keys])
        if len(found) != len(keys) or min(found) < 0:
            raise StoreError(f"mooncake: the keys were not asked for ({_said(min(found))})")
        return [n == 1 for n in found]

    def remove(self, key: str) -> bool:
        """As ``StoreProtocol.remove``, also while a reader's lease on it lasts."""
        code = self._ask().remove(_checked(key), True)
        if code == 0:
            return True
        if code == -704:
            return False
        raise StoreError(f"mooncake: {key} was not removed ({_said(code)})")

    def close(self) -> None:
        """Leave the store; the segment's values go with it. Harmless if repeated.

        When the master is gone there is nothing to leave: the client is put aside, and its memory
        goes back when the process ends.
        """
        store, self._store = self._store, None
        if store is None:
            return
        atexit.unregister(self.close)
        try:
            _require_answer("master", self._master)
        except StoreError:
            _LEFT.append(store)
        else:
            store.close()

    def __enter__(self) -> MooncakeStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self) -> Any:
        """The library's client, whose master answers."""
        if self._store is None:
            raise StoreError("this Mooncake client is closed; make another")
        _require_answer("master", self._master)
        return self._store


def _client() -> Any:
    """A client object; the library reads its log levels from the environment when it loads."""
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    try:
        from mooncake.store import MooncakeDistributedStore
    except ImportError as error:
        raise KdalabError(f"{HOW_TO_INSTALL} ({error})") from None
    return MooncakeDistributedStore()


def _require_answer(what: str, url: str) -> None:
    """The library itself would try for a minute and a half before it gave up."""
    try:
        place = urlsplit(url)
        with socket.create_connection((place.hostname or "", place.port or 80), CONNECT_SECONDS):
            return
    except (OSError, ValueError) as error:
        raise StoreError(
            f"no Mooncake {what} at {url} ({error}); `kdalab mooncake up` starts one"
        ) from None


@contextmanager
def _held_back() -> Iterator[Callable[[], str]]:
    """Keep what the library writes to the process' standard error by itself: it reports the first
    registration of every client as an error. What is given says the last line of it."""
    sys.stderr.flush()
    with tempfile.TemporaryFile() as file:
        lines: list[str] = []
        before = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            yield lambda: f"; {lines[-1]}" if lines else ""
        finally:
            os.dup2(before, 2)
            os.close(before)
            file.seek(0)
            lines += file.read()[-4000:].decode(errors="replace").splitlines()


def _checked(key: str) -> str:
    if not is_key(key):
        raise StoreError(f"key {repr(key)[:60]}; use up to 200 letters, digits, dots and hyphens")
    return key


def _said(code: int) -> str:
    return _CODES.get(code, f"error {code}")
