"""Pages and shards between pools and buffers: the specification, one row at a time."""

import torch

from kdalab_kernels.tp import ShardPiece

Run = tuple[int, int]


def gather_pages(pages: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """The ``reference`` backend."""
    out = pages.new_zeros(len(index), *pages.shape[1:])
    for i, page in enumerate(index.tolist()):
        if page >= 0:
            out[i] = pages[page]
    return out


def scatter_pages_inplace(buffer: torch.Tensor, pages: torch.Tensor, index: torch.Tensor) -> None:
    """The ``reference`` backend."""
    for i, page in enumerate(index.tolist()):
        if page >= 0:
            pages[page] = buffer[i]


def _channels(blocks: list[Run]) -> list[int]:
    """The pool's channel for each channel of a piece."""
    return [c for first, length in blocks for c in range(first, first + length)]


def gather_shard(
    states: torch.Tensor, conv: torch.Tensor, index: torch.Tensor, heads: Run, blocks: list[Run]
) -> ShardPiece:
    """The ``reference`` backend."""
    _, L, _, V, K = states.shape
    kept = _channels(blocks)
    piece = ShardPiece(
        states.new_zeros(len(index), L, heads[1], V, K),
        conv.new_zeros(len(index), L, conv.shape[2], len(kept)),
    )
    for i, slot in enumerate(index.tolist()):
        if slot < 0:
            continue
        for h in range(heads[1]):
            piece.states[i, :, h] = states[slot, :, heads[0] + h]
        for c, channel in enumerate(kept):
            piece.conv[i, :, :, c] = conv[slot, :, :, channel]
    return piece


def scatter_shard_inplace(
    piece: ShardPiece,
    states: torch.Tensor,
    conv: torch.Tensor,
    index: torch.Tensor,
    heads: Run,
    blocks: list[Run],
) -> None:
    """The ``reference`` backend."""
    for i, slot in enumerate(index.tolist()):
        if slot < 0:
            continue
        for h in range(heads[1]):
            states[slot, :, heads[0] + h] = piece.states[i, :, h]
        for c, channel in enumerate(_channels(blocks)):
            conv[slot, :, :, channel] = piece.conv[i, :, :, c]
