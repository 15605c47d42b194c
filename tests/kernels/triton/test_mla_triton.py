"""The Triton kernels of paged latent attention, against the specification in float64."""

import pytest
import torch
from kernel_cases import rel_rms
from pool_cases import strided
from test_mla_paged import cache
from triton_cases import DEVICE

from kdalab_kernels import mla_decode_paged, mla_prefill_paged

TOLERANCE = {torch.float32: 2e-5, torch.float16: 5e-3, torch.bfloat16: 1e-2}


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("num_splits", [None, 1, 3])
@pytest.mark.parametrize(("H", "R", "rope", "page"), [(3, 60, 20, 16), (18, 32, 0, 5)])
def test_decode_in_splits(dtype, num_splits, H, R, rope, page):
    lengths = [70, 0, 1]
    pages, table, _ = cache(lengths, page, R + rope, dtype)
    q = torch.randn(3, H, R + rope).to(dtype)
    exact = mla_decode_paged(
        q.double(), pages.double(), table, lengths, 0.2, R, backend="reference"
    )
    pool = strided(pages).to(DEVICE)
    o = mla_decode_paged(
        q.to(DEVICE), pool, table.to(DEVICE), lengths, 0.2, R, num_splits, backend="triton"
    )
    assert o.dtype == dtype
    assert not o[1].any()
    assert rel_rms(o.cpu(), exact) < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_prefill_is_causal_over_the_cached_pages(dtype):
    H, R, rope, context = 3, 24, 8, [21, 4, 7, 33]
    cu = torch.tensor([0, 5, 5, 12, 33])
    pages, table, _ = cache(context, 8, R + rope, dtype)
    q = torch.randn(33, H, R + rope).to(dtype)
    exact = mla_prefill_paged(
        q.double(), pages.double(), table, cu, context, 0.3, R, backend="reference"
    )
    o = mla_prefill_paged(
        q.to(DEVICE),
        pages.to(DEVICE),
        table.to(DEVICE),
        cu.to(DEVICE),
        context,
        0.3,
        R,
        backend="triton",
    )
    assert rel_rms(o.cpu(), exact) < TOLERANCE[dtype]
