"""CSV files of arrivals and lengths: Azure's inference traces and BurstGPT.

They say nothing about what prompts share. Every request is new text here, so no cache finds
anything: use them for arrivals and lengths, not for hit rates.
"""

from __future__ import annotations

import csv
from array import array
from datetime import UTC, datetime
from pathlib import Path
from typing import ClassVar

from kdalab.lab.readers.base import BadLineError, Head, Reader, ReadOptions, short
from kdalab.lab.request import MAX_TOKENS, TraceRequest

NO_REUSE = (
    "this format has arrivals and lengths only: every prompt counts as new text, so no policy "
    "can restore anything"
)


class TableReader(Reader):
    """Rows of (time, prompt tokens, output tokens); columns by the names in the header."""

    time_column: ClassVar[str]
    input_column: ClassVar[str]
    output_column: ClassVar[str]

    def __init__(self, path: str | Path, options: ReadOptions | None = None) -> None:
        super().__init__(path, options)
        self.notes = (NO_REUSE,)

    @classmethod
    def claims(cls, head: Head) -> bool:
        names = [n.strip().strip('"') for n in head.header.split(",")]
        return all(n in names for n in (cls.time_column, cls.input_column, cls.output_column))

    def begin(self) -> None:
        self._columns: tuple[int, int, int] | None = None
        self._first: float | None = None
        self._next_id = 0

    def parse(self, number: int, raw: bytes) -> TraceRequest | None:
        try:
            cells = next(csv.reader([raw.decode("utf-8-sig")]), [])
        except (csv.Error, UnicodeDecodeError) as error:
            raise BadLineError("", f"not CSV ({short(error)})") from None
        if self._columns is None:
            self._columns = self._find_columns(cells)
            return None
        time, n_in, n_out = (self._cell(cells, i) for i in self._columns)
        at = self.moment_ms(time)
        if self._first is None:
            self._first = at
        prompt, output = _length(self.input_column, n_in, 1), _length(self.output_column, n_out, 0)
        count = -(-prompt // self.block_tokens)
        blocks = array("q", range(self._next_id, self._next_id + count))
        self._next_id += count
        return TraceRequest(number, at - self._first, prompt, output, blocks)

    def moment_ms(self, text: str) -> float:
        """The time column's text in ms."""
        raise NotImplementedError

    def _find_columns(self, cells: list[str]) -> tuple[int, int, int]:
        names = [c.strip() for c in cells]
        wanted = (self.time_column, self.input_column, self.output_column)
        for name in wanted:
            if name not in names:
                raise BadLineError(name, f"is no column of the header {short(','.join(names))}")
        a, b, c = (names.index(n) for n in wanted)
        return a, b, c

    def _cell(self, cells: list[str], index: int) -> str:
        if index >= len(cells):
            raise BadLineError("", f"{len(cells)} columns; the header has more")
        return cells[index].strip()

    def _expected(self) -> str:
        columns = f"{self.time_column}, {self.input_column}, {self.output_column}"
        return f"The header must name {columns}"


class AzureReader(TableReader):
    """Azure's LLM inference traces (2023, 2024): TIMESTAMP, ContextTokens, GeneratedTokens."""

    format = "azure"
    title = "Azure LLM inference CSV (arrivals and lengths only)"
    time_column, input_column, output_column = "TIMESTAMP", "ContextTokens", "GeneratedTokens"
    time_field = "TIMESTAMP"

    def moment_ms(self, text: str) -> float:
        try:
            at = datetime.fromisoformat(text)
        except ValueError:
            raise BadLineError("TIMESTAMP", f"no date and time: {short(text)}") from None
        return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000.0


class BurstGptReader(TableReader):
    """BurstGPT (arXiv 2401.17644): Timestamp in seconds, Request tokens, Response tokens."""

    format = "burstgpt"
    title = "BurstGPT CSV (arrivals and lengths only)"
    time_column, input_column, output_column = "Timestamp", "Request tokens", "Response tokens"
    time_field = "Timestamp"

    def moment_ms(self, text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if not 0 <= value < 1e15:
            raise BadLineError("Timestamp", f"must be seconds of 0 or more, not {short(text)}")
        return value * 1000.0


def _length(name: str, text: str, least: int) -> int:
    try:
        value = int(text)
    except ValueError:
        value = -1
    if not least <= value <= MAX_TOKENS:
        raise BadLineError(
            name, f"must be a whole number from {least} to {MAX_TOKENS:,}, not {short(text)}"
        )
    return value
