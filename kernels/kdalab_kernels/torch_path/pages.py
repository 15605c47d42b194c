"""Pages and shards between pools and buffers: row copies of slices, without index tensors."""

from collections.abc import Iterator

import torch

from kdalab_kernels.tp import ShardPiece

Run = tuple[int, int]


def gather_pages(pages: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """As :func:`kdalab_kernels.gather_pages`, for checked arguments."""
    out = torch.empty((len(index), *pages.shape[1:]), dtype=pages.dtype, device=pages.device)
    for i, page in enumerate(index.tolist()):
        if page < 0:
            out[i] = 0
        else:
            out[i] = pages[page]
    return out


def scatter_pages_inplace(buffer: torch.Tensor, pages: torch.Tensor, index: torch.Tensor) -> None:
    """As :func:`kdalab_kernels.scatter_pages_inplace`, for checked arguments."""
    for i, page in enumerate(index.tolist()):
        if page >= 0:
            pages[page] = buffer[i]


def _pairs(
    piece: ShardPiece,
    states: torch.Tensor,
    conv: torch.Tensor,
    i: int,
    slot: int,
    heads: Run,
    blocks: list[Run],
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """(part of the piece, the same part of the pool), as views."""
    yield piece.states[i], states[slot].narrow(1, *heads)
    at = 0
    for first, length in blocks:
        yield piece.conv[i].narrow(-1, at, length), conv[slot].narrow(-1, first, length)
        at += length


def gather_shard(
    states: torch.Tensor, conv: torch.Tensor, index: torch.Tensor, heads: Run, blocks: list[Run]
) -> ShardPiece:
    """As :func:`kdalab_kernels.gather_shard`, for checked arguments."""
    n, L, _, V, K = len(index), *states.shape[1:]
    piece = ShardPiece(
        states.new_zeros(n, L, heads[1], V, K),
        conv.new_zeros(n, L, conv.shape[2], sum(length for _, length in blocks)),
    )
    for i, slot in enumerate(index.tolist()):
        if slot >= 0:
            for part, pool in _pairs(piece, states, conv, i, slot, heads, blocks):
                part.copy_(pool)
    return piece


def scatter_shard_inplace(
    piece: ShardPiece,
    states: torch.Tensor,
    conv: torch.Tensor,
    index: torch.Tensor,
    heads: Run,
    blocks: list[Run],
) -> None:
    """As :func:`kdalab_kernels.scatter_shard_inplace`, for checked arguments."""
    for i, slot in enumerate(index.tolist()):
        if slot >= 0:
            for part, pool in _pairs(piece, states, conv, i, slot, heads, blocks):
                pool.copy_(part)
