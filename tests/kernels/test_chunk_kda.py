"""The torch path of chunk_kda against the token recurrence in float64."""

import pytest
import torch
from kernel_cases import GATES, inputs, rel_rms, state, wide

import kdalab_kernels.torch_path.chunk as torch_chunk
from kdalab_kernels import chunk_kda, fused_kda_gate, l2norm, naive_recurrent_kda

LENGTHS = [1, 2, 3, 15, 16, 17, 31, 32, 33, 63, 64, 65, 95, 96, 97, 127, 128, 129, 130]


def check(x, S, rtol, **kw):
    """Output and final state against the recurrence on the same numbers in float64."""
    o, end = chunk_kda(*x, initial_state=S, output_final_state=True, **kw)
    start = None if S is None else S.double()
    o2, end2 = naive_recurrent_kda(*wide(x), initial_state=start, output_final_state=True)
    assert rel_rms(o, o2) < rtol
    assert rel_rms(end, end2) < rtol


@pytest.mark.parametrize("T", LENGTHS)
def test_every_length_equals_the_recurrence(T):
    check(inputs(1, T, 1, 1, 32, 48), state(1, 1, 32, 48), 1e-12)
    x = inputs(2, T, 2, 4, 32, 48, dtype=torch.float32)
    check(x, state(2, 4, 32, 48, torch.float32), 2e-5)
    check(x, None, 2e-5)


@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize("chunk_size", [16, 32, 64])
def test_every_gate_equals_the_recurrence(kind, chunk_size):
    check(inputs(1, 100, 2, 2, 24, 16, kind=kind), state(1, 2, 24, 16), 1e-12)
    x = inputs(1, 130, 2, 2, 32, 48, kind=kind, dtype=torch.float32)
    check(x, state(1, 2, 32, 48, torch.float32), 2e-5, chunk_size=chunk_size)


@pytest.mark.parametrize("kind", ["zero", "tiny"])
@pytest.mark.parametrize("chunk_size", [16, 32, 64])
@pytest.mark.parametrize("tile", [16, 32, 64])
def test_correlated_keys_with_slow_decay_stay_exact(kind, chunk_size, tile, monkeypatch):
    monkeypatch.setattr(torch_chunk, "TILE", tile)
    x = inputs(1, 192, 2, 2, 64, 64, kind=kind, dtype=torch.float32, correlated=True)
    check(x, state(1, 2, 64, 64, torch.float32), 2e-5, chunk_size=chunk_size)


@pytest.mark.parametrize(("H", "HV"), [(3, 3), (1, 5), (2, 6), (4, 4)])
@pytest.mark.parametrize(("K", "V"), [(60, 100), (100, 60), (32, 48), (1, 1), (256, 8)])
def test_head_counts_and_odd_dimensions(H, HV, K, V):
    x = inputs(2, 70, H, HV, K, V, dtype=torch.float32)
    check(x, state(2, HV, K, V, torch.float32), 2e-5)


def test_zero_keys_only_decay_the_state():
    q, k, v, g, beta = inputs(1, 70, 2, 2, 16, 16, dtype=torch.float32)
    x = [q, k * 0, v, g, beta]
    check(x, state(1, 2, 16, 16, torch.float32), 2e-5)


def test_negative_eigenvalues_with_beta_up_to_two():
    q, k, v, g, beta = inputs(1, 130, 2, 2, 32, 32, kind="tiny", dtype=torch.float32)
    x, S = [q, k, v, g, beta * 2], state(1, 2, 32, 32, torch.float32)
    check(x, S, 2e-5, allow_neg_eigval=True)


def test_scale_is_used_as_given():
    x = inputs(1, 40, 1, 1, 16, 16)
    o, _ = chunk_kda(*x, scale=0.3)
    assert rel_rms(o, naive_recurrent_kda(*x, scale=0.3)[0]) < 1e-12


