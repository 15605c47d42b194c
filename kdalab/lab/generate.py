"""Traces made from named statistics, in Mooncake's form.

Conversations begin at random times; each has a system prompt out of a few, a first message, and
goes on turn by turn: the next prompt is the last one, its output, and something new. Now and then
a turn goes back to an earlier one. The presets' numbers were fitted to real traces by their
statistics (``kdalab lab stats`` shows both side by side). A made-up trace repeats those statistics
and nothing else: choose settings on your own trace.
"""

from __future__ import annotations

import gzip
import heapq
import json
import math
import random
from array import array
from bisect import bisect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from io import TextIOWrapper
from itertools import accumulate
from pathlib import Path
from typing import Any, TextIO

from kdalab.errors import KdalabError
from kdalab.lab.request import Trace, TraceRequest


@dataclass(frozen=True, slots=True)
class Draw:
    """How a number is drawn: ``lognormal`` of ``middle`` (the median) and ``width`` (sigma of the
    logarithm), or ``normal`` of mean and standard deviation; cut at 1 and ``most``."""

    middle: float
    width: float
    kind: str = "lognormal"
    most: float = 1e9

    def __post_init__(self) -> None:
        if self.kind not in ("lognormal", "normal"):
            raise KdalabError(f"a draw of kind {self.kind!r}; allowed: lognormal, normal")
        if not (self.middle > 0 and self.width >= 0 and self.most >= 1):
            raise KdalabError(f"{self}: middle above 0, width 0 or more, most 1 or more")

    def __call__(self, chance: random.Random) -> float:
        if self.kind == "normal":
            value = chance.gauss(self.middle, self.width)
        else:
            value = self.middle * math.exp(chance.gauss(0.0, self.width))
        return min(self.most, max(1.0, value))


@dataclass(frozen=True, slots=True)
class Shape:
    """The statistics of a made-up trace. Tokens, seconds, shares 0 to 1.

    Args:
        block_tokens: of a block.
        sessions_a_second: conversations that begin.
        tick: arrivals are rounded down to multiples of so many seconds (0: not at all).
        common: tokens with which every prompt begins.
        systems: how many system prompts there are; ``system`` their lengths after ``common``,
            ``zipf`` how unequally they are used (0: equally).
        first: length of a conversation's first message, which may itself be a long history.
        added: what each later turn adds beside the output before it.
        output: tokens decoded.
        think: seconds from one arrival of a conversation to its next.
        go_on: (a, b) of the Beta distribution from which each conversation draws the chance that
            it goes on after a turn.
        branch: chance that a turn goes back to an earlier one.
        most: a conversation ends before its prompt exceeds so many tokens.
    """

    block_tokens: int = 512
    sessions_a_second: float = 1.0
    tick: float = 0.0
    common: int = 0
    systems: int = 1
    system: Draw = Draw(600, 0.5)
    zipf: float = 1.0
    first: Draw = Draw(2_000, 1.0)
    added: Draw = Draw(400, 1.0)
    output: Draw = Draw(300, 0.7)
    think: Draw = Draw(60, 1.0)
    go_on: tuple[float, float] = (2.0, 2.0)
    branch: float = 0.05
    most: int = 1_000_000

    def __post_init__(self) -> None:
        if self.block_tokens < 1 or self.systems < 1 or self.sessions_a_second <= 0:
            raise KdalabError("block_tokens, systems and sessions_a_second are 1, 1 or above 0")
        if not 0 <= self.branch <= 1 or self.tick < 0 or self.common < 0 or min(self.go_on) <= 0:
            raise KdalabError("branch is 0 to 1; tick and common 0 or more; go_on above 0")


#: Fitted by statistics to Mooncake's conversation trace (one hour of Kimi's chat, FAST'25).
CHAT = Shape(
    block_tokens=512,
    sessions_a_second=2.5,
    tick=3.0,
    common=512,
    systems=400,
    system=Draw(220, 1.9, most=60_000),
    zipf=0.6,
    first=Draw(4_900, 1.15, most=110_000),
    added=Draw(340, 1.6, most=90_000),
    output=Draw(343, 200, "normal", most=2_000),
    think=Draw(126, 1.05),
    go_on=(0.9, 2.7),
    branch=0.04,
    most=126_000,
)

#: Fitted by statistics to eight sessions of coding agents that start a minute apart.
AGENT = Shape(
    block_tokens=64,
    sessions_a_second=1 / 60,
    systems=40,
    system=Draw(14_500, 1_500, "normal"),
    zipf=0.3,
    first=Draw(5_500, 1.2, most=100_000),
    added=Draw(270, 2.0, most=50_000),
    output=Draw(213, 1.05, most=4_800),
    think=Draw(12, 1.35),
    go_on=(34.0, 2.3),
    branch=0.05,
    most=115_000,
)

PRESETS: dict[str, Shape] = {"chat-like": CHAT, "agent-like": AGENT}


def shape(name: str) -> Shape:
    """A preset.

    Raises:
        KdalabError: no such preset.
    """
    if name not in PRESETS:
        raise KdalabError(f"unknown preset {name!r}; allowed: {', '.join(PRESETS)}")
    return PRESETS[name]


def changed(name: str, changes: dict[str, Any]) -> Shape:
    """A preset with other statistics, as they come from JSON: a draw is ``[middle, width]``, with
    ``kind`` and ``most`` behind them if need be.

    Raises:
        KdalabError: no such preset or field, or a value that its field does not take.
    """
    base = shape(name)
    values: dict[str, Any] = {}
    for key, value in changes.items():
        old = getattr(base, key, None) if key in _FIELDS else None
        if old is None:
            raise KdalabError(f"{key!r} is no statistic; allowed: {', '.join(_FIELDS)}")
        try:
            if isinstance(old, Draw):
                values[key] = Draw(*value)
            elif isinstance(old, tuple):
                values[key] = tuple(map(float, value))
            else:
                values[key] = type(old)(value)
        except (TypeError, ValueError) as error:
            raise KdalabError(f"{key} = {value!r}: {error}") from None
    return replace(base, **values)


_FIELDS = tuple(f.name for f in fields(Shape))


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
            tokens = of.common + int(of.system(chance))
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


@contextmanager
def _writing(path: Path) -> Iterator[TextIO]:
    with path.open("wb") as raw:
        packed = gzip.GzipFile("", "wb", fileobj=raw, mtime=0) if path.suffix == ".gz" else raw
        with TextIOWrapper(packed, encoding="utf-8", newline="\n") as out:
            yield out


def write_jsonl(path: str | Path, requests: Iterator[TraceRequest], block_tokens: int) -> int:
    """Write requests as JSONL that ``open_trace`` reads again; how many there were. Compressed when
    the name ends in .gz, with neither name nor time inside: the same trace is the same file. Blocks
    of 512 are Mooncake's form; others carry their ``block_size``, as kvcache-simulator's do.

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
