"""Attention over a paged latent cache: against torch's own, with poison behind every end."""

import pytest
import torch
from kernel_cases import rel_rms
from pool_cases import BACKENDS, POISON, strided

from kdalab_kernels import mla_decode_paged, mla_prefill_paged

TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-5, torch.float16: 5e-3, torch.bfloat16: 1e-2}


def cache(lengths, page, C, dtype=torch.float32):
    """Pages in scrambled order, a table with nonsense behind each end, and the rows in order."""
    rng = torch.Generator().manual_seed(5)
    used = [-(-n // page) for n in lengths]
    total = sum(used) + 3
    pages = torch.full((total, page, C), POISON, dtype=torch.float64)
    table = torch.full((len(lengths), max(used) + 1), -7, dtype=torch.int32)
    free = torch.randperm(total, generator=rng).tolist()
    rows = []
    for i, n in enumerate(lengths):
        row = torch.randn(n, C, generator=rng, dtype=torch.float64).to(dtype).double()
        rows.append(row)
        for b in range(used[i]):
            table[i, b] = free.pop()
            part = row[b * page : (b + 1) * page]
            pages[table[i, b], : len(part)] = part
    return pages.to(dtype), table, rows


def attention(q, rows, scale, R, first):
    """torch's attention in float64; query i sees the first ``first + i`` rows."""
    k = rows[None].expand(q.shape[1], -1, -1)
    mask = torch.arange(len(rows))[None] < first + torch.arange(q.shape[0])[:, None]
    return torch.nn.functional.scaled_dot_product_attention(
        q.double().transpose(0, 1), k, k[..., :R], attn_mask=mask, scale=scale
    ).transpose(0, 1)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(
    ("H", "R", "rope", "page"), [(3, 60, 20, 16), (8, 32, 0, 1), (1, 16, 8, 5)]
)
def test_decode_equals_torchs_attention(backend, dtype, H, R, rope, page):
    lengths = [37, 0, 1, 16]
    pages, table, rows = cache(lengths, page, R + rope, dtype)
    q = torch.randn(4, H, R + rope).to(dtype)
    for pool in (pages, strided(pages)):
        o = mla_decode_paged(q, pool, table, lengths, 0.2, R, backend=backend)
        assert o.shape == (4, H, R)
        assert o.dtype == dtype
        assert not o[1].any()
        for i in (0, 2, 3):
            expected = attention(q[i : i + 1], rows[i], 0.2, R, lengths[i])
            assert rel_rms(o[i], expected[0]) < TOLERANCE[dtype]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_prefill_is_causal_over_the_cached_pages(backend, dtype):
    H, R, rope, offsets, context = 3, 24, 8, [0, 5, 5, 12, 13], [21, 4, 7, 33]
    pages, table, rows = cache(context, 8, R + rope, dtype)
    q = torch.randn(13, H, R + rope).to(dtype)
    cu = torch.tensor(offsets)
    o = mla_prefill_paged(q, pages, table, cu, context, 0.3, R, backend=backend)
    for i in (0, 2, 3):
        a, b = offsets[i], offsets[i + 1]
        expected = attention(q[a:b], rows[i], 0.3, R, context[i] - (b - a) + 1)
        assert rel_rms(o[a:b], expected) < TOLERANCE[dtype]


def test_prefill_in_blocks_of_queries(monkeypatch):
    pages, table, _ = cache([40], 8, 20)
    q, cu = torch.randn(30, 2, 20), torch.tensor([0, 30])
    whole = mla_prefill_paged(q, pages, table, cu, [40], 0.3, 16)
    monkeypatch.setattr("kdalab_kernels.torch_path.mla.BLOCK_BYTES", 4 * 2 * 40 * 7)
    assert rel_rms(mla_prefill_paged(q, pages, table, cu, [40], 0.3, 16), whole) < 1e-6


def test_a_sequence_does_not_depend_on_the_others():
    lengths = [37, 5, 16]
    pages, table, _ = cache(lengths, 8, 40)
    q = torch.randn(3, 4, 40)
    together = mla_decode_paged(q, pages, table, lengths, 0.2, 32)
    for i in range(3):
        alone = mla_decode_paged(q[i : i + 1], pages, table[i : i + 1], lengths[i : i + 1], 0.2, 32)
        assert torch.equal(alone[0], together[i])


def test_wrong_arguments_are_named():
    pages, table, _ = cache([9, 4], 4, 12)
    q = torch.randn(2, 3, 12)
    beyond = table.clone()
    beyond[0, 2] = 99
    cu = torch.tensor([0, 1, 2])
    decode = [
        ((q, pages, beyond, [9, 4], 1.0, 8), r"block_table: .*0 to 6, given 99 at \[0, 2\]"),
        ((q, pages, table, [9, 5], 1.0, 8), r"block_table: .*given -7 at \[1, 1\]"),
        ((q, pages, table, [17, 4], 1.0, 8), r"lengths: expected 0 to 16 tokens, given \[17, 4\]"),
        ((q, pages, table, [9], 1.0, 8), r"lengths: expected shape \[N\] = \[2\]"),
        ((q, pages, table[:1], [9, 4], 1.0, 8), r"block_table: expected shape .*\[2, any\]"),
        ((q[..., :11], pages, table, [9, 4], 1.0, 8), r"pages: .*\[any, any, 11\]"),
        ((q.double(), pages, table, [9, 4], 1.0, 8), r"pages: expected the dtype of q"),
        (
            (q, pages, table, [9, 4], 1.0, 13),
            r"value_dim: .*from 1 to 12, given 13",
        ),
        (
            (q, pages, table, [9, 4], 1.0, 8, 0),
            r"num_splits: .*from 1 to 1024, given 0",
        ),
        ((q[0], pages, table, [9, 4], 1.0, 8), r"q: expected shape \[N, H, C\]"),
    ]
    for arguments, message in decode:
        with pytest.raises(ValueError, match=message):
            mla_decode_paged(*arguments)
    with pytest.raises(ValueError, match=r"context_lengths: expected at least the 1 queries .*0"):
        mla_prefill_paged(q, pages, table, cu, [0, 4], 1.0, 8)
    with pytest.raises(ValueError, match=r"cu_seqlens: .*from 0 to T=2"):
        mla_prefill_paged(q, pages, table, cu[:2], [9], 1.0, 8)
