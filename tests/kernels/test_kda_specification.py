"""The specification against FLA's naive functions, hand arithmetic and itself in chunks."""

import pytest
import torch
from kernel_cases import GATES, inputs, rel_rms, state

from kdalab_kernels import (
    naive_chunk_kda,
    naive_kda_gate,
    naive_kda_lowerbound_gate,
    naive_recurrent_kda,
)


@pytest.fixture(scope="module")
def fla_naive():
    return pytest.importorskip("fla.ops.kda.naive", exc_type=ImportError)


@pytest.fixture(scope="module")
def fla_gate():
    return pytest.importorskip("fla.ops.kda.gate", exc_type=ImportError)


def test_two_tokens_by_hand_decay_then_delta_then_read():
    half = torch.tensor(0.5, dtype=torch.float64).log()
    q = k = torch.ones(1, 2, 1, 1, dtype=torch.float64)
    v = torch.tensor([4.0, 6.0], dtype=torch.float64).view(1, 2, 1, 1)
    g = half.expand(1, 2, 1, 1)
    beta = torch.full((1, 2, 1), 0.5, dtype=torch.float64)
    o, S = naive_recurrent_kda(q, k, v, g, beta, scale=1.0, output_final_state=True)
    # S1 = 0 + .5 * (4 - 0) = 2; S2 = 1 + .5 * (6 - 1) = 3.5; a read of the decayed or of the
    # old state, or a delta against the undecayed one, would give other numbers.
    torch.testing.assert_close(o.flatten().tolist(), [2.0, 3.5])
    assert S.item() == pytest.approx(3.5)


@pytest.mark.parametrize("kind", [k for k in GATES if k != "reset"])
@pytest.mark.parametrize(("H", "HV"), [(2, 2), (2, 4), (3, 3)])
def test_recurrence_equals_fla_naive(fla_naive, kind, H, HV):
    x = inputs(2, 20, H, HV, 16, 24, kind=kind, dtype=torch.float32)
    S = state(2, HV, 16, 24, torch.float32)
    o, end = naive_recurrent_kda(*x, initial_state=S, output_final_state=True)
    o2, end2 = fla_naive.naive_recurrent_kda(*x, initial_state=S, output_final_state=True)
    assert rel_rms(o, o2) < 1e-6
    assert rel_rms(end, end2) < 1e-6


@pytest.mark.parametrize("kind", ["zero", "tiny", "random", "safe"])
def test_chunk_form_equals_fla_naive_chunk(fla_naive, kind):
    x = inputs(1, 128, 2, 4, 16, 24, kind=kind, dtype=torch.float32)
    S = state(1, 4, 16, 24, torch.float32)
    o, end = naive_chunk_kda(*x, initial_state=S, output_final_state=True)
    o2, end2 = fla_naive.naive_chunk_kda(*x, initial_state=S, output_final_state=True)
    assert rel_rms(o, o2) < 2e-5
    assert rel_rms(end, end2) < 2e-5


@pytest.mark.parametrize("T", [0, 1, 2, 15, 16, 17, 31, 64, 65, 97])
@pytest.mark.parametrize("kind", GATES)
def test_chunk_form_equals_recurrence(T, kind):
    x = inputs(1, T, 1, 2, 12, 8, kind=kind)
    S = state(1, 2, 12, 8)
    o, end = naive_recurrent_kda(*x, initial_state=S, output_final_state=True)
    for C in (16, 64):
        o2, end2 = naive_chunk_kda(*x, initial_state=S, output_final_state=True, chunk_size=C)
        assert rel_rms(o2, o) < 1e-12
        assert rel_rms(end2, end) < 1e-12


@pytest.mark.parametrize("spec", [naive_recurrent_kda, naive_chunk_kda])
@pytest.mark.parametrize("kind", ["saturated", "huge", "mixed"])
def test_gradients_are_finite_at_saturated_gates(spec, kind):
    x = inputs(1, 20, 1, 1, 8, 8, kind=kind, dtype=torch.float32)
    for t in x:
        t.requires_grad_()
    o, _ = spec(*x)
    o.square().sum().backward()
    for t in x:
        assert t.grad.isfinite().all()


def test_gradients_of_both_forms_agree():
    grads = []
    for spec in (naive_recurrent_kda, naive_chunk_kda):
        x = inputs(1, 37, 1, 2, 6, 5)
        for t in x:
            t.requires_grad_()
        spec(*x)[0].square().sum().backward()
        grads.append([t.grad for t in x])
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


def test_classic_gate_equals_fla(fla_gate):
    f, A_log, bias = torch.randn(5, 3, 8) * 5, torch.randn(3), torch.randn(24)
    expected = fla_gate.naive_kda_gate(f, A_log, bias)
    torch.testing.assert_close(naive_kda_gate(f, A_log, bias), expected)


def test_lower_bound_gate_equals_fla(fla_gate):
    f, A_log, bias = torch.randn(5, 3, 8) * 5, torch.randn(3), torch.randn(24)
    for a in (A_log, None):
        expected = fla_gate.naive_kda_lowerbound_gate(f, a, bias, lower_bound=-4.0)
        torch.testing.assert_close(naive_kda_lowerbound_gate(f, a, bias, -4.0), expected)
