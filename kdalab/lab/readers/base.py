"""What every reader shares: limits, counted skips, arrivals that only go forward.

A reader of a new format is a class with ``claims`` (is this mine?) and ``parse`` (one line), and
the decorator that puts it on the list.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from kdalab.errors import KdalabError
from kdalab.lab.readers import source
from kdalab.lab.readers.earliest import Earliest
from kdalab.lab.readers.prefixes import PrefixCheck
from kdalab.lab.request import MAX_BAD_LINES, MAX_TOKENS, Skipped, Trace, TraceRequest

SHARING = ("preamble", "none")


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How a trace is read.

    Args:
        limit: stop after so many requests.
        max_bad: unusable lines allowed; they are counted and the first three kept.
        on_bytes: told, now and then, the position in the file (compressed bytes if gzipped).
        block_tokens: tokens of a block where the file does not say: for traces of tokens, of
            lengths, and of ids without a block size.
        share: what sessions with local ids have in common: "preamble" (equal counts of tool and
            system tokens mean equal text) or "none".
        gap_ms: sessions that know no common clock begin so far apart.
        sort: read all of it first and sort by arrival, instead of skipping what goes back in time.
        max_blocks: where it is sorted, keep no more block ids than this of the earliest requests.

    Raises:
        KdalabError: a number out of range.
    """

    limit: int | None = None
    max_bad: int = MAX_BAD_LINES
    on_bytes: Callable[[int], None] | None = None
    block_tokens: int | None = None
    share: str = "preamble"
    gap_ms: float = 60_000.0
    sort: bool = False
    max_blocks: int | None = None

    def __post_init__(self) -> None:
        if self.limit is not None and self.limit < 1:
            raise KdalabError(f"a limit of {self.limit:,} requests; use 1 or more, or none")
        if self.max_bad < 0:
            raise KdalabError(f"{self.max_bad:,} bad lines allowed; use 0 or more")
        if self.block_tokens is not None and not 1 <= self.block_tokens <= 1 << 20:
            raise KdalabError(f"blocks of {self.block_tokens:,} tokens; use 1 to {1 << 20:,}")
        if self.share not in SHARING:
            raise KdalabError(f"sharing {self.share!r}; allowed: {', '.join(SHARING)}")
        if not 0 <= self.gap_ms <= 1e12:
            raise KdalabError(
                f"sessions {self.gap_ms / 1000:g} s apart; use 0 to 1,000,000,000 seconds"
            )


class BadLineError(Exception):
    """A line that cannot be used."""

    def __init__(self, field: str, reason: str) -> None:
        self.field, self.reason = field, reason


@dataclass(slots=True)
class Head:
    """The beginning of a file, from which its format is told; ``blank`` if it has blank lines."""

    path: Path
    is_folder: bool = False
    rows: list[dict[str, Any]] = field(default_factory=list)
    header: str = ""
    blank: bool = False

    def first(self, *names: str) -> dict[str, Any] | None:
        """The first row that has all these fields."""
        return next((row for row in self.rows if all(n in row for n in names)), None)


