"""Decode and verify by slot: against the recurrence in float64, with poison all around."""

import pytest
import torch
from kernel_cases import GATES, inputs, rel_rms, wide
from pool_cases import BACKENDS, POISON, same_bits, strided

from kdalab_kernels import (
    causal_conv1d,
    causal_conv1d_update_inplace,
    causal_conv1d_verify,
    commit_verified_inplace,
    fused_recurrent_kda,
    fused_recurrent_kda_inplace,
    fused_recurrent_kda_verify,
    naive_recurrent_kda,
)

TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-5, torch.float16: 5e-3, torch.bfloat16: 1e-2}
SHAPES = [(2, 2, 16, 24), (3, 6, 60, 100), (3, 3, 100, 60), (1, 1, 1, 1)]  # H, HV, K, V


def pool_of(n, HV, V, K, used, dtype=torch.float32):
    """Random states in the used slots and poison in the free ones."""
    rng = torch.Generator().manual_seed(3)
    S = torch.randn(n, HV, V, K, generator=rng, dtype=torch.float64).to(dtype)
    S[[s for s in range(n) if s not in used]] = POISON
    return S


def expected(x, S, slots):
    """o and final states ``[rows, HV, V, K]`` by the recurrence in float64; 0 for padding."""
    q, k, v, g, beta = wide(x)
    o, end = torch.zeros_like(v), S.new_zeros(len(slots), *S.shape[1:]).double()
    for n, slot in enumerate(slots):
        if slot >= 0:
            row = [t[n : n + 1] for t in (q, k, v, g, beta)]
            start = S[slot : slot + 1].double().transpose(-1, -2)
            o[n], final = naive_recurrent_kda(*row, initial_state=start, output_final_state=True)
            end[n] = final.transpose(-1, -2)
    return o, end


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("T", [1, 3])
@pytest.mark.parametrize(("H", "HV", "K", "V"), SHAPES)
def test_decode_equals_the_recurrence_and_leaves_other_slots_alone(backend, dtype, T, H, HV, K, V):
    x = inputs(4, T, H, HV, K, V, dtype=dtype)
    slots = [5, -1, 0, 2]
    S = pool_of(6, HV, V, K, slots, torch.promote_types(dtype, torch.float32))
    o_exact, end = expected(x, S, slots)
    for pool in (S.clone(), strided(S), S.transpose(-1, -2).contiguous().transpose(-1, -2)):
        before = pool.clone()
        o = fused_recurrent_kda_inplace(*x, pool, slots, backend=backend)
        assert o.dtype == dtype
        assert not o[1].any()
        assert rel_rms(o, o_exact) < TOLERANCE[dtype]
        assert rel_rms(pool[[5, 0, 2]], end[[0, 2, 3]]) < TOLERANCE[dtype]
        assert same_bits(pool[[1, 3, 4]], before[[1, 3, 4]])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", GATES)
def test_every_gate(backend, kind):
    x = inputs(2, 5, 2, 4, 16, 24, kind=kind, dtype=torch.float32)
    S = pool_of(3, 4, 24, 16, [2, 0])
    o_exact, end = expected(x, S, [2, 0])
    o = fused_recurrent_kda_inplace(*x, S, [2, 0], backend=backend)
    assert rel_rms(o, o_exact) < 2e-5
    assert rel_rms(S[[2, 0]], end) < 2e-5


@pytest.mark.parametrize("backend", BACKENDS)
def test_activations_equal_those_of_the_form_without_slots(backend):
    q, k, v, g, beta = inputs(3, 2, 2, 4, 16, 24)
    x = (q * 2, k * 2, v, g * 5, beta * 9 - 5)
    kw = {
        "use_qk_l2norm_in_kernel": True,
        "use_gate_in_kernel": True,
        "use_beta_sigmoid_in_kernel": True,
        "allow_neg_eigval": True,
        "A_log": torch.randn(4),
        "dt_bias": torch.randn(64),
        "lower_bound": -5.0,
        "scale": 0.3,
    }
    S = pool_of(4, 4, 24, 16, range(4), torch.float64)
    o_exact, end = fused_recurrent_kda(
        *x, initial_state=S[[1, 3, 0]], output_final_state=True, state_v_first=True, **kw
    )
    o, kept = fused_recurrent_kda_verify(*x, S, [1, 3, 0], backend=backend, **kw)
    assert rel_rms(o, o_exact) < 1e-12
    assert rel_rms(kept[:, -1], end) < 1e-12
    assert torch.equal(fused_recurrent_kda_inplace(*x, S, [1, 3, 0], backend=backend, **kw), o)
    assert torch.equal(S[[1, 3, 0]], kept[:, -1])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_narrow_pool_is_computed_wide_and_rounded_once(backend, dtype):
    x = inputs(2, 4, 1, 2, 8, 12, dtype=torch.float32)
    S = pool_of(3, 2, 12, 8, [2, 1], dtype)
    _, end = expected(x, S, [2, 1])
    fused_recurrent_kda_inplace(*x, S, [2, 1], backend=backend)
    assert S.dtype == dtype
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(S[[2, 1]].double(), end, rtol=eps, atol=eps * 1e-2)


