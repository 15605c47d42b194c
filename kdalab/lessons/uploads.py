"""A visitor's trace: any format of the lab's readers, within limits, and in memory from then on.

Nothing in a file is executed or unpickled, and a gzipped one is measured before it is read: its
bytes are unpacked and counted, and the count stops at the limit.
"""

from __future__ import annotations

import gzip
import json
import unicodedata
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from kdalab.errors import KdalabError
from kdalab.lab.readers import READERS, Reader, ReadOptions, open_trace
from kdalab.lab.readers.agentic import AgenticReader
from kdalab.lab.readers.source import MAX_RATIO, other_text
from kdalab.lab.request import Report, Trace, TraceRequest, report_of

MAX_UNPACKED_BYTES = 256 << 20
MAX_LINE_BYTES = 32 << 20
"""Of one line, and of a file that is one JSON document: parsed, it is several times that."""
RATIO_FROM = 4 << 20
"""Unpacked bytes from which on a file may be no more than ``MAX_RATIO`` times what was sent. What a
stranger sends costs the server's time, so it is far less than on a command line."""
MAX_KEPT_REQUESTS = 20_000
MAX_KEPT_BLOCKS = 4_000_000
"""What is kept of a longer trace: its beginning. A block's id takes 8 bytes."""

_REQUEST_BYTES = 512
_CHUNK = 1 << 20
_GZIP = b"\x1f\x8b"
_MAX_NAME = 80

Heard = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class UploadedTrace:
    """What was read of a file. ``more``: it holds further requests, which were not kept; ``back``
    lines went back in time, so that all were sorted by arrival."""

    name: str
    trace: Trace
    more: bool
    report: Report
    back: int = 0

    @property
    def kept_bytes(self) -> int:
        """About what it takes in memory: 8 bytes a block id, and the requests around them."""
        requests = self.trace.requests
        blocks = sum(len(r.blocks) + len(r.decoded) for r in requests)
        return 8 * blocks + _REQUEST_BYTES * len(requests)

    def first(self, count: int) -> Trace:
        """The trace of the first ``count`` requests, or of all that there are."""
        whole = self.trace
        if count >= len(whole.requests):
            return whole
        return Trace(
            whole.name, whole.requests[:count], whole.n_skipped, list(whole.skipped),
            whole.block_tokens, whole.format, whole.notes,
        )  # fmt: skip


def read_upload(file: Path, name: str, heard: Heard = lambda done, total: None) -> UploadedTrace:
    """Read a trace's file.

    Args:
        name: what it is called where it comes from; only shown.
        heard: told how far the file has been read, in bytes as they lie on disk.

    Raises:
        KdalabError: empty, no text, too large when unpacked, a format that no reader takes, or
            more unusable lines than ``MAX_BAD_LINES``; the message has ``name`` and no place.
    """
    shown = plain_name(name)
    try:
        _measure(file, heard)
        return _read(file, shown, heard)
    except KdalabError as error:
        raise KdalabError(_for_a_page(str(error), file, shown)) from error


def plain_name(name: str) -> str:
    """A file's name as it may be shown: its last part, in one line, without control characters."""
    last = name.replace("\\", "/").rsplit("/", 1)[-1]
    kept = "".join(c for c in last if unicodedata.category(c)[0] != "C").strip()
    return kept[:_MAX_NAME] or "trace"


def _read(file: Path, name: str, heard: Heard) -> UploadedTrace:
    total = max(1, file.stat().st_size)

    def opened(**options: Any) -> Reader:
        def told(done: int) -> None:
            heard(min(done, total), total)

        return open_trace(file, None, ReadOptions(MAX_KEPT_REQUESTS + 1, on_bytes=told, **options))

    reader = opened()
    try:
        requests, more = _kept(reader)
    except KdalabError:
        if not reader.n_back:
            raise
    if reader.n_back:
        reader = opened(sort=True, max_blocks=MAX_KEPT_BLOCKS)
        requests, _ = _kept(reader)
        more = len(requests) < reader.n_requests
    trace = Trace(
        name, requests, reader.n_skipped, list(reader.skipped), reader.block_tokens,
        reader.format, (*reader.notes, *reader.contradictions.notes),
    )  # fmt: skip
    return UploadedTrace(name, trace, more, report_of(trace), reader.n_back)


