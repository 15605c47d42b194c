"""The ``kvcache-simulator`` package's JSONL, gzipped or not.

One object a line: ``hash_ids``, ``input_length`` and ``block_size``; optional ``block_tokens``
(tokens of each block), ``output_length`` and ``timestamp`` (taken as ms, as in Mooncake's). Ids
are whole numbers or strings, and stand for a block after the blocks before it.
"""

from __future__ import annotations

from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any

from kdalab.errors import KdalabError
from kdalab.lab.readers import source
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


class KvCacheReader(Reader):
    """See the module. One block size for the whole file: the first that is declared."""

    format = "kvcache"
    title = "kvcache-simulator JSONL (block_size in each line)"
    fields = ("hash_ids", "input_length", "block_size")

    def __init__(self, path: str | Path, options: ReadOptions | None = None) -> None:
        super().__init__(path, options)
        self.block_tokens = self._declared() or self.options.block_tokens or 0
        if not self.block_tokens:
            raise KdalabError(f"{self.file} declares no block_size; give it with --block-tokens")

    @classmethod
    def claims(cls, head: Head) -> bool:
        row = head.first("hash_ids", "input_length")
        if row is None or "chat_id" in row:
            return False
        return "block_size" in row or "timestamp" not in row

    def begin(self) -> None:
        self._without_time = 0
        self.notes = ()

    def _declared(self) -> int:
        for _, raw in islice(source.lines(self.file), 1000):
            try:
                row = json_object(raw, ("block_size",))
                size = tokens(row, "block_size", 1)
            except BadLineError:
                continue
            if size <= 1 << 20:
                return size
        return 0

    def parse(self, number: int, raw: bytes) -> TraceRequest:
        row = json_object(raw, ("hash_ids", "input_length"))
        size = row.get("block_size")
        if size is not None and size != self.block_tokens:
            raise BadLineError(
                "block_size", f"{short(size)} in a trace of blocks of {self.block_tokens}"
            )
        n_in = tokens(row, "input_length", 1)
        n_out = tokens(row, "output_length", 0) if row.get("output_length") is not None else 0
        time = 0.0
        if row.get("timestamp") is not None:
            time = moment(row, "timestamp")
        else:
            self._without_time += 1
            self.notes = ("some requests have no timestamp: their arrivals are unknown",)
        ids = _numbers(row["hash_ids"])
        if row.get("block_tokens") is not None:
            ids = self._whole(ids, row["block_tokens"], n_in)
        return TraceRequest(number, time, n_in, n_out, block_ids(ids, n_in, self.block_tokens))

    def _whole(self, ids: Any, sizes: Any, n_in: int) -> list[int]:
        """Explicit sizes must be those of whole blocks, but for the last: the cache has pages of
        one size."""
        name, block = "block_tokens", self.block_tokens
        if not isinstance(sizes, list) or not all(type(s) is int and s > 0 for s in sizes):
            raise BadLineError(name, "must be a list of whole numbers of 1 or more")
        if not isinstance(ids, list) or len(sizes) != len(ids):
            raise BadLineError(name, "must have as many numbers as hash_ids")
        if any(s != block for s in sizes[:-1]) or (sizes and sizes[-1] > block):
            raise BadLineError(name, f"only the last block may differ from {block} tokens")
        if sum(sizes) != n_in:
            raise BadLineError(name, f"add up to {sum(sizes):,}, and input_length is {n_in:,}")
        return ids


def _numbers(ids: Any) -> Any:
    """Ids that are strings as numbers: decimal ones as they are, others by their hash."""
    if not isinstance(ids, list) or all(type(i) is int for i in ids):
        return ids
    return [_number(i) if isinstance(i, str) else i for i in ids]


def _number(text: str) -> int:
    if text.isdecimal() and len(text) < 19:
        return int(text)
    digest = blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
