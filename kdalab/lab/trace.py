"""Reading traces in Mooncake's JSONL form (Mooncake, FAST'25), gzipped or not.

One object a line: ``timestamp`` (ms), ``input_length`` and ``output_length`` (tokens), and
``hash_ids``, one id a block of 512 input tokens, the last block partial. An id stands for the
whole prefix up to the end of its block.
"""

from __future__ import annotations

import gzip
import json
import zlib
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol, cast

from kdalab.errors import KdalabError

BLOCK_TOKENS = 512
MAX_LINE_BYTES = 64 << 20
MAX_TOKENS = 1 << 31
MAX_BAD_LINES = 100
FIELDS = ("timestamp", "input_length", "output_length", "hash_ids")
_GZIP_MAGIC = b"\x1f\x8b"


class TraceRequest(NamedTuple):
    """One request. ``blocks`` covers the whole prompt, the last block partial."""

    line: int
    timestamp_ms: float
    input_tokens: int
    output_tokens: int
    blocks: array[int]


class Skipped(NamedTuple):
    """A line that could not be used: where, which field, and why."""

    line: int
    field: str
    reason: str

    def __str__(self) -> str:
        where = f"line {self.line:,}, field {self.field}" if self.field else f"line {self.line:,}"
        return f"{where}: {self.reason}"


class Requests(Protocol):
    """Requests in the order of arrival; every iteration starts anew and gives the same ones.

    ``n_skipped`` and ``skipped`` (the first three) are complete when an iteration has ended.
    """

    name: str
    block_tokens: int
    n_skipped: int
    skipped: list[Skipped]

    def __iter__(self) -> Iterator[TraceRequest]: ...


@dataclass(slots=True)
class Trace:
    """A whole trace in memory, and what was left out of it."""

    name: str
    requests: list[TraceRequest] = field(default_factory=list)
    n_skipped: int = 0
    skipped: list[Skipped] = field(default_factory=list)
    block_tokens: int = BLOCK_TOKENS

    def __iter__(self) -> Iterator[TraceRequest]:
        return iter(self.requests)

    @property
    def input_tokens(self) -> int:
        """Prompt tokens of all requests."""
        return sum(r.input_tokens for r in self.requests)


class TraceFile:
    """A trace on disk, of which one line at a time is in memory.

    Args:
        path: a JSONL file, gzipped or not. A pipe can be read only once.
        limit: stop after so many requests.
        max_bad: lines that may be unusable; they are counted and the first three kept.
        on_bytes: told, now and then, the position in the file (compressed bytes if gzipped).

    Iterating raises ``KdalabError`` when the file cannot be read, holds no request, or has more
    bad lines than allowed; the message names file, line and field.
    """

    def __init__(
        self,
        path: str | Path,
        limit: int | None = None,
        max_bad: int = MAX_BAD_LINES,
        on_bytes: Callable[[int], None] | None = None,
    ) -> None:
        if limit is not None and limit < 1:
            raise KdalabError(f"a limit of {limit:,} requests; use 1 or more, or none")
        self.file = Path(path)
        self.name = self.file.name.encode(errors="backslashreplace").decode()
        self.block_tokens = BLOCK_TOKENS
        self.limit, self.max_bad, self.on_bytes = limit, max_bad, on_bytes
        self.n_skipped = 0
        self.skipped: list[Skipped] = []

    def __iter__(self) -> Iterator[TraceRequest]:
        self.n_skipped, self.skipped = 0, []
        found, last = 0, 0.0
        for number, raw in _lines(self.file, self.on_bytes):
            if not raw.strip():
                continue
            try:
                request = _parse(number, raw, last)
            except _BadLineError as bad:
                self._skip(Skipped(number, bad.field, bad.reason))
                continue
            last = request.timestamp_ms
            found += 1
            yield request
            if found == self.limit:
                return
        if not found:
            why = str(self.skipped[0]) if self.skipped else "the file is empty"
            raise KdalabError(f"{self.file} holds no usable request; {why}")

    def _skip(self, line: Skipped) -> None:
        self.n_skipped += 1
        if len(self.skipped) < 3:
            self.skipped.append(line)
        if self.n_skipped > self.max_bad:
            raise KdalabError(
                f"{self.file}: {self.n_skipped:,} unusable lines, {self.max_bad:,} allowed. "
                f"The first: {self.skipped[0]}. Each line must be a JSON object with "
                f"{', '.join(FIELDS)}; raise --max-bad-lines to skip more"
            )


