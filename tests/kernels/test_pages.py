"""Pages and shards move bit for bit, and only where they were asked to."""

import pytest
import torch
from pool_cases import BACKENDS, POISON, same_bits, strided

from kdalab_kernels import (
    ShardPiece,
    TpRank,
    gather_pages,
    gather_shard,
    reslice_conv,
    reslice_states,
    scatter_pages_inplace,
    scatter_shard_inplace,
)

HEADS, V, K, L, W1 = 12, 3, 4, 2, 3
CHANNELS = (24, 36, 12)  # q, k and v in the whole model


def whole(n=4):
    return torch.randn(n, L, HEADS, V, K), torch.randn(n, L, W1, sum(CHANNELS)).bfloat16()


def shard(full, tp, rank):
    """A rank's part, cut out of the whole model's state head by head and channel by channel."""
    S, C = full
    heads = [h for h in range(HEADS) if h * tp // HEADS == rank]
    channels, start = [], 0
    for total in CHANNELS:
        channels += [start + c for c in range(total) if c * tp // total == rank]
        start += total
    return S[:, :, heads], C[..., channels]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.int8])
@pytest.mark.parametrize("shape", [(2, 5, 6), (8,)])
def test_gather_and_scatter_pages(backend, dtype, shape):
    pages = (torch.randn(6, *shape) * 50).to(dtype)
    packed = gather_pages(strided(pages), [4, 0, -1, 4], backend=backend)
    assert packed.is_contiguous()
    assert same_bits(packed[[0, 1, 3]], pages[[4, 0, 4]])
    assert not packed[2].any()
    pool = strided(pages)
    before = pool.clone()
    scatter_pages_inplace(packed[:3], pool, [1, 5, -1], backend=backend)
    assert same_bits(pool[[1, 5]], pages[[4, 0]])
    assert same_bits(pool[[0, 2, 3, 4]], before[[0, 2, 3, 4]])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("from_tp", [1, 2, 3, 4])
@pytest.mark.parametrize("to_tp", [1, 2, 3, 4])
def test_pieces_of_all_ranks_make_a_target_rank_whole(backend, from_tp, to_tp):
    full = whole()
    parts = [shard(full, from_tp, r) for r in range(from_tp)]
    for rank in range(to_tp):
        target = TpRank(to_tp, rank)
        expected = shard(full, to_tp, rank)
        assert same_bits(reslice_states([p[0] for p in parts], to_tp, rank), expected[0])
        assert same_bits(reslice_conv([p[1] for p in parts], CHANNELS, to_tp, rank), expected[1])
        S, C = (strided(torch.full_like(x, POISON)) for x in expected)
        for r, part in enumerate(parts):
            source = TpRank(from_tp, r)
            piece = gather_shard(
                *map(strided, part), [3, -1, 1], source, target, CHANNELS, backend=backend
            )
            assert not piece.states[1].any()
            scatter_shard_inplace(
                piece, S, C, [0, -1, 2], source, target, CHANNELS, backend=backend
            )
        for pool, values in ((S, expected[0]), (C, expected[1])):
            assert same_bits(pool[[0, 2]], values[[3, 1]])
            assert pool[[1, 3]].isnan().all()


def test_the_cut_is_inside_q_k_and_v():
    row = torch.arange(8.0).view(1, 8)  # q 0..3, k 4..5, v 6..7
    assert reslice_conv([row], (4, 2, 2), 2, 0).tolist() == [[0, 1, 4, 6]]
    assert reslice_conv([row], (4, 2, 2), 2, 1).tolist() == [[2, 3, 5, 7]]
    halves = [reslice_conv([row], (4, 2, 2), 2, r) for r in (0, 1)]
    assert torch.equal(reslice_conv(halves, (4, 2, 2), 1, 0), row)


def test_wrong_arguments_are_named_and_nothing_is_written():
    S, C = shard(whole(), 2, 0)
    one, other = TpRank(2, 0), TpRank(4, 1)
    piece = gather_shard(S, C, [0], one, other, CHANNELS)
    T, D = (torch.full_like(x, POISON) for x in shard(whole(), 4, 1))
    pages = torch.zeros(3, 4)
    cases = [
        (lambda: gather_shard(S, C, [9], one, other, CHANNELS), r"slots: .*0 to 3 or -1"),
        (lambda: gather_shard(S, C, [0], TpRank(2, 2), other, CHANNELS), r"source: .*rank 2 of"),
        (
            lambda: gather_shard(S, C, [0], one, TpRank(5, 0), CHANNELS),
            r"heads: 12 cannot be",
        ),
        (lambda: gather_shard(S, C, [0], one, other, (24, 36, 14)), r"conv: expected shape"),
        (
            lambda: gather_shard(S, C, [0], one, other, (24, 36)),
            r"channels: expected shape \[3\]",
        ),
        (lambda: scatter_shard_inplace(piece, T, D, [1, 1], one, other, CHANNELS), r"slots: "),
        (
            lambda: scatter_shard_inplace(
                ShardPiece(piece.states[:, :, :1], piece.conv), T, D, [1], one, other, CHANNELS
            ),
            r"piece.states: expected shape \[1, 2, 3, 3, 4\]",
        ),
        (lambda: gather_pages(pages, [3]), r"page_ids: .*0 to 2 or -1.*given 3 in row 0"),
        (lambda: scatter_pages_inplace(pages[:2], pages, [1, 1]), r"page_ids: .*at most once"),
        (lambda: scatter_pages_inplace(pages[:2, :3], pages, [1, 0]), r"buffer: expected shape"),
        (lambda: scatter_pages_inplace(pages[:2].double(), pages, [1, 0]), r"buffer: expected tor"),
        (lambda: gather_pages(pages.long(), [0]), r"pages: expected a floating or 8-bit dtype"),
        (lambda: reslice_states([], 1, 0), r"parts: expected at least one"),
        (lambda: reslice_states([S, S[:1]], 1, 0), r"parts: expected equal shapes"),
        (lambda: reslice_conv([C], (24, 36, 13), 1, 0), r"channels: expected a sum of 36"),
    ]
    for call, message in cases:
        with pytest.raises(ValueError, match=message):
            call()
    assert T.isnan().all()
    assert D.isnan().all()
