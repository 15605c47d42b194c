"""Traces of tokens, as the simulator of Marconi (arXiv 2411.19379) reads them (JSONL).

One object a line: ``session_id``, ``turn_id``, ``ts`` (seconds), ``input_tokens`` (the ids of the
whole prompt) and ``output_tokens``. Blocks get the hash of all tokens up to their end, so here the
outputs have ids too, and a later turn that contains them finds them.
"""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Any

from kdalab.cache import HashChain, PrefixKey
from kdalab.errors import KdalabError
from kdalab.lab.readers.base import BadLineError, Head, Reader, ReadOptions, json_object, moment
from kdalab.lab.request import MAX_TOKENS, TraceRequest

BLOCK_TOKENS = 64


class MarconiReader(Reader):
    """See the module."""

    format = "marconi"
    title = "Marconi trace (token ids of inputs and outputs)"
    fields = ("session_id", "turn_id", "ts", "input_tokens", "output_tokens")
    time_field = "ts"

    def __init__(self, path: str | Path, options: ReadOptions | None = None) -> None:
        super().__init__(path, options)
        self.block_tokens = self.options.block_tokens or BLOCK_TOKENS
        self.notes = (
            f"blocks of {self.block_tokens} tokens are hashed from the token ids; outputs have "
            "ids as well",
        )

    @classmethod
    def claims(cls, head: Head) -> bool:
        return head.first("input_tokens", "output_tokens") is not None

    def parse(self, number: int, raw: bytes) -> TraceRequest:
        row = json_object(raw, self.fields)
        time = moment(row, "ts", 1000.0)
        n_in = _count(row["input_tokens"], "input_tokens", 1)
        n_out = _count(row["output_tokens"], "output_tokens", 0)
        try:
            key = PrefixKey.from_tokens(row["input_tokens"] + row["output_tokens"], 1)
        except KdalabError as error:
            raise BadLineError("input_tokens", str(error)) from None
        names = [
            int.from_bytes(h[:8], "little") >> 1 for h in HashChain(key, self.block_tokens).hashes
        ]
        whole = n_in // self.block_tokens
        blocks, decoded = array("q", names[:whole]), array("q", names[whole:])
        return TraceRequest(number, time, n_in, n_out, blocks, decoded)


def _count(ids: Any, name: str, least: int) -> int:
    if not isinstance(ids, list) or not least <= len(ids) <= MAX_TOKENS:
        raise BadLineError(name, f"must be a list of {least} or more token ids")
    if not all(type(i) is int and i >= 0 for i in ids):
        raise BadLineError(name, "must be a list of whole numbers of 0 or more")
    return len(ids)
