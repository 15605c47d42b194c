"""What must hold to the last bit: causality, independence of neighbours, and the 64-token grid."""

import pytest
import torch
from kernel_cases import inputs, state

from kdalab_kernels import chunk_kda, fused_recurrent_kda

ACTIVE = {
    "use_qk_l2norm_in_kernel": True,
    "use_gate_in_kernel": True,
    "use_beta_sigmoid_in_kernel": True,
}


@pytest.mark.parametrize("op", [chunk_kda, fused_recurrent_kda])
@pytest.mark.parametrize("kind", ["tiny", "random", "mixed"])
@pytest.mark.parametrize("K", [32, 60])
def test_no_output_depends_on_a_later_token(op, kind, K):
    x = inputs(1, 96, 2, 2, K, 48, kind=kind, dtype=torch.float32)
    other = inputs(1, 96, 2, 2, K, 48, kind="safe", dtype=torch.float32, seed=5)
    o, _ = op(*x)
    for t in range(0, 96, 1 if kind == "mixed" else 5):
        changed = [
            torch.cat([a[:, : t + 1], b[:, t + 1 :]], 1) for a, b in zip(x, other, strict=True)
        ]
        assert torch.equal(op(*changed)[0][:, : t + 1], o[:, : t + 1]), t


@pytest.mark.parametrize("op", [chunk_kda, fused_recurrent_kda])
@pytest.mark.parametrize(("B", "T", "H", "HV", "K", "V"), [
    (8, 100, 2, 4, 32, 48), (5, 33, 3, 3, 60, 100), (3, 130, 1, 1, 128, 128), (8, 1, 4, 4, 32, 32),
])  # fmt: skip
def test_a_row_of_a_batch_equals_the_row_alone(op, B, T, H, HV, K, V):
    q, k, v, g, beta = inputs(B, T, H, HV, K, V, dtype=torch.float32)
    x = [q * 3, k * 3, v, g * 4 + 2, beta * 6 - 3]
    S = state(B, HV, K, V, torch.float32)
    extra = {"A_log": torch.linspace(-1, 1, HV), "dt_bias": torch.linspace(-2, 2, HV * K)}
    o, end = op(*x, initial_state=S, output_final_state=True, **ACTIVE, **extra)
    for n in range(B):
        one = slice(n, n + 1)
        alone = op(
            *(t[one] for t in x), initial_state=S[one], output_final_state=True, **ACTIVE, **extra
        )
        assert torch.equal(o[one], alone[0])
        assert torch.equal(end[one], alone[1])


def test_rows_with_zero_key_beta_and_gate_leave_the_state_alone():
    q, k, v, g, beta = inputs(1, 64, 2, 2, 32, 48, dtype=torch.float32)
    S = state(1, 2, 32, 48, torch.float32)
    for op in (chunk_kda, fused_recurrent_kda):
        _, end = op(q, k * 0, v, g * 0, beta * 0, initial_state=S, output_final_state=True)
        assert torch.equal(end, S)


@pytest.mark.parametrize("real", [1, 31, 32, 33, 63])
def test_a_padded_cell_gives_the_state_of_its_real_tokens(real):
    x = inputs(1, 64, 2, 2, 32, 48, dtype=torch.float32)
    S = state(1, 2, 32, 48, torch.float32)
    short = [t[:, :real] for t in x]
    padded = [torch.cat([t[:, :real], torch.zeros_like(t[:, real:])], 1) for t in x]
    o, end = chunk_kda(*short, initial_state=S, output_final_state=True)
    o2, end2 = chunk_kda(*padded, initial_state=S, output_final_state=True)
    assert torch.equal(o, o2[:, :real])
    assert torch.equal(end, end2)


@pytest.mark.parametrize("kind", ["tiny", "random", "mixed"])
@pytest.mark.parametrize("cells", [(64, 64, 64), (128, 64), (64, 128)])
def test_calls_on_the_64_grid_equal_one_call(kind, cells):
    x = inputs(1, 192, 4, 4, 32, 32, kind=kind, dtype=torch.float32)
    whole, end = chunk_kda(*x, output_final_state=True)
    parts, S, at = [], None, 0
    for n in cells:
        part = [t[:, at : at + n] for t in x]
        o, S = chunk_kda(*part, initial_state=S, output_final_state=True)
        parts.append(o)
        at += n
    assert torch.equal(torch.cat(parts, 1), whole)
    assert torch.equal(S, end)


def test_the_grid_of_intermediate_states_changes_no_bit_of_the_output():
    x = inputs(1, 192, 2, 2, 32, 48, dtype=torch.float32)
    assert torch.equal(chunk_kda(*x, chunk_size=32)[0], chunk_kda(*x, chunk_size=64)[0])


def test_a_restored_intermediate_state_continues_with_the_same_bits():
    x = inputs(1, 192, 2, 2, 32, 48, dtype=torch.float32)
    o, _, h = chunk_kda(*x, return_intermediate_states=True)
    for i in (1, 2):
        rest, _ = chunk_kda(*(t[:, 64 * i :] for t in x), initial_state=h[:, i])
        assert torch.equal(rest, o[:, 64 * i :])


@pytest.mark.parametrize("op", [chunk_kda, fused_recurrent_kda])
@pytest.mark.parametrize(("B", "H", "K"), [(3, 2, 128), (5, 3, 60)])
def test_the_number_of_threads_changes_no_bit(op, B, H, K):
    x = inputs(B, 70, H, H, K, 96, dtype=torch.float32)
    results = []
    for threads in (1, 2):  # the fixture of all kernel tests puts the number back
        torch.set_num_threads(threads)
        results.append(op(*x, output_final_state=True))
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])
