"""Gate, l2 norm, convolution and affine summaries in Triton against their specification."""

from itertools import pairwise

import pytest
import torch
from kernel_cases import inputs, rel_rms, state
from triton_cases import DEVICE

import kdalab_kernels
from kdalab_kernels import (
    AffineSummary,
    apply,
    causal_conv1d,
    causal_conv1d_update,
    chunk_summary,
    compose,
    fused_kda_gate,
    kda_gate_chunk_cumsum,
    l2norm,
    naive_recurrent_kda,
)

TOLERANCE = {torch.float32: 2e-5, torch.float16: 5e-3, torch.bfloat16: 1e-2}


def on(*tensors):
    return [None if t is None else t.to(DEVICE) for t in tensors]


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("W", [1, 2, 4])
@pytest.mark.parametrize("activation", [None, "silu"])
def test_convolution_of_packed_sequences_equals_the_specification(dtype, W, activation):
    D = 60
    x, weight, bias = torch.randn(1, 70, D), torch.randn(D, W), torch.randn(D)
    x, S, cu = x.to(dtype), torch.randn(5, W - 1, D).to(dtype), torch.tensor([0, 0, 33, 34, 36, 70])
    y, end = causal_conv1d(
        *on(x, weight, bias), activation, *on(S), True, *on(cu), backend="triton"
    )
    wide = [t.double() for t in (x, weight, bias)]
    y2, end2 = causal_conv1d(*wide, activation, S.double(), True, cu, backend="reference")
    assert y.dtype == end.dtype == dtype
    assert rel_rms(y.cpu(), y2) < TOLERANCE[dtype]
    assert torch.equal(end.cpu().double(), end2)


def test_convolution_cut_anywhere_gives_the_same_bits_without_activation():
    x, weight, S = on(torch.randn(2, 40, 20), torch.randn(20, 4), torch.randn(2, 3, 20))
    whole, end = causal_conv1d(x, weight, None, None, S, True, backend="triton")
    for i in (0, 1, 2, 3, 31, 32, 33, 40):
        a, mid = causal_conv1d(x[:, :i], weight, None, None, S, True, backend="triton")
        b, last = causal_conv1d_update(x[:, i:], mid, weight, None, None, backend="triton")
        assert torch.equal(torch.cat([a, b], 1), whole), i
        assert torch.equal(last, end), i


def test_convolution_reads_no_neighbour_and_leaves_its_inputs():
    x, weight, S = torch.randn(1, 33, 20), torch.randn(20, 4), torch.randn(1, 3, 20)
    big = torch.full((1, 60, 20), float("nan"), device=DEVICE)
    big[:, 10:43] = x.to(DEVICE)
    weight, S = on(weight, S)
    clean = causal_conv1d(x.to(DEVICE), weight, None, "silu", S, True, backend="triton")
    dirty = causal_conv1d(big[:, 10:43], weight, None, "silu", S, True, backend="triton")
    before = S.clone()
    strided = torch.stack([x, x * 2], -1)[..., 0].to(DEVICE)
    odd = causal_conv1d(
        strided, weight.t().contiguous().t(), None, "silu", S, True, backend="triton"
    )
    for a, b, c in zip(clean, dirty, odd, strict=True):
        assert torch.equal(a, b)
        assert torch.equal(a, c)
    assert torch.equal(S, before)


@pytest.mark.parametrize("T", [None, 1, 2, 5])
def test_conv_update_of_one_or_several_tokens(T):
    x = torch.randn(3, 20) if T is None else torch.randn(3, T, 20)
    weight, bias, S = torch.randn(20, 4), torch.randn(20), torch.randn(3, 3, 20)
    y, end = causal_conv1d_update(*on(x, S, weight, bias), backend="triton")
    y2, end2 = causal_conv1d_update(x, S, weight, bias, backend="reference")
    assert y.shape == x.shape
    assert rel_rms(y.cpu(), y2) < 2e-6
    assert torch.equal(end.cpu(), end2)


@pytest.mark.parametrize("lower_bound", [None, -5.0])
@pytest.mark.parametrize("bias", [None, "given"])
def test_gate_equals_its_formula(lower_bound, bias):
    f, A_log = torch.randn(2, 7, 3, 20) * 8, torch.randn(3)
    bias = None if bias is None else torch.randn(60)
    g = fused_kda_gate(*on(f, A_log, bias), lower_bound, backend="triton").cpu().double()
    wide = [None if t is None else t.double() for t in (f, A_log, bias)]
    exact = fused_kda_gate(*wide, lower_bound, backend="reference")
    torch.testing.assert_close(g, exact, rtol=1e-5, atol=1e-12)


