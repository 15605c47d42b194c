"""Several sequences in one row (cu_seqlens): each as if it were alone, empty ones untouched."""

from itertools import pairwise

import pytest
import torch
from kernel_cases import inputs, rel_rms, state

import kdalab_kernels.torch_path.chunk as torch_chunk
from kdalab_kernels import causal_conv1d, chunk_kda, fused_recurrent_kda

OFFSETS = [
    [0, 0, 1],
    [0, 5, 5, 9],
    [0, 64, 128],
    [0, 1, 66, 67, 197, 197, 230],
    [0, 130, 131, 160],
    [0, 3, 6, 9, 12],
]


@pytest.mark.parametrize("op", [chunk_kda, fused_recurrent_kda])
@pytest.mark.parametrize("offsets", OFFSETS)
def test_packed_equals_one_by_one(op, offsets):
    x = inputs(1, offsets[-1], 2, 4, 32, 48, dtype=torch.float32)
    S = state(len(offsets) - 1, 4, 32, 48, torch.float32)
    cu = torch.tensor(offsets, dtype=torch.int32)
    o, end = op(*x, initial_state=S, output_final_state=True, cu_seqlens=cu)
    for n, (a, b) in enumerate(pairwise(offsets)):
        alone = op(*(t[:, a:b] for t in x), initial_state=S[n : n + 1], output_final_state=True)
        assert torch.equal(o[:, a:b], alone[0])
        assert torch.equal(end[n : n + 1], alone[1])


@pytest.mark.parametrize("op", [chunk_kda, fused_recurrent_kda])
@pytest.mark.parametrize("N", [0, 1, 3])
@pytest.mark.parametrize("backend", ["torch", "reference"])
def test_empty_sequences_pass_their_state_through(op, backend, N):
    x = inputs(1, 0, 1, 2, 8, 12, dtype=torch.float32)
    S = state(N, 2, 8, 12, torch.float32)
    cu = torch.zeros(N + 1, dtype=torch.long)
    o, end = op(*x, initial_state=S, output_final_state=True, cu_seqlens=cu, backend=backend)
    assert o.shape == (1, 0, 2, 12)
    assert torch.equal(end, S)
    _, fresh = op(*x, output_final_state=True, cu_seqlens=cu, backend=backend)
    assert fresh.shape == S.shape
    assert not fresh.any()


def test_intermediate_states_follow_each_sequences_own_grid():
    offsets = [0, 70, 70, 200, 201]
    x = inputs(1, 201, 1, 2, 16, 24, dtype=torch.float32)
    S = state(4, 2, 16, 24, torch.float32)
    kw = {"output_final_state": True, "return_intermediate_states": True}
    _, _, h = chunk_kda(*x, initial_state=S, cu_seqlens=torch.tensor(offsets), **kw)
    alone = []
    for n, (a, b) in enumerate(pairwise(offsets)):
        part = [t[:, a:b] for t in x]
        alone.append(chunk_kda(*part, initial_state=S[n : n + 1], **kw)[2])
    assert h.shape == (1, 2 + 0 + 3 + 1, 2, 16, 24)
    assert torch.equal(h, torch.cat(alone, dim=1))


@pytest.mark.parametrize("op", [chunk_kda, fused_recurrent_kda])
def test_seventy_thousand_sequences_of_one_token(op):
    N = 70_000
    x = inputs(1, N, 1, 1, 4, 4, dtype=torch.float32)
    o, end = op(*x, output_final_state=True, cu_seqlens=torch.arange(N + 1))
    q, k, v, _, beta = (t[0].double() for t in x)
    expected = k[:, :, :, None] * (beta[:, :, None] * v)[:, :, None]
    assert rel_rms(end, expected) < 1e-6
    assert rel_rms(o[0], (expected * q[..., None] * 0.5).sum(-2)) < 1e-6


def test_splitting_a_wide_wave_into_blocks_changes_no_bit(monkeypatch):
    packed = inputs(1, 130, 1, 2, 8, 8, dtype=torch.float32)
    batch = inputs(5, 40, 1, 2, 8, 8, dtype=torch.float32)
    cu = torch.tensor([0, 40, 41, 42, 90, 130])
    calls = ({"x": packed, "cu_seqlens": cu}, {"x": batch})
    kw = {"output_final_state": True, "return_intermediate_states": True}
    expected = [chunk_kda(*c["x"], cu_seqlens=c.get("cu_seqlens"), **kw) for c in calls]
    monkeypatch.setattr(torch_chunk, "BLOCK_NUMBERS", 2 * 2 * 32 * 8)  # two tiles at a time
    for call, before in zip(calls, expected, strict=True):
        after = chunk_kda(*call["x"], cu_seqlens=call.get("cu_seqlens"), **kw)
        for a, b in zip(after, before, strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize("backend", ["torch", "reference"])
@pytest.mark.parametrize("offsets", [*OFFSETS, [0, 0, 0], [0]])
def test_packed_convolution_equals_one_by_one(backend, offsets):
    T, D, W = offsets[-1], 32, 4
    x, weight, bias = torch.randn(1, T, D), torch.randn(D, W), torch.randn(D)
    S = torch.randn(len(offsets) - 1, W - 1, D)
    y, end = causal_conv1d(x, weight, bias, None, S, True, torch.tensor(offsets), backend=backend)
    assert y.shape == x.shape
    for n, (a, b) in enumerate(pairwise(offsets)):
        alone = causal_conv1d(x[:, a:b], weight, bias, None, S[n : n + 1], True, backend=backend)
        torch.testing.assert_close(y[:, a:b], alone[0])
        assert torch.equal(end[n : n + 1], alone[1])
