"""One buffer of blocks, and each layer's view of it.

A block id means the same place for every layer; what differs is how a layer's pages are spaced.

* **padded**: place ``i`` of all blocks lies in a row, one page after the other:
  ``i x n_blocks x page + b x page``. Every page has one size.
* **packed**: all places of one block lie in a row: ``b x stride + offset``. Pages have their own
  sizes, and a layer's next page comes one stride later.

Views alias the buffer on purpose: a layer of one group and a layer of another see the same bytes,
and a block belongs to one group at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch

from kdalab.errors import KdalabError

ALIGNMENT = 16  # bytes; every element type can begin there


class BlockBuffer:
    """``n_blocks`` blocks of ``block_bytes`` bytes.

    Args:
        n_blocks: blocks, the null block included.
        block_bytes: one block, all places.
        page_bytes: the one page size of the padded layout; None for the packed layout.
        poison: fill it with 0xFF (NaN in every float type), so that what was never written shows.

    Raises:
        KdalabError: sizes off the alignment, or pages that do not fill the block.
    """

    def __init__(
        self, n_blocks: int, block_bytes: int, page_bytes: int | None = None, poison: bool = True
    ) -> None:
        if n_blocks < 1 or block_bytes < 1 or block_bytes % ALIGNMENT:
            raise KdalabError(
                f"{n_blocks} blocks of {block_bytes:,} bytes; use 1 or more, in multiples of "
                f"{ALIGNMENT} bytes"
            )
        if page_bytes is not None and (page_bytes % ALIGNMENT or block_bytes % page_bytes):
            raise KdalabError(
                f"pages of {page_bytes:,} bytes do not fill a block of {block_bytes:,} bytes in "
                f"multiples of {ALIGNMENT}"
            )
        self.n_blocks, self.block_bytes, self.page_bytes = n_blocks, block_bytes, page_bytes
        fill = torch.full if poison else torch.zeros
        args = ((n_blocks * block_bytes,), 0xFF) if poison else ((n_blocks * block_bytes,),)
        self.bytes = fill(*args, dtype=torch.uint8)

    @property
    def stride(self) -> int:
        """Bytes from one page of a layer to its next."""
        return self.block_bytes if self.page_bytes is None else self.page_bytes

    def first(self, offset: int) -> int:
        """Byte of block 0's page for the layer that lies at ``offset`` within a block."""
        if self.page_bytes is None:
            return offset
        if offset % self.page_bytes:
            raise KdalabError(f"offset {offset:,} is inside a page of {self.page_bytes:,} bytes")
        return offset * self.n_blocks

    def view(self, offset: int, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """A layer's pages as ``[block, *shape]``, strided by block, aliasing the buffer.

        Raises:
            KdalabError: the page would reach into its neighbour, or is off its element type.
        """
        size = dtype.itemsize
        room = (self.block_bytes - offset) if self.page_bytes is None else self.page_bytes
        nbytes, first = prod(shape) * size, self.first(offset)
        if offset < 0 or nbytes > room:
            raise KdalabError(f"a page of {nbytes:,} bytes at {offset:,}; {room:,} bytes are there")
        return self._strided(first, shape, dtype)

    def kv(self, offset: int, block_tokens: int, elements: int, dtype: torch.dtype) -> torch.Tensor:
        """Latent KV of one layer: ``[block, token, element]``."""
        return self.view(offset, (block_tokens, elements), dtype)

    def state(
        self,
        offset: int,
        recurrent: Sequence[int],
        conv: Sequence[int],
        dtype: torch.dtype,
        conv_dtype: torch.dtype,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Both halves of one layer's state, ``[block, *recurrent]`` and ``[block, *conv]``: the
        recurrent one first, the conv one right after it in the same page."""
        inside = prod(recurrent) * dtype.itemsize
        self.view(offset, (inside + prod(conv) * conv_dtype.itemsize,), torch.uint8)  # both fit
        first = self.first(offset)
        return self._strided(first, recurrent, dtype), self._strided(
            first + inside, conv, conv_dtype
        )

    def copy(self, source: int, target: int, offset: int, nbytes: int) -> None:
        """Copy the first ``nbytes`` of one layer's page: real bytes, no padding."""
        pages = self.view(offset, (nbytes,), torch.uint8)
        pages[target] = pages[source]

    def _strided(self, first: int, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        size = dtype.itemsize
        if first % size or self.stride % size:
            raise KdalabError(
                f"a page at byte {first:,}, spaced by {self.stride:,}, holds no whole "
                f"elements of {size} bytes"
            )
        inner = [prod(shape[i + 1 :]) for i in range(len(shape))]
        return self.bytes.view(dtype).as_strided(
            (self.n_blocks, *shape), (self.stride // size, *inner), first // size
        )
