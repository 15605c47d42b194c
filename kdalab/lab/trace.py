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
from typing import Any, NamedTuple

from kdalab.errors import KdalabError

BLOCK_TOKENS = 512
MAX_LINE_BYTES = 64 << 20
MAX_TOKENS = 1 << 31
FIELDS = ("timestamp", "input_length", "output_length", "hash_ids")


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
        where = f"line {self.line:,}"
        return (
            f"{where}, field {self.field}: {self.reason}"
            if self.field
            else (f"{where}: {self.reason}")
        )


@dataclass(slots=True)
class Trace:
    """A whole trace and what was left out of it."""

    name: str
    requests: list[TraceRequest] = field(default_factory=list)
    n_skipped: int = 0
    skipped: list[Skipped] = field(default_factory=list)
    block_tokens: int = BLOCK_TOKENS

    @property
    def input_tokens(self) -> int:
        """Prompt tokens of all requests."""
        return sum(r.input_tokens for r in self.requests)


class _BadLineError(Exception):
    def __init__(self, field: str, reason: str) -> None:
        self.field, self.reason = field, reason


def read_mooncake(
    path: str | Path,
    limit: int | None = None,
    max_bad: int = 100,
    on_bytes: Callable[[int], None] | None = None,
) -> Trace:
    """Read a trace line by line.

    Args:
        path: a ``.jsonl`` or ``.jsonl.gz`` file.
        limit: stop after so many requests.
        max_bad: lines that may be unusable; they are counted and the first three kept.
        on_bytes: told the bytes of each line as it is read.

    Raises:
        KdalabError: the file cannot be read, holds no request, or has more bad lines than
            allowed; the message names file, line and field.
    """
    file = Path(path)
    trace = Trace(file.name)
    last = float("-inf")
    for number, raw in _lines(file):
        if on_bytes is not None:
            on_bytes(len(raw))
        if not raw.strip():
            continue
        try:
            request = _parse(number, raw, last)
        except _BadLineError as bad:
            trace.n_skipped += 1
            if len(trace.skipped) < 3:
                trace.skipped.append(Skipped(number, bad.field, bad.reason))
            if trace.n_skipped > max_bad:
                first = trace.skipped[0]
                raise KdalabError(
                    f"{file}: {trace.n_skipped:,} unusable lines, {max_bad:,} allowed. "
                    f"The first: {first}. Each line must be a JSON object with "
                    f"{', '.join(FIELDS)}; raise --max-bad-lines to skip more"
                ) from None
            continue
        last = request.timestamp_ms
        trace.requests.append(request)
        if limit is not None and len(trace.requests) >= limit:
            break
    if not trace.requests:
        why = f"; {trace.skipped[0]}" if trace.skipped else "; the file is empty"
        raise KdalabError(f"{file} holds no usable request{why}")
    return trace


def _lines(file: Path) -> Iterator[tuple[int, bytes]]:
    try:
        opener: Any = gzip.open if file.suffix == ".gz" else open
        with opener(file, "rb") as stream:
            number = 0
            while raw := stream.readline(MAX_LINE_BYTES + 1):
                number += 1
                if len(raw) > MAX_LINE_BYTES:
                    raise KdalabError(
                        f"{file}: line {number:,} is longer than {MAX_LINE_BYTES >> 20} MiB; "
                        "is this a JSONL trace?"
                    )
                yield number, raw
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise KdalabError(f"cannot read the trace {file}: {reason}") from error


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
        raise _BadLineError("timestamp", f"goes back from {last:g} to {time:g} ms")
    n_in = _tokens(row, "input_length", 1)
    n_out = _tokens(row, "output_length", 0)
    ids = row["hash_ids"]
    if not isinstance(ids, list) or not all(type(i) is int for i in ids):
        raise _BadLineError("hash_ids", "must be a list of whole numbers")
    wanted = -(-n_in // BLOCK_TOKENS)
    if len(ids) != wanted:
        raise _BadLineError(
            "hash_ids",
            f"{len(ids):,} ids for {n_in:,} tokens; blocks of {BLOCK_TOKENS} make {wanted:,}",
        )
    try:
        blocks = array("q", ids)
    except OverflowError:
        raise _BadLineError("hash_ids", "an id does not fit 64 bits") from None
    return TraceRequest(number, float(time), n_in, n_out, blocks)


def _tokens(row: dict[str, Any], name: str, least: int) -> int:
    value = row[name]
    if type(value) is not int or not least <= value <= MAX_TOKENS:
        raise _BadLineError(
            name, f"must be a whole number from {least} to {MAX_TOKENS:,}, not {_short(value)}"
        )
    return value


def _short(value: object) -> str:
    text = str(value) if isinstance(value, Exception) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
