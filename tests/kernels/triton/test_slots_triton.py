"""The Triton kernels of decode and verify, interpreted on a CPU or run on a GPU."""

import pytest
import torch
from kernel_cases import inputs, rel_rms, state, wide
from pool_cases import POISON, same_bits, strided
from triton_cases import DEVICE

from kdalab_kernels import (
    causal_conv1d_update_inplace,
    causal_conv1d_verify,
    commit_verified_inplace,
    fused_recurrent_kda,
    fused_recurrent_kda_inplace,
    fused_recurrent_kda_verify,
)

TOLERANCE = {torch.float32: 2e-5, torch.float16: 5e-3, torch.bfloat16: 1e-2}
FULL = {
    "use_qk_l2norm_in_kernel": True,
    "use_gate_in_kernel": True,
    "use_beta_sigmoid_in_kernel": True,
    "allow_neg_eigval": True,
    "scale": 0.3,
}


def tokens(*shape, dtype=torch.float32, **kw):
    return [x.to(DEVICE) for x in inputs(*shape, dtype=dtype, **kw)]


def gates(HV, K, lower_bound, A_log=True):
    rng = torch.Generator().manual_seed(1)
    return {
        "A_log": torch.randn(HV, generator=rng).to(DEVICE) if A_log else None,
        "dt_bias": torch.randn(HV * K, generator=rng).to(DEVICE),
        "lower_bound": lower_bound,
    }


def poisoned(n, used, *rest, dtype=torch.float32):
    rng = torch.Generator().manual_seed(3)
    S = torch.full((n, *rest), POISON, dtype=dtype)
    S[used] = torch.randn(len(used), *rest, generator=rng).to(dtype)
    return S.to(DEVICE)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("T", "H", "HV", "K", "V"), [(1, 2, 4, 16, 24), (3, 3, 3, 60, 20)])
def test_decode_by_slot(dtype, T, H, HV, K, V):
    x = tokens(3, T, H, HV, K, V, dtype=dtype)
    S = strided(poisoned(5, [4, 0], HV, V, K))
    before, exact = S.clone(), S.double()
    slots = [4, -1, 0]
    o = fused_recurrent_kda_inplace(*x, S, slots, backend="triton")
    o_exact = fused_recurrent_kda_inplace(*wide(x), exact, slots, backend="reference")
    assert rel_rms(o, o_exact) < TOLERANCE[dtype]
    assert rel_rms(S[[4, 0]], exact[[4, 0]]) < TOLERANCE[dtype]
    assert not o[1].any()
    assert same_bits(S[[1, 2, 3]], before[[1, 2, 3]])


@pytest.mark.parametrize("kind", ["zero", "tiny", "huge", "reset", "mixed"])
def test_every_gate(kind):
    x = tokens(1, 4, 1, 2, 16, 16, kind=kind)
    S = poisoned(1, [0], 2, 16, 16)
    exact = S.double()
    o = fused_recurrent_kda_inplace(*x, S, [0], backend="triton")
    o_exact = fused_recurrent_kda_inplace(*wide(x), exact, [0], backend="reference")
    assert rel_rms(o, o_exact) < 2e-5
    assert rel_rms(S, exact) < 2e-5


@pytest.mark.parametrize(("lower_bound", "A_log"), [(None, True), (-5.0, True), (-5.0, False)])
def test_activations_in_the_kernel(lower_bound, A_log):
    q, k, v, g, beta = tokens(2, 2, 1, 2, 16, 24)
    x = [q * 2, k * 2, v, g * 20 + 8, beta * 9 - 5]
    kw = {**FULL, **gates(2, 16, lower_bound, A_log)}
    S = poisoned(3, [2, 1], 2, 24, 16)
    o, kept = fused_recurrent_kda_verify(*x, S, [2, 1], backend="triton", **kw)
    exact = fused_recurrent_kda_verify(*wide(x), S.double(), [2, 1], backend="reference", **kw)
    assert rel_rms(o, exact[0]) < 2e-5
    assert rel_rms(kept, exact[1]) < 2e-5


