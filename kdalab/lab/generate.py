"""Traces made from named statistics, in Mooncake's form.

Conversations begin at random times; each has a system prompt out of a few, a first message, and
goes on turn by turn: the next prompt is the last one, its output, and something new. Now and then
a turn goes back to an earlier one. The presets' numbers were fitted to real traces by their
statistics (``kdalab lab stats`` shows both side by side). A made-up trace repeats those statistics
and nothing else: choose settings on your own trace.
"""

from __future__ import annotations

import contextlib
import gzip
import heapq
import json
import os
import random
from array import array
from bisect import bisect
from collections.abc import Iterator
from dataclasses import dataclass, field
from io import TextIOWrapper
from itertools import accumulate
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from kdalab.errors import KdalabError
from kdalab.lab.request import Trace, TraceRequest
from kdalab.lab.shapes import AGENT, CHAT, PRESETS, Draw, Shape, changed, shape

__all__ = [
    "AGENT",
    "CHAT",
    "PRESETS",
    "Draw",
    "Shape",
    "changed",
    "generate",
    "generated_trace",
    "shape",
    "write_jsonl",
]


@dataclass(slots=True)
class _Session:
    ids: array[int]  # of the whole blocks of the last prompt
    tokens: int  # of the last prompt
    output: int
    go_on: float
    turns: list[tuple[int, int]] = field(default_factory=list)  # (tokens, whole blocks) so far


def generate(n: int, of: Shape, seed: int = 0) -> Iterator[TraceRequest]:
    """``n`` requests in the order of arrival; the same arguments give the same ones.

    Raises:
        KdalabError: ``n`` is below 1.
    """
    if n < 1:
        raise KdalabError(f"{n:,} made-up requests; use 1 or more")
    return _Maker(of, seed).requests(n)


class _Maker:
    def __init__(self, of: Shape, seed: int) -> None:
        self.of, self.chance = of, random.Random(seed)
        chance, block = self.chance, of.block_tokens
        self.next_id = of.common // block
        self.systems: list[tuple[int, array[int]]] = []
        for _ in range(of.systems):
            tokens = min(of.most, of.common + int(of.system(chance)))
            ids = array("q", range(of.common // block))
            self.systems.append((tokens, self.grown(ids, tokens)))
        weights = [1 / (i + 1) ** of.zipf for i in range(of.systems)]
        self.popular = list(accumulate(weights))

    def grown(self, ids: array[int], tokens: int) -> array[int]:
        """``ids`` and new ones, up to the whole blocks of ``tokens``."""
        more = tokens // self.of.block_tokens - len(ids)
        first, self.next_id = self.next_id, self.next_id + max(0, more)
        return ids + array("q", range(first, self.next_id))

    def requests(self, n: int) -> Iterator[TraceRequest]:
        of, chance = self.of, self.chance
        next_start = 0.0
        waiting: list[tuple[float, int, _Session]] = []
        done = sessions = 0
        while done < n:
            if waiting and waiting[0][0] <= next_start:
                at, number, session = heapq.heappop(waiting)
                if not self.next_turn(session):
                    continue
            else:
                at, number, session = next_start, sessions, self.begin()
                sessions += 1
                next_start += chance.expovariate(of.sessions_a_second)
            done += 1
            yield self.request(done, at, session)
            if chance.random() < session.go_on:
                heapq.heappush(waiting, (at + of.think(chance), number, session))

    def begin(self) -> _Session:
        """A conversation and its first prompt."""
        of, chance = self.of, self.chance
        which = bisect(self.popular, chance.random() * self.popular[-1])
        tokens, ids = self.systems[min(which, len(self.systems) - 1)]
        total = min(of.most, tokens + int(of.first(chance)))
        session = _Session(self.grown(ids, total), total, 0, chance.betavariate(*of.go_on))
        session.turns.append((total, len(session.ids)))
        session.output = int(of.output(chance))
        return session

    def next_turn(self, session: _Session) -> bool:
        """The next prompt of a conversation; False when it has become too long."""
        of, chance = self.of, self.chance
        tokens, whole, output = session.tokens, len(session.ids), session.output
        if len(session.turns) > 1 and chance.random() < of.branch:
            back = chance.randrange(len(session.turns) - 1)
            tokens, whole = session.turns[back]
            del session.turns[back + 1 :]
            output = int(of.output(chance))  # answered anew
        total = tokens + output + int(of.added(chance))
        if total > of.most:
            return False
        session.ids, session.tokens = self.grown(session.ids[:whole], total), total
        session.turns.append((total, len(session.ids)))
        session.output = int(of.output(chance))
        return True

    def request(self, line: int, at: float, session: _Session) -> TraceRequest:
        block, blocks = self.of.block_tokens, session.ids
        if session.tokens % block:  # the last, partial block has an id of its own
            blocks = blocks + array("q", [self.next_id])
            self.next_id += 1
        if self.of.tick:
            at = at // self.of.tick * self.of.tick
        return TraceRequest(line, round(at * 1000.0, 3), session.tokens, session.output, blocks)


def generated_trace(n: int, of: Shape, seed: int = 0, name: str = "made up") -> Trace:
    """``n`` requests in memory."""
    notes = ("made up from statistics: see how it works, do not choose settings by it",)
    title = f"{name}, {n:,} requests, seed {seed}"
    return Trace(title, list(generate(n, of, seed)), 0, [], of.block_tokens, "generated", notes)


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[TextIO]:
    """A file that has its name only once it is whole; what is no file (a pipe) is written as is."""
    if path.exists() and not path.is_file():
        with path.open("wb") as raw, _text(raw, path) as out:
            yield out
        return
    file = path.resolve()  # a link stays one
    part = file.with_name(f".{file.name[:80]}.{os.getpid()}.part")
    try:
        with part.open("wb") as raw, _text(raw, path) as out:
            yield out
        os.replace(part, file)
    finally:
        with contextlib.suppress(OSError):
            part.unlink()


@contextlib.contextmanager
def _text(raw: BinaryIO, path: Path) -> Iterator[TextIO]:
    packed = gzip.GzipFile("", "wb", fileobj=raw, mtime=0) if path.suffix == ".gz" else raw
    with TextIOWrapper(packed, encoding="utf-8", newline="\n") as out:
        yield out


def write_jsonl(path: str | Path, requests: Iterator[TraceRequest], block_tokens: int) -> int:
    """Write requests as JSONL that ``open_trace`` reads again; how many there were. Compressed when
    the name ends in .gz, with neither name nor time inside: the same trace is the same file. Blocks
    of 512 are Mooncake's form; others carry their ``block_size``, as kvcache-simulator's do.
    Whatever ends it before, an interrupt too, leaves no file of that name, or the one that was.

    Raises:
        KdalabError: the file cannot be written.
    """
    count = 0
    try:
        with _writing(Path(path)) as out:
            for r in requests:
                row: dict[str, Any] = {} if block_tokens == 512 else {"block_size": block_tokens}
                row |= {
                    "timestamp": r.timestamp_ms,
                    "input_length": r.input_tokens,
                    "output_length": r.output_tokens,
                    "hash_ids": r.blocks.tolist(),
                }
                out.write(json.dumps(row) + "\n")
                count += 1
    except OSError as error:
        raise KdalabError(f"cannot write {str(path)!r}: {error.strerror}") from error
    return count
