"""chunk_kda in Triton against the token recurrence in float64."""

import pytest
import torch
from kernel_cases import GATES, inputs, rel_rms, state, wide
from triton_cases import DEVICE

from kdalab_kernels import chunk_kda, fused_kda_gate, l2norm, naive_recurrent_kda

TOLERANCE = {torch.float32: 2e-5, torch.float16: 5e-3, torch.bfloat16: 1e-2}


def run(x, S=None, **kw):
    """The kernel's outputs, on the CPU."""
    S = None if S is None else S.to(DEVICE)
    kw = {n: v.to(DEVICE) if isinstance(v, torch.Tensor) else v for n, v in kw.items()}
    given = [t.to(DEVICE) for t in x]
    got = chunk_kda(*given, initial_state=S, output_final_state=True, backend="triton", **kw)
    return tuple(t.cpu() for t in got)


def check(x, S=None, **kw):
    o, end = run(x, S, **kw)
    start = None if S is None else S.double()
    o2, end2 = naive_recurrent_kda(*wide(x), initial_state=start, output_final_state=True)
    assert o.dtype == x[2].dtype
    assert end.dtype == torch.float32
    assert rel_rms(o, o2) < TOLERANCE[x[2].dtype]
    assert rel_rms(end, end2) < TOLERANCE[x[2].dtype]


@pytest.mark.parametrize("T", [1, 2, 15, 16, 17, 63, 64, 65, 130])
def test_every_length_equals_the_recurrence(T):
    check(inputs(1, T, 1, 1, 32, 48, dtype=torch.float32), state(1, 1, 32, 48, torch.float32))


@pytest.mark.parametrize("kind", GATES)
def test_every_gate_equals_the_recurrence(kind):
    x = inputs(1, 66, 1, 1, 32, 16, kind=kind, dtype=torch.float32)
    check(x, state(1, 1, 32, 16, torch.float32))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", ["tiny", "safe", "mixed"])
def test_low_precision_inputs_in_tiles_of_64(dtype, kind):
    x = inputs(1, 100, 1, 1, 32, 32, kind=kind, dtype=dtype)
    check(x, state(1, 1, 32, 32, torch.float32))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_correlated_keys_with_slow_decay_stay_exact(dtype):
    x = inputs(1, 130, 1, 1, 64, 32, kind="tiny", dtype=dtype, correlated=True)
    check(x, state(1, 1, 64, 32, torch.float32))


@pytest.mark.parametrize(("H", "HV"), [(3, 3), (1, 2), (2, 4)])
@pytest.mark.parametrize(("K", "V"), [(60, 100), (100, 60)])
def test_head_counts_and_odd_dimensions(H, HV, K, V):
    x = inputs(2 if H == 1 else 1, 19, H, HV, K, V, dtype=torch.float32)
    check(x, state(x[0].shape[0], HV, K, V, torch.float32))


@pytest.mark.parametrize(("K", "V"), [(256, 8), (1, 1)])
def test_smallest_and_largest_head_dimension(K, V):
    check(inputs(1, 33, 1, 1, K, V, dtype=torch.float32), state(1, 1, K, V, torch.float32))


def test_zero_keys_only_decay_the_state():
    q, k, v, g, beta = inputs(1, 33, 1, 2, 16, 16, dtype=torch.float32)
    check([q, k * 0, v, g, beta], state(1, 2, 16, 16, torch.float32))


@pytest.mark.parametrize("chunk_size", [16, 32, 64])
@pytest.mark.parametrize("v_first", [False, True])
def test_packed_sequences_with_empty_ones_and_states_at_chunk_starts(chunk_size, v_first):
    x = inputs(1, 98, 1, 2, 16, 24, dtype=torch.float32)
    cu = torch.tensor([0, 0, 66, 66, 67, 98, 98])
    S = state(6, 2, 16, 24, torch.float32)
    given = S.transpose(-1, -2).contiguous() if v_first else S
    kw = {"chunk_size": chunk_size, "cu_seqlens": cu, "return_intermediate_states": True}
    o, end, h = run(x, given, state_v_first=v_first, **kw)
    o2, end2, h2 = chunk_kda(
        *wide(x), initial_state=S.double(), output_final_state=True, backend="reference", **kw
    )
    if v_first:
        end, h = end.transpose(-1, -2), h.transpose(-1, -2)
    assert h.shape == h2.shape
    for a, b in ((o, o2), (end, end2), (h, h2)):
        assert rel_rms(a, b) < 2e-5


