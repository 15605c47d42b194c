"""Where bundles lie between instances: bytes by key. The default is a folder, without a server."""

from __future__ import annotations

import json
import math
import re
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from kdalab.errors import KdalabError
from kdalab.transfer.atomic import map_file, staged, write_atomically
from kdalab.transfer.checksum import Buffer

KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
SUFFIX = ".safetensors"
LOCK_SECONDS = 30.0
LEFTOVER_SECONDS = 3600.0
INDEX = "index.json"
INDEX_VERSION = 1
MAX_INDEX = 64 << 20


def is_key(key: object) -> bool:
    """Whether a store takes it for a key."""
    return isinstance(key, str) and KEY.fullmatch(key) is not None


class StoreError(KdalabError):
    """A store did not do what was asked; what it held before it still holds."""


class StoreProtocol(Protocol):
    """Bytes by key. A store knows nothing of what they mean: what is put was judged valid before,
    and what is got is judged again.

    Keys are letters, digits, dots, hyphens and underscores (``bundle_key`` makes them).
    """

    @property
    def name(self) -> str:
        """What events and messages call it."""
        ...

    def put(self, key: str, parts: Sequence[Buffer]) -> None:
        """Keep the parts, one after another, under ``key``; what is there under it may stay.

        Raises:
            StoreError: it does not fit, or the store cannot be reached.
        """
        ...

    def get(self, key: str) -> Buffer | None:
        """The bytes of ``key``; None when there are none.

        Raises:
            StoreError: the store cannot be reached, so nobody knows.
        """
        ...

    def exists(self, keys: Sequence[str]) -> list[bool]:
        """Whether each key has bytes now.

        Raises:
            StoreError: the store cannot be reached, so nobody knows.
        """
        ...

    def remove(self, key: str) -> bool:
        """Give the bytes of ``key`` up; False when there are none.

        Raises:
            StoreError: it cannot be reached, or keeps them.
        """
        ...


class Stored(NamedTuple):
    """A row of a folder's index: bytes of the file, and when it was written (Unix seconds)."""

    bytes: int
    written: float