def test_a_row_does_not_depend_on_the_others():
    x = inputs(6, 3, 2, 4, 60, 100, dtype=torch.float32)
    S = pool_of(6, 4, 100, 60, range(6))
    together = S.clone()
    slots = [4, 2, 0, 1, 5, 3]
    o = fused_recurrent_kda_inplace(*x, together, slots)
    for n, slot in enumerate(slots):
        alone = S.clone()
        row = fused_recurrent_kda_inplace(*(t[n : n + 1] for t in x), alone, [slot])
        assert torch.equal(row[0], o[n])
        assert torch.equal(alone[slot], together[slot])
        padded = S.clone()
        only = [slot if i == n else -1 for i in range(6)]
        assert torch.equal(fused_recurrent_kda_inplace(*x, padded, only)[n], o[n])
        assert torch.equal(padded[slot], together[slot])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("T", range(1, 9))
def test_verify_and_commit_equal_decoding_the_accepted_tokens(backend, T):
    N, H, HV, K, V, D = 4, 3, 6, 12, 20, 10
    x = inputs(N, T, H, HV, K, V, dtype=torch.float32)
    raw, weight, bias = torch.randn(N, T, D), torch.randn(D, 4), torch.randn(D)
    slots = [3, 0, -1, 4]
    S, C = strided(pool_of(5, HV, V, K, slots)), strided(torch.randn(5, 3, D))
    S0, C0 = S.clone(), C.clone()
    o, kept = fused_recurrent_kda_verify(*x, S, slots, backend=backend)
    y, windows = causal_conv1d_verify(raw, C, weight, bias, "silu", slots, backend=backend)
    assert same_bits(S, S0)
    assert same_bits(C, C0)
    assert kept.shape == (N, T, HV, V, K)
    assert windows.shape == (N, T, 3, D)
    assert not o[2].any()
    assert not y[2].any()
    for accepted in ([0, 0, 0, 0], [T, T, T, T], [1, 0, 1, T], [T // 2, T, 0, 1]):
        S, C, S1, C1 = strided(S0), strided(C0), S0.clone(), C0.clone()
        commit_verified_inplace(S, C, slots, kept, windows, accepted, backend=backend)
        for t in range(T):
            now = [s if t < j else -1 for s, j in zip(slots, accepted, strict=True)]
            step = [tensor[:, t : t + 1] for tensor in x]
            o1 = fused_recurrent_kda_inplace(*step, S1, now, backend=backend)
            y1 = causal_conv1d_update_inplace(
                raw[:, t], C1, weight, bias, "silu", now, backend=backend
            )
            for n, slot in enumerate(now):
                if slot >= 0:
                    assert torch.equal(o1[n, 0], o[n, t])
                    assert torch.equal(y1[n], y[n, t])
        assert same_bits(S, S1)
        assert same_bits(C, C1)


@pytest.mark.parametrize("backend", BACKENDS)
def test_commit_moves_all_layers_at_once(backend):
    kept, windows = torch.randn(2, 3, 2, 4, 5, 6), torch.randn(2, 3, 2, 3, 7)
    S, C = torch.full((4, 2, 4, 5, 6), POISON), torch.full((4, 2, 3, 7), POISON)
    commit_verified_inplace(S, C, [3, 1], kept, windows, [2, 0], backend=backend)
    assert torch.equal(S[3], kept[0, 1])
    assert torch.equal(C[3], windows[0, 1])
    assert S[:3].isnan().all()
    assert C[:3].isnan().all()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("D", "W", "T"), [(60, 4, 1), (100, 4, 2), (3, 2, 5), (8, 1, 2)])
def test_convolution_by_slot_equals_the_form_without(backend, dtype, D, W, T):
    x, weight, bias = torch.randn(3, T, D).to(dtype), torch.randn(D, W), torch.randn(D)
    C = torch.randn(5, W - 1, D).to(dtype)
    C[[0, 3]] = POISON
    for activation in (None, "silu"):
        for pool in (C.clone(), strided(C)):
            y, end = causal_conv1d(
                x.double()[[0, 2]], weight, bias, activation, C[[4, 1]].double(), True
            )
            got = causal_conv1d_update_inplace(
                x, pool, weight, bias, activation, [4, -1, 1], backend=backend
            )
            assert got.dtype == dtype
            assert not got[1].any()
            assert rel_rms(got[[0, 2]], y) < (1e-2 if dtype == torch.bfloat16 else 2e-5)
            assert same_bits(pool[[4, 1]], end.to(dtype))
            assert same_bits(pool[[0, 2, 3]], C[[0, 2, 3]])


BAD_SLOTS = [
    ([0, 3], r"slots: expected slots from 0 to 2 or -1 .*given 3 in row 1"),
    ([-2, 0], r"slots: .*given -2 in row 0"),
    ([1, 1], r"slots: expected every slot at most once, given slot 1 in rows 0 and 1"),
    ([0], r"slots: expected shape \[N\] = \[2\], given \[1\]"),
    (torch.tensor([0.0, 1.0]), r"slots: expected dtype int32 or int64"),
]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("slots", "message"), BAD_SLOTS, ids=[m for _, m in BAD_SLOTS])
def test_bad_slots_are_refused_and_no_state_is_touched(backend, slots, message):
    x = inputs(2, 1, 1, 1, 4, 4, dtype=torch.float32)
    raw, weight = torch.randn(2, 6), torch.randn(6, 4)
    S, C = torch.randn(3, 1, 4, 4), torch.randn(3, 3, 6)
    S0, C0 = S.clone(), C.clone()
    kept, windows = torch.randn(2, 1, 1, 4, 4), torch.randn(2, 1, 3, 6)
    with pytest.raises(ValueError, match=message):
        fused_recurrent_kda_inplace(*x, S, slots, backend=backend)
    with pytest.raises(ValueError, match=message):
        causal_conv1d_update_inplace(raw, C, weight, slots=slots, backend=backend)
    with pytest.raises(ValueError, match=message):
        commit_verified_inplace(S, C, slots, kept, windows, [1, 1], backend=backend)
    if slots != [1, 1]:  # reading one slot twice is what branches of a draft do
        with pytest.raises(ValueError, match=message):
            fused_recurrent_kda_verify(*x, S, slots, backend=backend)
        with pytest.raises(ValueError, match=message):
            causal_conv1d_verify(raw, C, weight, slots=slots, backend=backend)
    assert same_bits(S, S0)
    assert same_bits(C, C0)


