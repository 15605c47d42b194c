"""Paged latent KV: what attention reads back, token by token."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kdalab.errors import KdalabError
from kdalab.memory.active import POISON
from kdalab.memory.slots import SlotAllocator
from kdalab.memory.unified import UnifiedBuffer


class LatentPool:
    """Pages of ``page_tokens`` tokens, all MLA layers of a token side by side.

    Shape: ``data`` [page, MLA layer, token in page, latent | rope channel]. With a ``buffer`` the
    pages are its low side, ``data`` is a strided view, and ``n`` is not used.
    """

    def __init__(
        self,
        n: int,
        n_layers: int,
        page_tokens: int,
        dim: int,
        dtype: torch.dtype = torch.float32,
        buffer: UnifiedBuffer | None = None,
    ) -> None:
        self.page_tokens = page_tokens
        self.fill: float | None = POISON  # what freed pages are overwritten with; None: nothing
        shape = (n_layers, page_tokens, dim)
        if buffer is None:
            self.slots = SlotAllocator(n, "latent pages")
            self.data = torch.full((n, *shape), POISON, dtype=dtype)
        else:
            self.slots, self.data = buffer.pages, buffer.view(buffer.pages, shape, dtype)

    @property
    def page_bytes(self) -> int:
        """Bytes of one page, all layers."""
        return self.data[0].nbytes

    @property
    def parts(self) -> tuple[torch.Tensor, ...]:
        """The tensors that hold a page, row by row."""
        return (self.data,)

    @property
    def nbytes(self) -> int:
        """Bytes of the pool."""
        return self.data.nbytes

    def write(self, pages: Sequence[int], start: int, latent: torch.Tensor, owner: str) -> None:
        """Write the latents of tokens [start, start + n).

        Args:
            pages: the request's page table, from token 0 on.
            start: first token.
            latent: [MLA layer, n tokens, channel].
            owner: must own every page that is written; shared pages are read-only.

        Raises:
            KdalabError: a page is missing from the table or is not the owner's, or ``latent`` has
                another shape than the pool. Nothing was written.
        """
        size, (_, n_layers, _, dim) = self.page_tokens, self.data.shape
        n = latent.shape[1]
        if tuple(latent.shape) != (n_layers, n, dim) or start < 0:
            raise KdalabError(
                f"latents {list(latent.shape)} of tokens from {start} on; expected "
                f"[{n_layers}, n, {dim}] from 0 or later"
            )
        if n == 0:
            return
        written = range(start // size, (start + n - 1) // size + 1)
        self._check_table(pages, start + n)
        rows = [self._writable(page, owner) for page in pages[written.start : written.stop]]
        for index, row in zip(written, rows, strict=True):
            first, last = max(start, index * size), min(start + n, (index + 1) * size)
            self.data[row, :, first - index * size : last - index * size] = latent[
                :, first - start : last - start
            ]

    def write_tokens(
        self,
        tables: Sequence[Sequence[int]],
        positions: Sequence[int],
        latent: torch.Tensor,
        owners: Sequence[str],
    ) -> None:
        """Write one token of each of several requests.

        Args:
            tables: each request's page table, from token 0 on.
            positions: of each token.
            latent: [request, MLA layer, channel].
            owners: must own the pages that are written.

        Raises:
            KdalabError: as ``write``. Nothing was written.
        """
        _, n_layers, _, dim = self.data.shape
        if tuple(latent.shape) != (len(tables), n_layers, dim) or min(positions, default=0) < 0:
            raise KdalabError(
                f"latents {list(latent.shape)} of {len(tables)} tokens; expected "
                f"[{len(tables)}, {n_layers}, {dim}] at positions of 0 or later"
            )
        rows, offsets = [], []
        for table, position, owner in zip(tables, positions, owners, strict=True):
            self._check_table(table, position + 1)
            index, offset = divmod(position, self.page_tokens)
            rows.append(self._writable(table[index], owner))
            offsets.append(offset)
        self.data[torch.tensor(rows), :, torch.tensor(offsets)] = latent

    def gather(self, pages: Sequence[int], n: int) -> torch.Tensor:
        """Latents of tokens [0, n) in order: [MLA layer, n, channel] (a copy).

        Raises:
            KdalabError: the page table covers fewer tokens, or names a page out of range.
        """
        n_layers, dim = self.data.shape[1], self.data.shape[3]
        if n == 0:
            return self.data.new_empty((n_layers, 0, dim))
        self._check_table(pages, n)
        used = pages[: -(-n // self.page_tokens)]
        # place() raises for a number that would wrap round
        index = torch.tensor([self.slots.place(page) for page in used])
        whole = self.data[index].transpose(0, 1).reshape(n_layers, -1, dim)
        return whole[:, :n]

    def _writable(self, page: int, owner: str) -> int:
        holder = self.slots.owner(page)
        if holder != owner:
            raise KdalabError(
                f"latent page {page} belongs to {holder or 'nobody'}; {owner} must not write it"
            )
        return self.slots.place(page)

    def _check_table(self, pages: Sequence[int], n: int) -> None:
        if len(pages) * self.page_tokens < n:
            raise KdalabError(
                f"{n} tokens need {-(-n // self.page_tokens)} pages of {self.page_tokens}; "
                f"the page table has {len(pages)}"
            )

    def free(self, pages: Sequence[int], owner: str) -> None:
        """Give pages back and poison them."""
        self.slots.free(pages, owner)
        if pages and self.fill is not None and not self.slots.moves:
            self.data[torch.tensor(list(pages))] = self.fill

    def free_is_poisoned(self) -> bool:
        """Nobody has written where nobody owns."""
        if self.slots.moves:
            return True  # the unified buffer answers for all of its bytes
        free = [i for i, owner in enumerate(self.slots.owners()) if owner is None]
        return bool(torch.isnan(self.data[torch.tensor(free, dtype=torch.long)]).all())
