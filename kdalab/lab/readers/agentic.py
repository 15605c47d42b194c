"""Sessions of coding agents: one JSON document each, a file or a folder of them.

``{id, block_size, hash_id_scope: "local", tool_tokens, system_tokens, requests: [...]}``; a
request has ``t`` (seconds from the session's start), ``in``, ``out`` and ``hash_ids`` of its whole
blocks. A sub-agent is a request with ``requests`` of its own, whose ``t`` counts from the
sub-agent's start. It forks off the session: its ids come from the session's own numbers, so what
it shares with its siblings is in the ids.

Ids mean something within one session only. What sessions have in common is declared, not known:
with ``share="preamble"``, sessions (and sub-agents) with equal ``tool_tokens`` and
``system_tokens`` begin with the same text, of that many tokens. When sessions begin is not known
either; they start ``gap_ms`` apart, in the order of their file names.
"""

from __future__ import annotations

import heapq
import json
from array import array
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

from kdalab.errors import KdalabError
from kdalab.lab.readers import source
from kdalab.lab.readers.base import (
    BadLineError,
    Head,
    Reader,
    ReadOptions,
    block_ids,
    json_kind,
    moment,
    short,
    tokens,
)
from kdalab.lab.request import Skipped, TraceRequest

MAX_DEPTH = 16
#: A session's ids take the low bits, its number the high ones; preambles have numbers of theirs.
ID_BITS = 40
SHARED = 1 << 62


class AgenticReader(Reader):
    """See the module. Holds the sessions that are under way in memory, no others."""

    format = "agentic"
    title = "agentic sessions, JSON (a file or a folder; ids local to a session)"
    fields = ("block_size", "requests")
    time_field = "t"

    def __init__(self, path: str | Path, options: ReadOptions | None = None) -> None:
        super().__init__(path, options)
        self.files = _files(self.file)
        first = next((s for f in self.files if (s := _session(f)) is not None), None)
        if first is None:
            raise KdalabError(f"{self.file} holds no session: JSON objects with {self._wanted()}")
        self.block_tokens = first["block_size"]
        shared = "equal counts of tool and system tokens are taken for equal text"
        if self.options.share == "none":
            shared = "sessions share nothing"
        self.notes = (
            f"ids are local to a session; between sessions: {shared} (declared, not measured)",
            f"sessions start {self.options.gap_ms / 1000:g} s apart: the files have no common "
            "clock",
            "requests to different models count as requests to the one under study",
            "output tokens have no ids of their own in this trace",
        )

    @classmethod
    def claims(cls, head: Head) -> bool:
        return head.is_folder or head.first("requests", "block_size") is not None

    def items(self) -> Iterator[TraceRequest | Skipped]:
        under_way: list[tuple[float, int, int, TraceRequest]] = []
        number = 0
        for index, file in enumerate(self.files):
            start = index * self.options.gap_ms
            while under_way and under_way[0][0] < start:
                yield heapq.heappop(under_way)[3]
            for item in self._requests_of(file, index, start):
                if isinstance(item, Skipped):
                    yield item
                    continue
                number += 1
                request = item._replace(line=number)
                heapq.heappush(under_way, (request.timestamp_ms, index, number, request))
        while under_way:
            yield heapq.heappop(under_way)[3]

    def _requests_of(
        self, file: Path, index: int, start: float
    ) -> Iterator[TraceRequest | Skipped]:
        session = _session(file)
        if session is None:
            yield Skipped(index + 1, "", f"is no session with {self._wanted()}", file.name)
            return
        if session["block_size"] != self.block_tokens:
            why = f"{short(session['block_size'])} in a trace of blocks of {self.block_tokens}"
            yield Skipped(index + 1, "block_size", why, file.name)
            return
        yield from self._flat(session, session["requests"], file.name, index, start, 0)

    def _flat(
        self, owner: dict[str, Any], rows: Any, place: str, index: int, start: float, depth: int
    ) -> Iterator[TraceRequest | Skipped]:
        if not isinstance(rows, list) or depth > MAX_DEPTH:
            why = "must be a list" if depth <= MAX_DEPTH else f"nested over {MAX_DEPTH} deep"
            yield Skipped(index + 1, "requests", why, place)
            return
        for n, row in enumerate(rows, 1):
            where = f"{place}, request {n}"
            try:
                if not isinstance(row, dict):
                    raise BadLineError("", f"{json_kind(row)}, not an object")
                if "t" not in row:
                    raise BadLineError("t", "is missing")
                at = start + moment(row, "t", 1000.0)
                if "requests" in row:
                    yield from self._flat(row, row["requests"], where, index, at, depth + 1)
                    continue
                yield self._request(owner, row, index, at)
            except BadLineError as bad:
                yield Skipped(index + 1, bad.field, bad.reason, where)

    def _request(
        self, owner: dict[str, Any], row: dict[str, Any], index: int, at: float
    ) -> TraceRequest:
        for name in ("in", "out", "hash_ids"):
            if name not in row:
                raise BadLineError(name, "is missing")
        n_in, n_out = tokens(row, "in", 1), tokens(row, "out", 0)
        ids = block_ids(row["hash_ids"], n_in, self.block_tokens)
        if ids and max(ids) >> ID_BITS:
            raise BadLineError("hash_ids", f"an id of {max(ids):,}; allowed: below 2**{ID_BITS}")
        base = (index + 1) << ID_BITS
        blocks = array("q", [base | i for i in ids])
        common = _preamble(owner, self.block_tokens) if self.options.share == "preamble" else None
        if common is not None:
            n = min(common[0], len(blocks))
            blocks[:n] = array("q", range(common[1], common[1] + n))
        return TraceRequest(0, at, n_in, n_out, blocks)

    def _wanted(self) -> str:
        return " and ".join(self.fields)

    def _expected(self) -> str:
        return f"Each file must be a JSON object with {self._wanted()}"


class _Preamble(NamedTuple):
    blocks: int
    first_id: int


def _preamble(owner: dict[str, Any], block: int) -> _Preamble | None:
    """Whole blocks of the tools and the system prompt, and the first of their shared ids."""
    tool, system = owner.get("tool_tokens", 0), owner.get("system_tokens", 0)
    if type(tool) is not int or type(system) is not int or tool < 0 or system < 0:
        return None
    digest = blake2b(b"%d %d" % (tool, system), digest_size=5).digest()
    return _Preamble((tool + system) // block, SHARED | int.from_bytes(digest, "little") << 20)


def _files(path: Path) -> list[Path]:
    try:
        if not path.is_dir():
            return [path]
        found = sorted(f for f in path.iterdir() if f.name.endswith((".json", ".json.gz")))
    except OSError as error:
        raise KdalabError(f"cannot read the folder {str(path)!r}: {error.strerror}") from error
    if not found:
        raise KdalabError(f"{path} holds no .json or .json.gz file")
    return found


def _session(file: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(source.document(file))
    except (ValueError, RecursionError) as error:
        if isinstance(error, KdalabError):
            raise
        return None
    if not isinstance(found, dict) or not isinstance(found.get("requests"), list):
        return None
    size = found.get("block_size")
    return found if type(size) is int and 1 <= size <= 1 << 20 else None