def test_batches_export_states_per_row():
    x = inputs(2, 33, 1, 1, 16, 16, dtype=torch.float32)
    o, end, h = run(x, return_intermediate_states=True, chunk_size=16)
    want = chunk_kda(
        *wide(x),
        output_final_state=True,
        return_intermediate_states=True,
        chunk_size=16,
        backend="reference",
    )
    for a, b in zip((o, end, h), want, strict=True):
        assert a.shape == b.shape
        assert rel_rms(a, b) < 2e-5


@pytest.mark.parametrize("cut", [1, 16, 31, 32, 33])
def test_two_calls_give_what_one_call_gives(cut):
    x = inputs(1, 40, 1, 1, 16, 16, dtype=torch.float32)
    whole, end = run(x)
    first, S = run([t[:, :cut] for t in x])
    second, end2 = run([t[:, cut:] for t in x], S)
    assert rel_rms(torch.cat([first, second], 1), whole) < 2e-6
    assert rel_rms(end2, end) < 2e-6


@pytest.mark.parametrize("kind", ["random", "mixed", "reset"])
@pytest.mark.parametrize("t", [1, 7, 16, 33, 62])
def test_later_tokens_change_no_bit_of_earlier_outputs(kind, t):
    x = inputs(1, 64, 1, 1, 16, 16, kind=kind, dtype=torch.float16)
    y = inputs(1, 64, 1, 1, 16, 16, kind="huge", dtype=torch.float16, seed=1)
    changed = [torch.cat([a[:, :t], b[:, t:]], 1) for a, b in zip(x, y, strict=True)]
    assert torch.equal(run(changed)[0][:, :t], run(x)[0][:, :t])


def test_nothing_beyond_the_last_token_is_read():
    x = inputs(1, 19, 1, 1, 16, 16, dtype=torch.float32)
    expected = run(x)
    dirty = []
    for t in x:
        big = torch.full((1, 80, *t.shape[2:]), float("nan"), device=DEVICE)
        big[:, 20:39] = t.to(DEVICE)
        dirty.append(big[:, 20:39])
    o, end = chunk_kda(*dirty, output_final_state=True, backend="triton")
    assert torch.equal(o.cpu(), expected[0])
    assert torch.equal(end.cpu(), expected[1])


def test_non_contiguous_inputs_give_the_same_bits():
    x = inputs(2, 18, 1, 2, 16, 24, dtype=torch.float32)
    S = state(2, 2, 16, 24, torch.float32)
    expected = run(x, S)
    strided = [torch.stack([t, t * 7], dim=-1)[..., 0] for t in x]
    S2 = S.transpose(-1, -2).contiguous().transpose(-1, -2)
    for a, b in zip(run(strided, S2), expected, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("lower_bound", [None, -5.0])
@pytest.mark.parametrize("allow_neg_eigval", [False, True])
def test_activations_inside_equal_activations_outside(lower_bound, allow_neg_eigval):
    q, k, v, _, _ = inputs(1, 35, 1, 2, 24, 16, dtype=torch.float32)
    f, logits = torch.randn(1, 35, 2, 24) * 3, torch.randn(1, 35, 2) * 3
    A_log, bias = torch.rand(2), torch.randn(48)
    o, end = run(
        [q * 3, k * 3, v, f, logits],
        use_qk_l2norm_in_kernel=True,
        use_gate_in_kernel=True,
        use_beta_sigmoid_in_kernel=True,
        allow_neg_eigval=allow_neg_eigval,
        A_log=A_log,
        dt_bias=bias,
        lower_bound=lower_bound,
    )
    g = fused_kda_gate(f.double(), A_log.double(), bias.double(), lower_bound)
    beta = logits.double().sigmoid() * (2 if allow_neg_eigval else 1)
    o2, end2 = naive_recurrent_kda(
        l2norm(q.double() * 3), l2norm(k.double() * 3), v.double(), g, beta, None, None, True
    )
    assert rel_rms(o, o2) < 2e-5
    assert rel_rms(end, end2) < 2e-5


def test_no_tokens_pass_the_state_through():
    x = inputs(1, 0, 1, 2, 16, 24, dtype=torch.float32)
    S = state(1, 2, 16, 24, torch.float32)
    o, end = run(x, S)
    assert o.shape == x[2].shape
    assert torch.equal(end, S)


def test_float64_and_gradients_are_refused():
    x = [t.to(DEVICE) for t in inputs(1, 3, 1, 1, 16, 16)]
    with pytest.raises(ValueError, match=r"float16, bfloat16 or float32, given float64"):
        chunk_kda(*x, backend="triton")
    x = [t.float() for t in x]
    x[2].requires_grad_()
    with pytest.raises(ValueError, match="no backward"):
        chunk_kda(*x, backend="triton")