def test_wrong_arguments_are_named():
    x = inputs(2, 1, 1, 2, 4, 6, dtype=torch.float32)
    S, C = torch.randn(3, 2, 6, 4), torch.randn(3, 3, 6)
    kept, windows = torch.randn(2, 2, 2, 6, 4), torch.randn(2, 2, 3, 6)
    cases = [
        (lambda: fused_recurrent_kda_inplace(*x, S.mT, [0, 1]), r"states: .*\[any, 2, 6, 4\]"),
        (
            lambda: fused_recurrent_kda_inplace(*x, S[:1].expand(3, -1, -1, -1), [0, 1]),
            r"states: expected memory of its own",
        ),
        (lambda: causal_conv1d_update_inplace(C, C, torch.ones(6, 3)), r"states: .*\[any, 2, 6\]"),
        (
            lambda: commit_verified_inplace(S, C, [0, 1], kept, windows, [3, 0]),
            r"accepted: expected numbers from 0 to T=2, given \[3, 0\]",
        ),
        (
            lambda: commit_verified_inplace(S, C, [0, 1], kept.double(), windows, [1, 0]),
            r"intermediate: expected dtype torch.float32, given torch.float64",
        ),
        (
            lambda: commit_verified_inplace(S, C, [0, 1], kept, windows[:, :1], [1, 0]),
            r"conv_windows: expected shape \[N, T, ..\] = \[2, 2, 3, 6\]",
        ),
        (
            lambda: commit_verified_inplace(S, C[:2], [0, 1], kept, windows, [1, 0]),
            r"conv_states: expected as many slots and layers as states",
        ),
    ]
    for call, message in cases:
        with pytest.raises(ValueError, match=message):
            call()
