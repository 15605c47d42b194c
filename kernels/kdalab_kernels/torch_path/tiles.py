"""Where the tokens of every sequence lie on a grid of tiles of C tokens, and how they get there.

Tiles are ordered by *wave*: wave i holds tile i of every sequence that is that long. All tiles of a
wave can be scanned at once, and a run of waves is a contiguous run of tiles. Sequences of unequal
length are ranked longest first, so that the states still needed by wave i are the first ones.
"""

from itertools import pairwise
from typing import NamedTuple

import torch

Factor = torch.Tensor | float | None


def ceil_div(a: int, b: int) -> int:
    """``a / b`` rounded up."""
    return -(-a // b)


class Block(NamedTuple):
    """A run of tiles that is worked on together: whole waves, or a part of one wide wave."""

    waves: range
    first_rank: int  # of the sequences in it; 0 unless it is a part of a wave
    counts: tuple[int, ...]  # sequences per wave
    tiles: slice


class TileGrid:
    """Tiles of N sequences; ``load`` brings tokens into them, ``store`` takes outputs back."""

    def __init__(self, B: int, T: int, C: int, cu_seqlens: list[int] | None, device: torch.device):
        self.B, self.T, self.C = B, T, C
        self.order: torch.Tensor | None = None  # sequence of each rank; None: as given
        self.counts: list[int] = []  # sequences in each wave
        if cu_seqlens is None:
            self.counts = [B] * ceil_div(T, C) if B else []
        else:
            lengths = [end - start for start, end in pairwise(cu_seqlens)]
            tiles = [ceil_div(length, C) for length in lengths]
            order = sorted(range(len(tiles)), key=tiles.__getitem__, reverse=True)
            rank = len(order)
            for wave in range(max(tiles, default=0)):
                while tiles[order[rank - 1]] <= wave:
                    rank -= 1
                self.counts.append(rank)
            self.order = torch.tensor(order, device=device, dtype=torch.long)
        self.first_tile = [0]
        for count in self.counts:
            self.first_tile.append(self.first_tile[-1] + count)
        if cu_seqlens is not None:
            self._index(cu_seqlens, device)

    def _index(self, cu_seqlens: list[int], device: torch.device) -> None:
        """token[tile, row]: its place in the packed row; padding[tile, row]: there is none."""
        assert self.order is not None
        offsets = torch.tensor(cu_seqlens, device=device, dtype=torch.long)
        start, end = offsets[:-1][self.order], offsets[1:][self.order]
        counts = torch.tensor(self.counts, device=device, dtype=torch.long)
        wave = torch.repeat_interleave(torch.arange(len(self.counts), device=device), counts)
        first = torch.tensor(self.first_tile[:-1], device=device, dtype=torch.long)
        rank = torch.arange(self.first_tile[-1], device=device) - first[wave]
        row = torch.arange(self.C, device=device)
        token = start[rank, None] + wave[:, None] * self.C + row
        self.padding = token >= end[rank, None]
        self.token = token.masked_fill(self.padding, 0)

    def blocks(self, most: int) -> list[Block]:
        """All tiles in order, in runs of at most ``most`` tiles (at least 1)."""
        out: list[Block] = []
        begin = 0
        while begin < len(self.counts):
            at, wide = self.first_tile[begin], self.counts[begin]
            if wide > most:
                for rank in range(0, wide, most):
                    n = min(most, wide - rank)
                    tiles = slice(at + rank, at + rank + n)
                    out.append(Block(range(begin, begin + 1), rank, (n,), tiles))
                begin += 1
                continue
            end = begin + 1
            while end < len(self.counts) and self.first_tile[end + 1] - at <= most:
                end += 1
            tiles = slice(at, self.first_tile[end])
            out.append(Block(range(begin, end), 0, tuple(self.counts[begin:end]), tiles))
            begin = end
        return out

    def ranked(self, states: torch.Tensor) -> torch.Tensor:
        """States ``[N, ...]`` by rank."""
        return states if self.order is None else states[self.order]

    def unranked(self, states: torch.Tensor) -> torch.Tensor:
        """The inverse of :meth:`ranked`."""
        if self.order is None:
            return states
        out = torch.empty_like(states)
        out[self.order] = states
        return out

    def load(self, x: torch.Tensor, block: Block, out: torch.Tensor, factor: Factor = None) -> None:
        """Copy x ``[B, T, H, D]``, times factor, into out ``[tiles * HV, C, D]``.

        A factor of its own for each row is ``[tiles * HV, C, 1]``. Missing rows become 0.
        ``HV // H`` value heads get a copy each of their key head. Nothing outside x is read. The
        product is rounded once, in out's dtype.
        """
        H, D, C = x.shape[2], x.shape[3], self.C
        if self.order is not None:
            rows = x[0].index_select(0, self.token[block.tiles].flatten())
            rows.masked_fill_(self.padding[block.tiles].flatten()[:, None, None], 0.0)
            by_tile = rows.view(-1, C, H, D).transpose(1, 2)
            shape = (by_tile.shape[0], H, -1)
            _put(by_tile[:, :, None], out.unflatten(0, shape), _unflatten(factor, shape))
            return
        B = block.counts[0]
        heads = (len(block.waves), B, H, -1)
        to, factor = out.unflatten(0, heads), _unflatten(factor, heads)
        b, t, h, d = x.stride()
        t0, t1 = block.waves.start * C, min(block.waves.stop * C, self.T)
        first = x.storage_offset() + block.first_rank * b + t0 * t
        full, rest = divmod(t1 - t0, C)
        if full:  # one view in place of five: small calls are made of overhead
            by_wave = x.as_strided((full, B, H, 1, C, D), (C * t, b, h, 0, t, d), first)
            _put(by_wave, to[:full], factor[:full] if isinstance(factor, torch.Tensor) else factor)
        if rest:
            tail = x.as_strided((B, H, 1, rest, D), (b, h, 0, t, d), first + full * C * t)
            if isinstance(factor, torch.Tensor):
                factor = factor[full, ..., :rest, :]
            _put(tail, to[full, ..., :rest, :], factor)
            to[full, ..., rest:, :].zero_()

    def store(
        self, x: torch.Tensor, y: torch.Tensor, block: Block, o: torch.Tensor, sign: int = 1
    ) -> None:
        """Copy x + sign * y, both ``[tiles * HV, C, V]``, into o ``[B, T, HV, V]``.

        Padding rows are left out.
        """
        HV, C = o.shape[2], self.C
        if self.order is not None:
            real = ~self.padding[block.tiles].flatten()
            by_tile = torch.add(x, y, alpha=sign).unflatten(0, (-1, HV))
            rows = by_tile.transpose(1, 2).flatten(0, 1)
            o[0].index_copy_(0, self.token[block.tiles].flatten()[real], rows[real].to(o.dtype))
            return
        B = block.counts[0]
        x, y = (t.unflatten(0, (len(block.waves), B, HV)) for t in (x, y))
        mine = o[block.first_rank : block.first_rank + B]
        t0, t1 = block.waves.start * C, min(block.waves.stop * C, self.T)
        full, rest = divmod(t1 - t0, C)
        if full:
            to = mine[:, t0 : t0 + full * C].unflatten(1, (full, C)).permute(1, 0, 3, 2, 4)
            torch.add(x[:full], y[:full], alpha=sign, out=to)
        if rest:
            to = mine[:, t0 + full * C : t1].transpose(1, 2)
            torch.add(x[full, ..., :rest, :], y[full, ..., :rest, :], alpha=sign, out=to)


def _unflatten(factor: Factor, heads: tuple[int, ...]) -> Factor:
    return factor.unflatten(0, heads) if isinstance(factor, torch.Tensor) else factor


def _put(x: torch.Tensor, to: torch.Tensor, factor: Factor) -> None:
    """``to = x * factor``, in one pass where x has to's dtype already."""
    if factor is not None and x.dtype == to.dtype:
        torch.mul(x.expand_as(to), factor, out=to)
        return
    to.copy_(x)
    if factor is not None:
        to.mul_(factor)
