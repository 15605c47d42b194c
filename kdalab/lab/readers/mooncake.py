"""Mooncake's JSONL (Mooncake, FAST'25), gzipped or not.

One object a line: ``timestamp`` (ms), ``input_length`` and ``output_length`` (tokens), and
``hash_ids``, one id a block of 512 input tokens, the last block partial. An id stands for the
whole prefix up to the end of its block.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from kdalab.lab.readers.base import (
    Head,
    Reader,
    ReadOptions,
    block_ids,
    json_object,
    moment,
    tokens,
)
from kdalab.lab.request import MAX_BAD_LINES, Trace, TraceRequest

BLOCK_TOKENS = 512
FIELDS = ("timestamp", "input_length", "output_length", "hash_ids")


class MooncakeReader(Reader):
    """See the module."""

    format = "mooncake"
    title = "Mooncake JSONL (512-token blocks)"
    fields = FIELDS
    ids_are_prefixes = True

    def __init__(self, path: str | Path, options: ReadOptions | None = None) -> None:
        super().__init__(path, options)
        self.block_tokens = self.options.block_tokens or BLOCK_TOKENS
        self.notes = ("output tokens have no ids in this trace",)

    @classmethod
    def claims(cls, head: Head) -> bool:
        row = head.first("timestamp", "input_length", "hash_ids")
        return row is not None and "block_size" not in row and "chat_id" not in row

    def parse(self, number: int, raw: bytes) -> TraceRequest:
        row = json_object(raw, FIELDS)
        time = moment(row, "timestamp")
        n_in, n_out = tokens(row, "input_length", 1), tokens(row, "output_length", 0)
        blocks = block_ids(row["hash_ids"], n_in, self.block_tokens, whole_only=False)
        return TraceRequest(number, time, n_in, n_out, blocks)


class TraceFile(MooncakeReader):
    """A Mooncake trace on disk.

    Args:
        path: a JSONL file, gzipped or not. A pipe can be read only once.
        limit, max_bad, on_bytes: as in ``ReadOptions``.
    """

    def __init__(
        self,
        path: str | Path,
        limit: int | None = None,
        max_bad: int = MAX_BAD_LINES,
        on_bytes: Callable[[int], None] | None = None,
    ) -> None:
        super().__init__(path, ReadOptions(limit, max_bad, on_bytes))


def read_mooncake(
    path: str | Path,
    limit: int | None = None,
    max_bad: int = MAX_BAD_LINES,
    on_bytes: Callable[[int], None] | None = None,
) -> Trace:
    """Read a whole trace into memory, 8 bytes a block; arguments and errors of ``TraceFile``."""
    return TraceFile(path, limit, max_bad, on_bytes).load()