@pytest.mark.parametrize("kind", ["tiny", "random", "saturated"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_inputs_lose_only_the_rounding_of_the_output(kind, dtype):
    x = inputs(1, 130, 2, 2, 32, 48, kind=kind, dtype=dtype)
    x[3] = x[3].float()
    o, end = chunk_kda(*x, output_final_state=True)
    o2, end2 = naive_recurrent_kda(*wide(x), output_final_state=True)
    assert o.dtype == dtype
    assert end.dtype == torch.float32
    assert rel_rms(end, end2) < 2e-5
    assert rel_rms(o, o2) < torch.finfo(dtype).eps


def test_v_first_states_are_the_transposed_ones():
    x = inputs(2, 100, 2, 2, 32, 48)
    S = state(2, 2, 32, 48)
    o, end, h = chunk_kda(
        *x, initial_state=S, output_final_state=True, return_intermediate_states=True
    )
    o2, end2, h2 = chunk_kda(
        *x,
        initial_state=S.transpose(-1, -2),
        output_final_state=True,
        return_intermediate_states=True,
        state_v_first=True,
    )
    assert torch.equal(o, o2)
    assert torch.equal(end, end2.transpose(-1, -2))
    assert torch.equal(h, h2.transpose(-1, -2))
    assert end2.is_contiguous()


@pytest.mark.parametrize("v_first", [False, True])
def test_square_states_keep_their_layout_across_calls(v_first):
    x = inputs(1, 130, 2, 2, 32, 32)
    kw = {"output_final_state": True, "state_v_first": v_first}
    whole, end = chunk_kda(*x, **kw)
    first, S = chunk_kda(*(t[:, :65] for t in x), **kw)
    second, end2 = chunk_kda(*(t[:, 65:] for t in x), initial_state=S, **kw)
    assert rel_rms(torch.cat([first, second], 1), whole) < 1e-12
    assert rel_rms(end2, end) < 1e-12


@pytest.mark.parametrize("T", [1, 63, 64, 65, 130, 192])
@pytest.mark.parametrize("chunk_size", [16, 32, 64])
def test_intermediate_states_are_the_states_at_chunk_starts(T, chunk_size):
    x = inputs(2, T, 1, 2, 16, 24)
    S = state(2, 2, 16, 24)
    _, end, h = chunk_kda(
        *x,
        initial_state=S,
        return_intermediate_states=True,
        output_final_state=True,
        chunk_size=chunk_size,
    )
    assert h.shape == (2, -(-T // chunk_size), 2, 16, 24)
    for i in range(h.shape[1]):
        part = [t[:, : i * chunk_size] for t in x]
        expected = naive_recurrent_kda(*part, initial_state=S, output_final_state=True)[1]
        assert rel_rms(h[:, i], expected) < 1e-12
    assert not torch.equal(end, h[:, -1])


@pytest.mark.parametrize("T", [1, 33, 65, 130])
def test_nothing_beyond_the_last_token_is_read(T):
    x = inputs(1, T, 2, 2, 32, 48, dtype=torch.float32)
    expected = chunk_kda(*x, output_final_state=True)
    for poison in (float("nan"), 1e30):
        dirty = []
        for t in x:
            big = torch.full((1, T + 70, *t.shape[2:]), poison)
            big[:, :T] = t
            dirty.append(big[:, :T])
        o, end = chunk_kda(*dirty, output_final_state=True)
        assert torch.equal(o, expected[0])
        assert torch.equal(end, expected[1])


def test_non_contiguous_inputs_give_the_same_bits():
    x = inputs(2, 70, 2, 4, 24, 40, dtype=torch.float32)
    S = state(2, 4, 24, 40, torch.float32)
    expected = chunk_kda(*x, initial_state=S, output_final_state=True)
    strided = [t.transpose(1, 2).contiguous().transpose(1, 2) for t in x]
    strided = [t.flip(-1).contiguous().flip(-1) for t in strided]
    wide_last = [torch.stack([t, t * 7], dim=-1)[..., 0] for t in x]
    for given in (strided, wide_last):
        S2 = torch.stack([S, S * 3], dim=-1)[..., 0]
        o, end = chunk_kda(*given, initial_state=S2, output_final_state=True)
        assert torch.equal(o, expected[0])
        assert torch.equal(end, expected[1])


def test_broadcast_inputs_are_read_through_their_strides():
    q, k, v, g, beta = inputs(1, 40, 1, 2, 16, 16)
    flat = g[:, :, :, :1].expand(-1, -1, -1, 16)
    o, _ = chunk_kda(q, k, v, flat, beta)
    assert rel_rms(o, naive_recurrent_kda(q, k, v, flat.contiguous(), beta)[0]) < 1e-12


def test_inputs_are_left_as_they_were():
    x = inputs(2, 70, 2, 4, 24, 24, dtype=torch.float32)
    S = state(2, 4, 24, 24, torch.float32)
    extra = {"A_log": torch.randn(4), "dt_bias": torch.randn(96)}
    given = [*x, S, *extra.values()]
    before = [t.clone() for t in given]
    chunk_kda(*x, initial_state=S, output_final_state=True, return_intermediate_states=True)
    chunk_kda(
        *x,
        initial_state=S,
        use_qk_l2norm_in_kernel=True,
        use_gate_in_kernel=True,
        use_beta_sigmoid_in_kernel=True,
        **extra,
    )
    for a, b in zip(given, before, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("lower_bound", [None, -5.0])
@pytest.mark.parametrize("allow_neg_eigval", [False, True])
def test_activations_inside_equal_activations_outside(lower_bound, allow_neg_eigval):
    q, k, v, _, _ = inputs(2, 70, 2, 4, 24, 16)
    f, logits = torch.randn(2, 70, 4, 24).double() * 3, torch.randn(2, 70, 4).double() * 3
    A_log, bias = torch.rand(4), torch.randn(96)
    inside, _ = chunk_kda(
        q * 3,
        k * 3,
        v,
        f,
        logits,
        use_qk_l2norm_in_kernel=True,
        use_gate_in_kernel=True,
        use_beta_sigmoid_in_kernel=True,
        allow_neg_eigval=allow_neg_eigval,
        A_log=A_log,
        dt_bias=bias,
        lower_bound=lower_bound,
    )
    g = fused_kda_gate(f, A_log, bias, lower_bound)
    beta = logits.sigmoid() * (2 if allow_neg_eigval else 1)
    outside, _ = naive_recurrent_kda(l2norm(q * 3), l2norm(k * 3), v, g, beta)
    assert rel_rms(inside, outside) < 1e-12


def test_reference_backend_gives_the_same_answer_in_every_mode():
    x = inputs(1, 130, 2, 4, 16, 24)
    cu = torch.tensor([0, 0, 65, 70, 130])
    S = state(4, 4, 16, 24)
    kw = {"initial_state": S, "output_final_state": True, "return_intermediate_states": True}
    fast = chunk_kda(*x, cu_seqlens=cu, **kw)
    slow = chunk_kda(*x, cu_seqlens=cu, backend="reference", **kw)
    for a, b in zip(fast, slow, strict=True):
        assert a.shape == b.shape
        assert rel_rms(a, b) < 1e-12


def test_a_call_that_needs_a_gradient_is_refused_not_cut():
    x = inputs(1, 10, 1, 1, 8, 8)
    x[0].requires_grad_()
    with pytest.raises(ValueError, match=r"no backward.*no_grad"):
        chunk_kda(*x)
    with torch.no_grad():
        assert not chunk_kda(*x)[0].requires_grad
    assert chunk_kda(*x, backend="reference")[0].requires_grad
