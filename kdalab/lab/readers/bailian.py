"""Qwen-Bailian's anonymous usage traces (JSONL, blocks of 16 tokens).

One object a line: ``chat_id``, ``parent_chat_id`` (-1 for the first of a chat), ``timestamp``
(seconds), ``input_length``, ``output_length``, ``type``, ``turn``, ``hash_ids``.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from kdalab.lab.readers.base import (
    BadLineError,
    Head,
    Reader,
    ReadOptions,
    block_ids,
    json_object,
    moment,
    short,
    tokens,
)
from kdalab.lab.request import TraceRequest

BLOCK_TOKENS = 16
MAX_TYPES = 32


class BailianReader(Reader):
    """See the module. ``types`` counts the requests of each kind, ``turns`` those beyond the
    first of their chat."""

    format = "bailian"
    title = "Qwen-Bailian usage trace (16-token blocks)"
    fields = (
        "chat_id",
        "parent_chat_id",
        "timestamp",
        "input_length",
        "output_length",
        "turn",
        "hash_ids",
    )

    def __init__(self, path: str | Path, options: ReadOptions | None = None) -> None:
        super().__init__(path, options)
        self.block_tokens = self.options.block_tokens or BLOCK_TOKENS
        self.notes = ("output tokens have no ids of their own in this trace",)
        self.types: Counter[str] = Counter()
        self.turns = 0

    @classmethod
    def claims(cls, head: Head) -> bool:
        return head.first("chat_id", "parent_chat_id", "hash_ids") is not None

    def begin(self) -> None:
        self.types, self.turns = Counter(), 0

    def parse(self, number: int, raw: bytes) -> TraceRequest:
        row = json_object(raw, self.fields)
        for name in ("chat_id", "parent_chat_id", "turn"):
            if type(row[name]) is not int or row[name] < -1:
                raise BadLineError(name, f"must be a whole number, not {short(row[name])}")
        time = moment(row, "timestamp", 1000.0)
        n_in, n_out = tokens(row, "input_length", 1), tokens(row, "output_length", 0)
        blocks = block_ids(row["hash_ids"], n_in, self.block_tokens)
        kind = short(row.get("type", "unknown"))
        if kind in self.types or len(self.types) < MAX_TYPES:
            self.types[kind] += 1
        self.turns += row["parent_chat_id"] >= 0
        return TraceRequest(number, time, n_in, n_out, blocks)