@pytest.mark.parametrize("T", [1, 5])
def test_verify_and_commit_equal_decoding_the_accepted_tokens(T):
    N, HV, K, V, D = 3, 2, 12, 20, 10
    x = tokens(N, T, 1, HV, K, V)
    raw, weight = torch.randn(N, T, D, device=DEVICE), torch.randn(D, 4, device=DEVICE)
    slots = [3, -1, 0]
    S, C = poisoned(4, [3, 0], HV, V, K), poisoned(4, [3, 0], 3, D)
    S0, C0 = S.clone(), C.clone()
    o, kept = fused_recurrent_kda_verify(*x, S, slots, backend="triton")
    y, windows = causal_conv1d_verify(raw, C, weight, None, "silu", slots, backend="triton")
    assert same_bits(S, S0)
    assert same_bits(C, C0)
    assert not o[1].any()
    assert not kept[1].any()
    for accepted in ([0, 0, 0], [T, T, 1]):
        S, C, S1, C1 = strided(S0), strided(C0), S0.clone(), C0.clone()
        commit_verified_inplace(S, C, slots, kept, windows, accepted, backend="triton")
        for t in range(T):
            now = [s if t < j else -1 for s, j in zip(slots, accepted, strict=True)]
            step = [tensor[:, t : t + 1] for tensor in x]
            fused_recurrent_kda_inplace(*step, S1, now, backend="triton")
            causal_conv1d_update_inplace(raw[:, t], C1, weight, None, "silu", now, backend="triton")
        assert same_bits(S, S1)
        assert same_bits(C, C1)
    assert rel_rms(y[[0, 2]], causal_conv1d_verify(raw, C0, weight, slots=slots)[0][[0, 2]]) < 2e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("D", "W", "T"), [(60, 4, 1), (100, 4, 2), (3, 2, 5), (8, 1, 1)])
def test_convolution_by_slot(dtype, D, W, T):
    x, weight = torch.randn(3, T, D).to(DEVICE, dtype), torch.randn(D, W, device=DEVICE)
    bias = torch.randn(D, device=DEVICE)
    C = poisoned(5, [4, 1], W - 1, D, dtype=dtype)
    mine, theirs = strided(C), C.clone()
    args = (weight, bias, "silu" if T > 1 else None, [4, -1, 1])
    y = causal_conv1d_update_inplace(x, mine, *args, backend="triton")
    expected = causal_conv1d_update_inplace(x, theirs, *args, backend="torch")
    assert same_bits(mine, theirs)
    assert not y[1].any()
    assert rel_rms(y, expected) < (1e-2 if dtype == torch.bfloat16 else 2e-5)


@pytest.mark.parametrize("v_first", [False, True])
@pytest.mark.parametrize("offsets", [None, [0, 3, 3, 7]])
def test_recurrent_form_in_both_layouts_and_packed(v_first, offsets):
    B, T, N = (2, 4, 2) if offsets is None else (1, 7, 3)
    x = tokens(B, T, 1, 2, 12, 20)
    S = state(N, 2, 12, 20, torch.float32).to(DEVICE)
    S = S.mT.contiguous() if v_first else S
    kw = {"output_final_state": True, "state_v_first": v_first}
    if offsets:
        kw["cu_seqlens"] = torch.tensor(offsets, device=DEVICE)
    o, end = fused_recurrent_kda(*x, initial_state=S, backend="triton", **kw)
    exact = fused_recurrent_kda(*wide(x), initial_state=S.double(), backend="reference", **kw)
    assert rel_rms(o, exact[0]) < 2e-5
    assert rel_rms(end, exact[1]) < 2e-5
    o, end = fused_recurrent_kda(*x, backend="triton", state_v_first=v_first)
    assert end is None
    with pytest.raises(ValueError, match="given float64"):
        fused_recurrent_kda(*wide(x), backend="triton")


def test_unchecked_slots_out_of_range_are_treated_as_padding():
    x = tokens(3, 1, 1, 2, 12, 20)
    S = poisoned(2, [0, 1], 2, 20, 12)
    before = S.clone()
    o = fused_recurrent_kda_inplace(*x, S, [7, 1, -9], check_slots=False, backend="triton")
    assert not o[[0, 2]].any()
    assert o[1].any()
    assert same_bits(S[0], before[0])
