"""The Triton kernel of snapshots gives the same bits as the torch path."""

import pytest
import torch
from pool_cases import POISON, same_bits, strided
from triton_cases import DEVICE

from kdalab_kernels import snapshot_states_inplace


@pytest.mark.parametrize(
    ("W", "dtype"), [(4, torch.bfloat16), (2, torch.float32), (1, torch.float32)]
)
def test_snapshots_of_packed_sequences(W, dtype):
    HV, V, K, D, N = 2, 20, 12, 10, 3
    h, end = torch.randn(1, 6, HV, V, K, device=DEVICE), torch.randn(N, HV, V, K, device=DEVICE)
    raw = torch.randn(1, 71, D).to(DEVICE, dtype)
    before = torch.randn(N, W - 1, D).to(DEVICE, dtype)
    cu = torch.tensor([0, 37, 39, 71], device=DEVICE)
    where = [0, 0, 1, 2, 0, 2, 0], [16, 37, 2, 32, 0, 16, 0], [5, 0, 3, 2, -1, 6, 1]
    results = []
    for backend in ("triton", "torch"):
        pool = torch.full((7, HV, V, K), POISON, device=DEVICE)
        conv = torch.full((7, W - 1, D), POISON, device=DEVICE, dtype=dtype)
        pair = (strided(pool), strided(conv)) if backend == "triton" else (pool, conv)
        snapshot_states_inplace(
            *pair, h, end, raw, before, *where, cu, chunk_size=16, backend=backend
        )
        results.append(pair)
    for a, b in zip(*results, strict=True):
        assert same_bits(a, b)
    assert results[0][0][4].isnan().all()
