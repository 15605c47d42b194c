"""One form for every trace: requests in the order of arrival, with the ids of their blocks.

A block's id stands for the whole prefix up to its end. Where a trace holds tokens, ids are hashes
of them; where it holds lengths only, every id is new, and no request shares anything.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple, Protocol

#: Of a prompt, or of an output: far beyond any context, and few enough for a list of block ids.
MAX_TOKENS = 1 << 24
MAX_BAD_LINES = 100

NO_BLOCKS: array[int] = array("q")


class TraceRequest(NamedTuple):
    """One request.

    ``blocks`` are the ids of the prompt's blocks: of all whole ones, and often of a last, partial
    one, which no cache uses. ``decoded`` are the ids of the blocks that the output completes,
    from the block after the prompt's whole ones on; empty where the trace does not know them.
    """

    line: int
    timestamp_ms: float
    input_tokens: int
    output_tokens: int
    blocks: array[int]
    decoded: array[int] = NO_BLOCKS


class Skipped(NamedTuple):
    """A line that could not be used: where, which field, and why. ``place`` names what has no
    line of its own, such as a request inside a session's file."""

    line: int
    field: str
    reason: str
    place: str = ""

    def __str__(self) -> str:
        where = self.place or f"line {self.line:,}"
        return (
            f"{where}, field {self.field}: {self.reason}"
            if self.field
            else f"{where}: " + (self.reason)
        )


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
    block_tokens: int = 512
    format: str = ""
    notes: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[TraceRequest]:
        return iter(self.requests)

    @property
    def input_tokens(self) -> int:
        """Prompt tokens of all requests."""
        return sum(r.input_tokens for r in self.requests)


@dataclass(frozen=True, slots=True)
class Report:
    """What a reader made of a file: nothing is left out in silence.

    ``first`` are the first three things that were skipped; ``notes`` say what the format cannot
    tell, and what was assumed in its place.
    """

    name: str
    format: str
    block_tokens: int
    skipped: int
    first: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def lines(self) -> tuple[str, ...]:
        """For people, one line each."""
        out = [f"{self.name}: {self.format or 'a trace'}, blocks of {self.block_tokens:,} tokens"]
        out += self.notes
        if self.skipped:
            out.append(f"{self.skipped:,} skipped; the first: {'; '.join(self.first)}")
        return tuple(out)

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self)


def report_of(trace: Requests) -> Report:
    """The report of a trace that has been read to its end."""
    return Report(
        trace.name,
        getattr(trace, "format", ""),
        trace.block_tokens,
        trace.n_skipped,
        tuple(str(s) for s in trace.skipped),
        (
            *getattr(trace, "notes", ()),
            *getattr(getattr(trace, "contradictions", None), "notes", ()),
        ),
    )