class Reader:
    """Requests of one file, of which one line at a time is in memory.

    Iterating raises ``KdalabError`` when the file cannot be read, holds no request, or has more
    bad lines than allowed; the message names file, line and field. ``n_back`` lines so far went
    back in time.
    """

    format: ClassVar[str] = ""
    title: ClassVar[str] = ""
    fields: ClassVar[tuple[str, ...]] = ()
    time_field: ClassVar[str] = "timestamp"
    #: Does the format say that an id stands for the whole prefix up to its block?
    ids_are_prefixes: ClassVar[bool] = False

    def __init__(self, path: str | Path, options: ReadOptions | None = None) -> None:
        self.options = options or ReadOptions()
        self.file = Path(path)
        self.name = self.file.name.encode(errors="backslashreplace").decode()
        self.block_tokens = self.options.block_tokens or 512
        self.notes: tuple[str, ...] = ()
        self.n_skipped = self.n_requests = self.n_back = 0
        self.skipped: list[Skipped] = []
        self.contradictions = PrefixCheck()

    @classmethod
    def claims(cls, head: Head) -> bool:
        """Does a file that begins like this have this format?"""
        raise NotImplementedError

    def begin(self) -> None:
        """An iteration starts anew."""

    def parse(self, number: int, raw: bytes) -> TraceRequest | None:
        """One line as a request; None for a line that is none (a header).

        Raises:
            BadLineError: it cannot be used.
        """
        raise NotImplementedError

    def items(self) -> Iterator[TraceRequest | Skipped]:
        """Requests, and what could not be used, in the order of the file."""
        for number, raw in source.lines(self.file, self.options.on_bytes):
            if not raw.strip():
                continue
            try:
                request = self.parse(number, raw)
            except BadLineError as bad:
                yield Skipped(number, bad.field, bad.reason)
                continue
            if request is not None:
                yield request

    def __iter__(self) -> Iterator[TraceRequest]:
        self.n_skipped, self.skipped, self.n_requests, self.n_back = 0, [], 0, 0
        self.contradictions = PrefixCheck()
        self.begin()
        if self.options.sort:
            yield from self._sorted()
            return
        last = 0.0
        look, finish = self.contradictions.add, self.contradictions.finish
        if not self.ids_are_prefixes:
            look = _leave_be
        for item in self.items():
            if isinstance(item, Skipped):
                self._skip(item)
                continue
            time = item.timestamp_ms
            if time < last:
                self.n_back += 1
                why = f"goes back from {last:.15g} to {time:.15g} ms"
                self._skip(Skipped(item.line, self.time_field, why))
                continue
            last = time
            self.n_requests += 1
            look(item)
            if self.n_requests == self.options.limit:
                finish()
                yield item
                return
            yield item
        finish()
        self._check_not_empty()

    def _sorted(self) -> Iterator[TraceRequest]:
        earliest, last = Earliest(self.options.limit, self.options.max_blocks), 0.0
        for item in self.items():
            if isinstance(item, Skipped):
                self._skip(item)
                continue
            self.n_requests += 1
            self.n_back += item.timestamp_ms < last
            last = max(last, item.timestamp_ms)
            earliest.add(item)
        self._check_not_empty()
        found = earliest.requests()
        if self.ids_are_prefixes:
            for request in found:
                self.contradictions.add(request)
            self.contradictions.finish()
        yield from found

    def _check_not_empty(self) -> None:
        if not self.n_requests:
            why = str(self.skipped[0]) if self.skipped else "the file is empty"
            raise KdalabError(f"{self.file} holds no usable request; {why}")

    def _skip(self, line: Skipped) -> None:
        self.n_skipped += 1
        if len(self.skipped) < 3:
            self.skipped.append(line)
        if self.n_skipped > self.options.max_bad:
            raise KdalabError(
                f"{self.file}: {self.n_skipped:,} unusable lines, {self.options.max_bad:,} "
                f"allowed. The first: {self.skipped[0]}. {self._expected()}; raise "
                "--max-bad-lines to skip more"
            )

    def _expected(self) -> str:
        return f"Each line must be a JSON object with {', '.join(self.fields)}"

    def load(self) -> Trace:
        """The whole trace in memory, 8 bytes a block."""
        requests = list(self)
        return Trace(
            self.name,
            requests,
            self.n_skipped,
            list(self.skipped),
            self.block_tokens,
            self.format,
            (*self.notes, *self.contradictions.notes),
        )


def _leave_be(request: TraceRequest) -> None:
    """A format whose ids promise nothing about prefixes."""


def json_object(raw: bytes, fields: Sequence[str] = ()) -> dict[str, Any]:
    """One line as an object with these fields.

    Raises:
        BadLineError: it is none, or lacks one.
    """
    try:
        row = json.loads(raw)
    except json.JSONDecodeError as error:  # its own text counts lines within this one
        raise BadLineError("", f"not JSON ({error.msg}, character {error.pos + 1:,})") from None
    except (ValueError, RecursionError) as error:
        raise BadLineError("", f"not JSON ({short(error)})") from None
    if not isinstance(row, dict):
        raise BadLineError("", f"{json_kind(row)}, not an object")
    for name in fields:
        if name not in row:
            raise BadLineError(name, "is missing")
    return row


def tokens(row: dict[str, Any], name: str, least: int) -> int:
    """A length in tokens."""
    value = row[name]
    if type(value) is not int or not least <= value <= MAX_TOKENS:
        raise BadLineError(
            name, f"must be a whole number from {least} to {MAX_TOKENS:,}, not {short(value)}"
        )
    return value


def moment(row: dict[str, Any], name: str, unit_ms: float = 1.0) -> float:
    """A point in time, in ms; the field counts units of ``unit_ms``."""
    value = row[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e18:
        unit = "milliseconds" if unit_ms == 1.0 else "seconds"
        raise BadLineError(name, f"must be {unit} of 0 or more, not {short(value)}")
    return float(value) * unit_ms


def block_ids(ids: object, n_tokens: int, block: int, whole_only: bool = True) -> array[int]:
    """Block ids of a prompt of ``n_tokens``.

    Args:
        whole_only: a list that leaves the last, partial block out is right as well.

    Raises:
        BadLineError: not a list of whole numbers of 0 or more that fit 64 bits; their number
            contradicts the length.
    """
    name = "hash_ids"
    if not isinstance(ids, list) or not all(type(i) is int for i in ids):
        raise BadLineError(name, "must be a list of whole numbers")
    wanted = -(-n_tokens // block)
    if len(ids) != wanted and not (whole_only and len(ids) == n_tokens // block):
        raise BadLineError(
            name, f"{len(ids):,} ids for {n_tokens:,} tokens; blocks of {block} make {wanted:,}"
        )
    if ids and min(ids) < 0:
        raise BadLineError(name, f"an id of {short(min(ids))}; ids are 0 or more")
    try:
        return array("q", ids)
    except OverflowError:
        raise BadLineError(name, "an id does not fit 64 bits") from None


def json_kind(value: object) -> str:
    """What a JSON value is, in JSON's words."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true or false"
    kinds: dict[type, str] = {list: "an array", str: "a string", dict: "an object"}
    return kinds.get(type(value), "a number")


def short(value: object) -> str:
    """A value as it is shown in a message."""
    text = str(value) if isinstance(value, Exception) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
