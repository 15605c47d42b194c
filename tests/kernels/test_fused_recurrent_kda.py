"""The torch path of the token recurrence, and every cut of a sequence into calls."""

import pytest
import torch
from kernel_cases import GATES, inputs, rel_rms, state, wide

from kdalab_kernels import chunk_kda, fused_recurrent_kda, naive_recurrent_kda


@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize(("H", "HV", "K", "V"), [(2, 2, 32, 48), (3, 6, 60, 100), (1, 1, 1, 1)])
def test_equals_the_recurrence(kind, H, HV, K, V):
    S = state(2, HV, K, V)
    for dtype, rtol in ((torch.float64, 1e-12), (torch.float32, 2e-5)):
        x = inputs(2, 33, H, HV, K, V, kind=kind, dtype=dtype)
        o, end = fused_recurrent_kda(*x, initial_state=S.to(dtype), output_final_state=True)
        start = S.to(dtype).double()
        o2, end2 = naive_recurrent_kda(*wide(x), initial_state=start, output_final_state=True)
        assert rel_rms(o, o2) < rtol
        assert rel_rms(end, end2) < rtol


def test_layouts_and_activations_equal_those_of_the_chunk_form():
    q, k, v, g, beta = inputs(2, 40, 2, 4, 16, 24)
    kw = {
        "initial_state": state(2, 4, 24, 16),
        "output_final_state": True,
        "state_v_first": True,
        "use_qk_l2norm_in_kernel": True,
        "use_gate_in_kernel": True,
        "use_beta_sigmoid_in_kernel": True,
        "allow_neg_eigval": True,
        "A_log": torch.randn(4),
        "dt_bias": torch.randn(64),
        "lower_bound": -5.0,
    }
    results = [
        op(q * 2, k * 2, v, g * 5, beta * 9 - 5, backend=backend, **kw)
        for op in (fused_recurrent_kda, chunk_kda)
        for backend in ("torch", "reference")
    ]
    for o, end in results[1:]:
        assert end.shape == (2, 4, 24, 16)
        assert rel_rms(o, results[0][0]) < 1e-12
        assert rel_rms(end, results[0][1]) < 1e-12


def test_a_low_precision_state_is_widened_and_returned_wide():
    x = inputs(1, 5, 1, 1, 8, 8, dtype=torch.bfloat16)
    x[3] = x[3].float()
    S = state(1, 1, 8, 8, torch.bfloat16)
    o, end = fused_recurrent_kda(*x, initial_state=S, output_final_state=True)
    expected = naive_recurrent_kda(*wide(x), initial_state=S.double(), output_final_state=True)[1]
    assert o.dtype == torch.bfloat16
    assert end.dtype == torch.float32
    assert rel_rms(end, expected) < 1e-6


def test_inputs_and_state_are_left_as_they_were():
    x = inputs(2, 9, 1, 2, 8, 8, dtype=torch.float32)
    S = state(2, 2, 8, 8, torch.float32)
    before = [t.clone() for t in (*x, S)]
    fused_recurrent_kda(*x, initial_state=S, output_final_state=True)
    for a, b in zip((*x, S), before, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("first", [chunk_kda, fused_recurrent_kda])
@pytest.mark.parametrize("second", [chunk_kda, fused_recurrent_kda])
def test_cut_at_every_token_equals_one_shot(first, second):
    x = inputs(1, 96, 1, 2, 16, 24, dtype=torch.float32)
    whole, end = chunk_kda(*x, output_final_state=True)
    for i in range(1, 96, 1 if first is second else 7):
        a, S = first(*(t[:, :i] for t in x), output_final_state=True)
        b, S = second(*(t[:, i:] for t in x), initial_state=S, output_final_state=True)
        assert rel_rms(torch.cat([a, b], 1), whole) < 2e-6, i
        assert rel_rms(S, end) < 2e-6, i


def test_three_calls_cut_anywhere_equal_one_shot():
    x = inputs(1, 96, 1, 1, 16, 16)
    whole, end = chunk_kda(*x, output_final_state=True)
    for i in range(1, 90, 11):
        for j in range(i + 1, 96, 13):
            parts, S = [], None
            for a, b in ((0, i), (i, j), (j, 96)):
                o, S = chunk_kda(*(t[:, a:b] for t in x), initial_state=S, output_final_state=True)
                parts.append(o)
            assert rel_rms(torch.cat(parts, 1), whole) < 1e-12
            assert rel_rms(S, end) < 1e-12