def _kept(reader: Reader) -> tuple[list[TraceRequest], bool]:
    """The beginning of a trace, and whether there is more of it."""
    requests: list[TraceRequest] = []
    blocks = 0
    for request in reader:
        blocks += len(request.blocks) + len(request.decoded)
        if len(requests) == MAX_KEPT_REQUESTS or (requests and blocks > MAX_KEPT_BLOCKS):
            reader.contradictions.finish()
            return requests, True
        requests.append(request)
    return requests, False


def _measure(file: Path, heard: Heard) -> None:
    """Look at every byte once, unpacked and not kept.

    Raises:
        KdalabError: there is none, it is no text, it or one of its lines is too long, it unpacks
            to far more than it is, or it is no complete gzip file.
    """
    size = line = 0
    begin = b""
    for chunk, taken in _chunks(file):
        if not size:
            begin = chunk
            _check_text(chunk)
        size += len(chunk)
        if size > MAX_UNPACKED_BYTES:
            raise KdalabError(
                f"{file} unpacks to more than {MAX_UNPACKED_BYTES >> 20} MiB, which is the limit; "
                "split it, or read it with kdalab lab"
            )
        if size > RATIO_FROM and size > MAX_RATIO * taken:
            raise KdalabError(
                f"{file} has unpacked to over {RATIO_FROM >> 20} MiB, more than {MAX_RATIO} times "
                "its size; no trace does"
            )
        # Lines within one chunk are no longer than it, which is allowed.
        first = chunk.find(b"\n")
        longest = line + (len(chunk) if first < 0 else first)
        line = longest if first < 0 else len(chunk) - chunk.rfind(b"\n") - 1
        if longest > MAX_LINE_BYTES:
            raise KdalabError(
                f"{file} has a line of more than {MAX_LINE_BYTES >> 20} MiB; is this a trace?"
            )
        heard(0, 1)
    if not begin.strip() and size < _CHUNK:
        raise KdalabError(f"{file} is empty; give a trace with at least one request")
    if size > MAX_LINE_BYTES and _is_document(begin):
        raise KdalabError(
            f"{file} is one JSON document of more than {MAX_LINE_BYTES >> 20} MiB; split it into "
            "one file a session"
        )


def _is_document(begin: bytes) -> bool:
    """Whether a file that begins so is one JSON object over many lines, or a session on one."""
    if not begin.lstrip().startswith(b"{"):
        return False
    try:
        row = json.loads(begin.split(b"\n", 1)[0])
    except (ValueError, RecursionError):
        return True
    return isinstance(row, dict) and all(name in row for name in AgenticReader.fields)


def _chunks(file: Path) -> Iterator[tuple[bytes, int]]:
    """(unpacked bytes, how many bytes of the file were taken so far)."""
    try:
        with file.open("rb") as raw:
            packed = raw.peek(2)[:2] == _GZIP or file.suffix == ".gz"
            stream = cast(IO[bytes], gzip.GzipFile(fileobj=raw)) if packed else raw
            while chunk := stream.read(_CHUNK):
                yield chunk, max(1, raw.tell())
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise KdalabError(f"{file} cannot be unpacked or read: {reason}") from error


def _check_text(begin: bytes) -> None:
    if code := other_text(begin):
        raise KdalabError(f"the file is {code} text; save it as UTF-8")
    if begin[:4] == b"PK\x03\x04":
        raise KdalabError("the file is a zip archive; upload the trace in it, or pack it with gzip")
    if begin[:2] == _GZIP:
        raise KdalabError("the file is gzipped twice; unpack it once")
    if b"\0" in begin[:4096]:
        raise KdalabError(
            "the file is no UTF-8 text; upload JSON lines, JSON or CSV, or these in gzip"
        )


def _for_a_page(message: str, file: Path, name: str) -> str:
    """A reader's message without what only a command line has: the file's place, and options."""
    message = message.replace(f"{file} begins ", f"{name}, line 1, begins ")
    message = message.replace(repr(str(file)), name).replace(str(file), name)
    message = message.replace(f"{file.name}, ", f"{name}, ")
    known = "; ".join(reader.title for reader in READERS.values())
    if ", which is no format known here" in message:
        begins = message.split(", which is no format known here")[0]
        return f"{begins} and has no format that is known. Formats known here: {known}"
    message = message.replace("; give it with --block-tokens", "; add block_size to its lines")
    return message.replace("; raise --max-bad-lines to skip more", "")
