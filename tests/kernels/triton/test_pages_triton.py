"""The Triton kernels that move pages and shards give the same bits as the torch path."""

import pytest
import torch
from pool_cases import POISON, same_bits, strided
from triton_cases import DEVICE

from kdalab_kernels import (
    TpRank,
    gather_pages,
    gather_shard,
    scatter_pages_inplace,
    scatter_shard_inplace,
)

CHANNELS = (24, 36, 12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.int8])
def test_gather_and_scatter_pages(dtype):
    pages = (torch.randn(6, 2, 5, 6) * 50).to(DEVICE, dtype)
    packed = gather_pages(strided(pages), [4, 0, -1], backend="triton")
    assert same_bits(packed, gather_pages(pages, [4, 0, -1], backend="torch"))
    pool = strided(pages)
    scatter_pages_inplace(packed, pool, [1, 5, -1], backend="triton")
    assert same_bits(gather_pages(pages[0], [1], backend="triton"), pages[0, 1:])
    expected = pages.clone()
    scatter_pages_inplace(packed, expected, [1, 5, -1], backend="torch")
    assert same_bits(pool, expected)


@pytest.mark.parametrize(
    ("source", "target"), [((2, 1), (3, 1)), ((1, 0), (4, 2)), ((4, 0), (2, 1))]
)
def test_shards(source, target):
    source, target = TpRank(*source), TpRank(*target)
    S = torch.randn(4, 2, 12 // source.size, 3, 4, device=DEVICE)
    C = torch.randn(4, 2, 3, 72 // source.size, device=DEVICE).bfloat16()
    args = ([3, -1, 1], source, target, CHANNELS)
    piece = gather_shard(strided(S), strided(C), *args, backend="triton")
    expected = gather_shard(S, C, *args, backend="torch")
    for a, b in zip(piece, expected, strict=True):
        assert same_bits(a, b)
    pools = []
    for backend in ("triton", "torch"):
        T = torch.full((4, 2, 12 // target.size, 3, 4), POISON, device=DEVICE)
        D = torch.full((4, 2, 3, 72 // target.size), POISON, device=DEVICE).bfloat16()
        pair = (strided(T), strided(D)) if backend == "triton" else (T, D)
        scatter_shard_inplace(
            expected, *pair, [0, -1, 2], source, target, CHANNELS, backend=backend
        )
        pools.append(pair)
    for a, b in zip(*pools, strict=True):
        assert same_bits(a, b)