def read_mooncake(
    path: str | Path,
    limit: int | None = None,
    max_bad: int = MAX_BAD_LINES,
    on_bytes: Callable[[int], None] | None = None,
) -> Trace:
    """Read a whole trace into memory, 8 bytes a block; arguments and errors of ``TraceFile``."""
    file = TraceFile(path, limit, max_bad, on_bytes)
    requests = list(file)
    return Trace(file.name, requests, file.n_skipped, file.skipped)


class _BadLineError(Exception):
    def __init__(self, field: str, reason: str) -> None:
        self.field, self.reason = field, reason


def _lines(file: Path, on_bytes: Callable[[int], None] | None) -> Iterator[tuple[int, bytes]]:
    try:
        with file.open("rb") as raw:
            packed = raw.peek(2)[:2] == _GZIP_MAGIC or file.suffix == ".gz"
            stream = cast(IO[bytes], gzip.GzipFile(fileobj=raw)) if packed else raw
            number = 0
            while line := stream.readline(MAX_LINE_BYTES + 1):
                number += 1
                if len(line) > MAX_LINE_BYTES:
                    raise KdalabError(
                        f"{file}: line {number:,} is longer than {MAX_LINE_BYTES >> 20} MiB; "
                        "is this a JSONL trace?"
                    )
                if on_bytes is not None and number % 64 == 0:
                    on_bytes(raw.tell())
                yield number, line
    except KdalabError:
        raise
    except (OSError, EOFError, zlib.error, ValueError) as error:
        # ValueError: a path that no file system can hold, such as one with a NUL in it.
        reason = getattr(error, "strerror", None) or str(error)
        raise KdalabError(f"cannot read the trace {str(file)!r}: {reason}") from error


def _parse(number: int, raw: bytes, last: float) -> TraceRequest:
    try:
        row = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise _BadLineError("", f"not JSON ({_short(error)})") from None
    if not isinstance(row, dict):
        raise _BadLineError("", f"a {type(row).__name__}, not an object")
    for name in FIELDS:
        if name not in row:
            raise _BadLineError(name, "is missing")
    time = row["timestamp"]
    if isinstance(time, bool) or not isinstance(time, int | float) or not 0 <= time < 1e18:
        raise _BadLineError("timestamp", f"must be milliseconds of 0 or more, not {_short(time)}")
    if time < last:
        raise _BadLineError("timestamp", f"goes back from {last:.15g} to {time:.15g} ms")
    n_in = _tokens(row, "input_length", 1)
    n_out = _tokens(row, "output_length", 0)
    return TraceRequest(number, float(time), n_in, n_out, _blocks(row["hash_ids"], n_in))


def _tokens(row: dict[str, Any], name: str, least: int) -> int:
    value = row[name]
    if type(value) is not int or not least <= value <= MAX_TOKENS:
        raise _BadLineError(
            name, f"must be a whole number from {least} to {MAX_TOKENS:,}, not {_short(value)}"
        )
    return value


def _blocks(ids: object, n_in: int) -> array[int]:
    if not isinstance(ids, list) or not all(type(i) is int for i in ids):
        raise _BadLineError("hash_ids", "must be a list of whole numbers")
    wanted = -(-n_in // BLOCK_TOKENS)
    if len(ids) != wanted:
        raise _BadLineError(
            "hash_ids",
            f"{len(ids):,} ids for {n_in:,} tokens; blocks of {BLOCK_TOKENS} make {wanted:,}",
        )
    if min(ids) < 0:
        raise _BadLineError("hash_ids", f"an id of {_short(min(ids))}; ids are 0 or more")
    try:
        return array("q", ids)
    except OverflowError:
        raise _BadLineError("hash_ids", "an id does not fit 64 bits") from None


def _short(value: object) -> str:
    text = str(value) if isinstance(value, Exception) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