class FolderStore:
    """A folder with one file a key and an index of them; several processes may use it at once.

    A file gets its name when all of it is written, so a reader sees all of a value or none. Who
    changes the folder holds its lock. The index knows sizes and ages; what it says is compared
    with the files. One that cannot be read is made anew from them, and one that cannot be written
    costs only the ages: ``repaired`` says so, and the files' own count.

    Args:
        path: the folder; it is made if need be.
        limit_bytes: what all values together may take. The oldest go first. None: no limit.
        sync: have every value on the disk before ``put`` returns.

    Raises:
        StoreError: the folder cannot be made, or a limit that is no whole number of bytes.
    """

    def __init__(
        self,
        path: str | Path,
        limit_bytes: int | None = None,
        sync: bool = True,
        name: str | None = None,
    ) -> None:
        from filelock import FileLock

        if limit_bytes is not None and (type(limit_bytes) is not int or limit_bytes < 1):
            raise StoreError(f"limit_bytes = {limit_bytes!r}; at least 1, or None for no limit")
        try:
            self.path = Path(path)
            self.path.mkdir(parents=True, exist_ok=True)
        except (OSError, TypeError, ValueError) as error:
            raise StoreError(f"{path!r} cannot be the folder of a store: {error}") from error
        self.name = name or self.path.name
        self.limit_bytes, self.sync = limit_bytes, sync
        self.repaired = ""  # why the index was made anew or not written, if so
        self._lock = FileLock(self.path / ".lock", timeout=LOCK_SECONDS)

    def put(self, key: str, parts: Sequence[Buffer]) -> None:
        """As ``StoreProtocol.put``; a value that is there already is replaced.

        It is written without the lock and named under it, as the last thing that can fail.
        """
        file = self._file(key)
        size = sum(memoryview(p).nbytes for p in parts)
        if self.limit_bytes is not None and size > self.limit_bytes:
            raise StoreError(f"{size:,} bytes; {self.name} holds {self.limit_bytes:,}")
        try:
            with staged(file, parts, self.sync) as name_it, self._locked() as entries:
                self._make_room(entries, key, size)
                name_it()
                entries[key] = Stored(size, time.time())
                self._sweep()
        except OSError as error:
            raise StoreError(f"{self.name}: {error}") from error

    def get(self, key: str) -> Buffer | None:
        """As ``StoreProtocol.get``: the mapped file, read-only."""
        try:
            return map_file(self._file(key))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreError(f"{self.name}: {error}") from error

    def exists(self, keys: Sequence[str]) -> list[bool]:
        """As ``StoreProtocol.exists``: the files are asked, not the index."""
        return [self._file(key).is_file() for key in keys]

    def remove(self, key: str) -> bool:
        """As ``StoreProtocol.remove``."""
        file = self._file(key)
        with self._locked() as entries:
            entries.pop(key, None)
            try:
                file.unlink()
            except FileNotFoundError:
                return False
        return True

    def entries(self) -> dict[str, Stored]:
        """What the folder holds, oldest first."""
        with self._locked(write=False) as entries:
            return dict(sorted(entries.items(), key=lambda item: item[1].written))

    @property
    def nbytes(self) -> int:
        """Bytes of all values."""
        return sum(e.bytes for e in self.entries().values())

    # -- inside ------------------------------------------------------------------------------

    def _file(self, key: str) -> Path:
        if not is_key(key):
            raise StoreError(
                f"key {repr(key)[:60]}; use up to 200 letters, digits, dots, hyphens and "
                "underscores"
            )
        return self.path / f"{key}{SUFFIX}"

    @contextmanager
    def _locked(self, write: bool = True) -> Iterator[dict[str, Stored]]:
        """The index under the lock; with ``write``, what was changed in it is kept."""
        from filelock import Timeout

        try:
            with self._lock:
                before = self._read()
                entries = self._true(before or {})
                try:
                    yield entries
                finally:
                    if write or before != entries:
                        self._keep(entries)
        except Timeout:
            raise StoreError(
                f"{self.name}: another process has held its lock for {LOCK_SECONDS:.0f} s"
            ) from None
        except OSError as error:
            raise StoreError(f"{self.name}: {error}") from error

    def _read(self) -> dict[str, Stored] | None:
        """The index; None when there is none, or none that can be read."""
        file = self.path / INDEX
        try:
            if file.stat().st_size > MAX_INDEX:
                raise ValueError(f"{INDEX} has more than {MAX_INDEX:,} bytes")
            raw = json.loads(file.read_bytes())
            if raw.get("version") != INDEX_VERSION:
                raise ValueError(f"{INDEX} is of version {raw.get('version')!r}")
            return {key: _stored(key, row) for key, row in raw["entries"].items()}
        except FileNotFoundError:
            return None
        except (
            ArithmeticError,
            AttributeError,
            LookupError,
            OSError,
            RecursionError,
            TypeError,
            ValueError,
        ) as error:
            self.repaired = f"{INDEX} cannot be read ({error}); made anew from the files"
            return None

    def _true(self, entries: dict[str, Stored]) -> dict[str, Stored]:
        """The index as the files have it: a file without a row gets one, a row without goes."""
        found = {}
        for file in self.path.iterdir():
            key = file.name.removesuffix(SUFFIX)
            if file.name.endswith(SUFFIX) and KEY.fullmatch(key):
                with suppress(OSError):  # gone, or a link that leads nowhere
                    true = file.stat()
                    if not stat.S_ISREG(true.st_mode):
                        continue  # a folder or a pipe of that name is no value
                    known = entries.get(key)
                    same = known is not None and known.bytes == true.st_size
                    found[key] = known if known and same else Stored(true.st_size, true.st_mtime)
        return found

    def _keep(self, entries: dict[str, Stored]) -> None:
        """Write the index. The files are what counts, so a put does not fail with it."""
        rows = {key: list(row) for key, row in entries.items()}
        text = json.dumps({"version": INDEX_VERSION, "entries": rows}, indent=0)
        try:
            write_atomically(self.path / INDEX, [text.encode()], sync=False)
        except OSError as error:
            self.repaired = f"{INDEX} cannot be written ({error}); the files' own times count"

    def _make_room(self, entries: dict[str, Stored], key_in: str, size: int) -> None:
        """Give up the oldest until ``size`` bytes under ``key_in`` are within the limit."""
        if self.limit_bytes is None:
            return
        total = size + sum(e.bytes for key, e in entries.items() if key != key_in)
        for key, row in sorted(entries.items(), key=lambda item: item[1].written):
            if total <= self.limit_bytes:
                return
            if key != key_in:
                self._file(key).unlink(missing_ok=True)
                del entries[key]
                total -= row.bytes

    def _sweep(self) -> None:
        """Remove what writers that were killed have left half written."""
        for file in self.path.glob(".*.part"):
            with suppress(OSError):
                if time.time() - file.stat().st_mtime > LEFTOVER_SECONDS:
                    file.unlink()


def _stored(key: str, row: Any) -> Stored:
    size, written = row
    if (
        not is_key(key)
        or type(size) is not int
        or size < 0
        or type(written) not in (int, float)
        or not math.isfinite(written)
    ):
        raise ValueError(f"a row {key[:40]!r}: {repr(row)[:60]}")
    return Stored(size, float(written))
