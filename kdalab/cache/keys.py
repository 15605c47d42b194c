"""A token sequence as the cache sees it: whole pages, compared as bytes."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kdalab.errors import KdalabError


@dataclass(frozen=True, slots=True)
class PrefixKey:
    """The whole pages of one prompt.

    ``data`` holds ``page_bytes`` bytes for each page, so that comparing a run of pages is one
    memory comparison. For real tokens a page's bytes are its token ids; for a trace they are the
    id of its block. ``n_tokens`` counts the prompt's tokens, including those of a last, partial
    page that ``data`` leaves out.
    """

    data: bytes
    page_bytes: int
    page_tokens: int
    n_tokens: int

    @classmethod
    def from_tokens(cls, tokens: Sequence[int] | np.ndarray, page_tokens: int) -> PrefixKey:
        """Key of a token sequence with pages of ``page_tokens`` tokens.

        Raises:
            KdalabError: pages below one token; an id that is no whole number of 31 bits.
        """
        if page_tokens < 1:
            raise KdalabError(f"pages of {page_tokens} tokens; a page holds at least 1")
        n = len(tokens)
        whole = tokens[: n // page_tokens * page_tokens]
        try:
            if isinstance(whole, np.ndarray):
                data = _as_int32(whole).tobytes()
            else:
                data = array("i", whole).tobytes()
        except (TypeError, OverflowError) as error:
            raise KdalabError(f"token ids are whole numbers below 2**31: {error}") from None
        return cls(data, 4 * page_tokens, page_tokens, n)

    @classmethod
    def from_blocks(cls, blocks: Sequence[int], block_tokens: int, n_tokens: int) -> PrefixKey:
        """Key of a trace request: ``blocks`` are the ids of its blocks of ``block_tokens`` tokens.

        Only blocks that ``n_tokens`` fills completely take part; the last one may be partial.

        Raises:
            KdalabError: blocks below one token, a negative length, too few ids, or an id that is
                no whole number of 63 bits.
        """
        if block_tokens < 1:
            raise KdalabError(f"blocks of {block_tokens} tokens; a block holds at least 1")
        if n_tokens < 0:
            raise KdalabError(f"a prompt of {n_tokens:,} tokens; it has 0 or more")
        whole = n_tokens // block_tokens
        if whole > len(blocks):
            raise KdalabError(
                f"{n_tokens:,} tokens fill {whole:,} blocks of {block_tokens}, "
                f"but only {len(blocks):,} block ids are given"
            )
        ids = blocks[:whole]
        if isinstance(ids, array) and ids.typecode == "q":  # a trace's are that already
            return cls(ids.tobytes(), 8, block_tokens, n_tokens)
        return cls(_as_int64(ids).tobytes(), 8, block_tokens, n_tokens)

    @property
    def n_pages(self) -> int:
        """Whole pages."""
        return len(self.data) // self.page_bytes

    def page(self, index: int) -> bytes:
        """The bytes of page ``index``."""
        start = index * self.page_bytes
        return self.data[start : start + self.page_bytes]


def _as_int32(ids: np.ndarray) -> np.ndarray:
    if ids.dtype.kind not in "iu" or ids.ndim != 1:
        raise TypeError(f"an array of {ids.dtype} with {ids.ndim} axes is not a list of ids")
    if ids.dtype.itemsize > 4 and ids.size and (ids.max() >= 2**31 or ids.min() < -(2**31)):
        raise OverflowError("an id is too large")
    return ids.astype(np.int32, copy=False)


def _as_int64(blocks: Sequence[int]) -> np.ndarray:
    try:
        ids = np.asarray(blocks)
    except ValueError:  # lists within the list
        ids = np.asarray(blocks, dtype=object)
    if not ids.size and ids.ndim == 1:
        return ids.astype(np.int64)
    unsigned = ids.dtype.kind == "u" and ids.max() > np.iinfo(np.int64).max
    if ids.dtype.kind not in "iu" or ids.ndim != 1 or unsigned:
        raise KdalabError("block ids are a list of whole numbers below 2**63")
    return ids.astype(np.int64, copy=False)


def common_pages(a: bytes, b: bytes, page_bytes: int) -> int:
    """Number of leading pages that ``a`` and ``b`` share (halving, on memory comparisons)."""
    low, high = 0, min(len(a), len(b)) // page_bytes
    while low < high:
        middle = (low + high + 1) // 2
        cut = slice(low * page_bytes, middle * page_bytes)
        if a[cut] == b[cut]:
            low = middle
        else:
            high = middle - 1
    return low