def test_gate_is_finite_and_at_most_zero_at_the_extremes():
    f = torch.tensor([-1e30, -200.0, -88.0, 0.0, 88.0, 200.0]).view(1, 6)
    for A_log in (-200.0, 0.0, 200.0):
        for lower_bound in (None, -5.0):
            g = fused_kda_gate(
                *on(f, torch.tensor([A_log])), None, lower_bound, backend="triton"
            ).cpu()
            assert not g.isnan().any()
            assert (g <= 0).all()
            assert lower_bound is None or (g >= lower_bound).all()


@pytest.mark.parametrize("backend", ["triton", "torch"])
@pytest.mark.parametrize(
    ("A_log", "lower_bound"), [(None, None), (1, None), (1, -5.0), (None, -5.0)]
)
def test_gate_with_its_sum_in_each_chunk(backend, A_log, lower_bound):
    f = torch.randn(1, 70, 3, 20) * 4
    f = -f.abs() if A_log is None and lower_bound is None else f
    A_log = None if A_log is None else torch.randn(3)
    cu = torch.tensor([0, 0, 33, 34, 70])
    device = DEVICE if backend == "triton" else "cpu"
    for offsets in (None, cu):
        G = kda_gate_chunk_cumsum(
            f.to(device),
            None if A_log is None else A_log.to(device),
            None,
            lower_bound,
            16,
            offsets,
            backend=backend,
        )
        wide = None if A_log is None else A_log.double()
        args = (f.double(), wide, None, lower_bound, 16, offsets)
        exact = kda_gate_chunk_cumsum(*args, backend="reference")
        assert G.dtype == torch.float32
        assert rel_rms(G.cpu(), exact) < 2e-6
        bounds = [0, 70] if offsets is None else offsets.tolist()
        for a, b in pairwise(bounds):  # a chunk's last entry is the sum of its gates
            for t in range(a, b, 16):
                own = kda_gate_chunk_cumsum(f[:, t : min(t + 16, b)].double(), *args[1:4])
                torch.testing.assert_close(exact[:, min(t + 16, b) - 1], own[:, -1])


@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_l2norm_has_eps_inside_the_root(dtype):
    x = torch.cat([torch.randn(70, 60), torch.zeros(1, 60), torch.full((1, 60), 1e-5)]).to(dtype)
    y = l2norm(x.to(DEVICE), backend="triton").cpu()
    assert y.dtype == dtype
    assert rel_rms(y, l2norm(x.double(), backend="reference")) < TOLERANCE[dtype]
    assert not y[-2].any()
    strided = torch.stack([x, x * 2], -1)[..., 0].to(DEVICE)
    assert torch.equal(l2norm(strided, backend="triton").cpu(), y)


@pytest.mark.parametrize("kind", ["tiny", "mixed"])
def test_composed_summaries_equal_the_recurrence(kind):
    x = inputs(1, 50, 1, 2, 20, 24, kind=kind, correlated=True)
    S = state(1, 2, 20, 24)
    _, end = naive_recurrent_kda(*x, initial_state=S, output_final_state=True)
    a, b = (
        chunk_summary(*on(*(t[:, lo:hi].float() for t in x[1:])), backend="triton")
        for lo, hi in ((0, 33), (33, 50))
    )
    both = compose(a, b, backend="triton")
    exact = chunk_summary(*x[1:], backend="reference")
    assert rel_rms(both.M.cpu(), exact.M) < 2e-5
    assert rel_rms(both.b.cpu(), exact.b) < 2e-5
    assert rel_rms(apply(both, S.float().to(DEVICE), backend="triton").cpu(), end) < 2e-5


def test_an_empty_span_is_the_identity():
    x = [t.to(DEVICE) for t in inputs(1, 0, 1, 2, 16, 24, dtype=torch.float32)]
    M, b = chunk_summary(*x[1:], backend="triton")
    assert torch.equal(M.cpu(), torch.eye(16).expand(1, 2, 16, 16))
    assert not b.any()
    assert isinstance(AffineSummary(M, b), tuple)


def test_backends_lists_the_ops_that_have_a_triton_kernel():
    for op in ("chunk_kda", "causal_conv1d", "l2norm", "fused_kda_gate", "chunk_summary", "apply"):
        assert "triton" in kdalab_kernels.backends_of(op)
