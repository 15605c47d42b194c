"""Every wrong argument is refused with its name, what is expected and what was given."""

import pytest
import torch
from kernel_cases import inputs, state

import kdalab_kernels
from kdalab_kernels import (
    backends_of,
    causal_conv1d,
    causal_conv1d_update,
    chunk_kda,
    fused_kda_gate,
    fused_recurrent_kda,
    l2norm,
)
from kdalab_kernels.dispatch import MODULES

NAMES = ("q", "k", "v", "g", "beta")
OPS = [chunk_kda, fused_recurrent_kda]


def f32(*shape):
    return torch.zeros(shape)


def good(**changes):
    x = dict(zip(NAMES, inputs(2, 6, 2, 4, 8, 12, dtype=torch.float32), strict=True))
    return {**x, **changes}


WRONG = [
    ({"q": [1.0]}, r"q: expected a torch.Tensor, given list"),
    ({"k": None}, r"k: expected a torch.Tensor, given NoneType"),
    ({"k": f32(2, 6, 8)}, r"k: expected 4 axes \[B, T, H, K\], given \[2, 6, 8\]"),
    ({"q": f32(2, 6, 2, 9)}, r"q: .*\[B, T, H, K\] = \[2, 6, 2, 8\], given \[2, 6, 2, 9\]"),
    ({"v": f32(2, 5, 4, 12)}, r"v: .*\[2, 6, HV, V\], given \[2, 5, 4, 12\]"),
    ({"v": f32(2, 6, 3, 12)}, r"v: .*multiple of the key heads H=2, given HV=3"),
    ({"v": f32(2, 6, 1, 12)}, r"v: .*multiple"),
    ({"g": f32(2, 6, 2, 8)}, r"g: .*\[B, T, HV, K\] = \[2, 6, 4, 8\], given \[2, 6, 2, 8\]"),
    ({"beta": f32(2, 6, 2)}, r"beta: .*\[B, T, HV\] = \[2, 6, 4\], given \[2, 6, 2\]"),
    ({"beta": torch.zeros(2, 6, 4).long()}, r"beta: expected dtype"),
    ({"q": f32(2, 6, 2, 8).bfloat16()}, r"q: expected the dtype of k, torch.float32"),
    ({"g": f32(2, 6, 4, 8) + 0.1}, r"g: .*at most 0.*given a largest value of 0.1"),
    ({"g": f32(2, 6, 4, 8) * float("nan")}, r"g: .*without NaN"),
    ({"beta": f32(2, 6, 4) - 1}, r"beta: .*\[0, 1\].*use_beta_sigmoid_in_kernel"),
    ({"beta": f32(2, 6, 4) + 1.5}, r"beta: .*\[0, 1\], up to 2 with allow_neg_eigval=True"),
    ({"beta": f32(2, 6, 4) + 3, "allow_neg_eigval": True}, r"beta: .*\[0, 2\]"),
    ({"beta": f32(2, 6, 4) * float("nan")}, r"beta: .*\[0, 1\]"),
    ({"initial_state": f32(3, 4, 8, 12)}, r"initial_state: .*N=2 sequences, given \[3"),
    ({"initial_state": f32(2, 4, 12, 8)}, r"initial_state: .*\[N, HV, K, V\] = \[2, 4, 8, 12\]"),
    ({"initial_state": f32(2, 4, 8, 12), "state_v_first": True}, r"\[N, HV, V, K\]"),
    ({"initial_state": "zeros"}, r"initial_state: expected a torch.Tensor"),
    ({"use_gate_in_kernel": True}, r"A_log: .*\[HV\] = \[4\]"),
    ({"use_gate_in_kernel": True, "A_log": f32(2)}, r"A_log: .*= \[4\], given \[2\]"),
    (
        {"use_gate_in_kernel": True, "A_log": f32(4), "dt_bias": f32(4)},
        r"dt_bias: .*\[HV \* K\] = \[32\], given \[4\]",
    ),
    ({"use_gate_in_kernel": True, "lower_bound": 1.0}, r"lower_bound: .*below 0, given 1.0"),
    ({"A_log": f32(4)}, r"A_log.*use_gate_in_kernel"),
    ({"cu_seqlens": torch.tensor([0, 6])}, r"cu_seqlens: .*B=1.*given B=2"),
    ({"cu_seqlens": [0, 6]}, r"cu_seqlens: expected a torch.Tensor"),
    ({"backend": "cuda"}, r"backend='cuda' is unknown; use auto, torch, triton, reference"),
]


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize(("change", "message"), WRONG, ids=[m for _, m in WRONG])
def test_wrong_arguments_are_named(op, change, message):
    with pytest.raises(ValueError, match=message):
        op(**good(**change))


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize(
    ("offsets", "message"),
    [
        ([1, 6], r"from 0 to T=6, given \[1\] to \[6\]"),
        ([0, 5], r"from 0 to T=6"),
        ([0, 7], r"from 0 to T=6"),
        ([0, 4, 2, 6], r"never decrease, given 4, 2 at entry 1"),
        ([], r"from 0 to T=6"),
        ([[0, 6]], r"shape \[N \+ 1\]"),
        ([0.0, 6.0], r"int32 or int64"),
    ],
)
def test_wrong_offsets_are_named(op, offsets, message):
    x = inputs(1, 6, 1, 1, 8, 8)
    given = torch.tensor(offsets) if offsets else torch.zeros(0, dtype=torch.long)
    with pytest.raises(ValueError, match=message):
        op(*x, cu_seqlens=given)


def test_one_state_per_packed_sequence():
    x = inputs(1, 6, 1, 1, 8, 8)
    for op in OPS:
        with pytest.raises(ValueError, match="N=2 sequences"):
            op(*x, cu_seqlens=torch.tensor([0, 2, 6]), initial_state=state(1, 1, 8, 8))


def test_arguments_of_the_chunk_form_alone():
    with pytest.raises(ValueError, match=r"chunk_size: .*16, 32, 64.*given 48"):
        chunk_kda(**good(chunk_size=48))
    for dtype in (torch.bfloat16, torch.float64):
        with pytest.raises(ValueError, match=r"initial_state: expected dtype torch.float32"):
            chunk_kda(**good(initial_state=state(2, 4, 8, 12, dtype)))
    for bound in (None, -6.0, 0.5):
        with pytest.raises(ValueError, match=r"lower_bound: .*(\[-5, 0\)|below 0), given"):
            chunk_kda(
                **good(safe_gate=True, use_gate_in_kernel=True, A_log=f32(4), lower_bound=bound)
            )


def test_key_dimension_is_limited_as_in_fla():
    x = inputs(1, 2, 1, 1, 257, 4)
    for op in OPS:
        with pytest.raises(ValueError, match=r"k: .*1 to 256, given 257"):
            op(*x)


def test_boundary_values_are_accepted():
    for most, flag in ((1, False), (2, True)):
        x = good(beta=f32(2, 6, 4) + most, g=f32(2, 6, 4, 8), allow_neg_eigval=flag)
        for op in OPS:
            assert op(**x)[0].isfinite().all()


def test_logits_with_the_flag_equal_sigmoid_without_it():
    x = good()
    logits = torch.randn(2, 6, 4)
    for op in OPS:
        a, _ = op(**{**x, "beta": logits}, use_beta_sigmoid_in_kernel=True)
        b, _ = op(**{**x, "beta": logits.sigmoid()})
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: causal_conv1d(f32(2, 3), f32(3, 4)), r"x: expected 3 axes \[B, T, D\]"),
        (lambda: causal_conv1d(f32(1, 2, 3), f32(4, 3)), r"weight: .*\[3, W\], given \[4, 3\]"),
        (lambda: causal_conv1d(f32(1, 2, 3), f32(3, 4), f32(4)), r"bias: .*\[D\] = \[3\]"),
        (lambda: causal_conv1d(f32(1, 2, 3), f32(3, 4), None, "gelu"), r"activation: .*'gelu'"),
        (
            lambda: causal_conv1d(f32(1, 2, 3), f32(3, 4), None, None, f32(1, 4, 3)),
            r"state: .*\[N, W - 1, D\] = \[1, 3, 3\], given \[1, 4, 3\]",
        ),
        (lambda: causal_conv1d_update(f32(1, 3), None, f32(3, 4)), r"state: .*given None"),
        (lambda: causal_conv1d_update(f32(1, 3), f32(2, 3, 3), f32(3, 4)), r"state: .*\[1, 3, 3\]"),
        (lambda: l2norm([1.0]), r"x: expected a torch.Tensor"),
        (lambda: l2norm(torch.ones(3).long()), r"x: expected dtype"),
        (lambda: fused_kda_gate(f32(8), f32(1)), r"g: expected shape \[..., HV, K\]"),
        (lambda: fused_kda_gate(f32(2, 8)), r"A_log: .*None only with lower_bound"),
        (lambda: fused_kda_gate(f32(2, 8), f32(2), None, 0.0), r"lower_bound: .*below 0"),
    ],
)
def test_wrong_arguments_of_the_layer_ops_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_every_op_has_the_torch_and_the_reference_backend():
    for op in MODULES:
        assert {"torch", "reference"} <= set(backends_of(op)), op
    with pytest.raises(ValueError, match="unknown op"):
        backends_of("attention")


def test_a_missing_backend_is_an_error_and_not_a_fallback():
    for op in MODULES:
        if "triton" in backends_of(op) or not hasattr(kdalab_kernels, op):
            continue
        with pytest.raises(ValueError, match=rf"{op} has no triton kernel.*'torch' \| 'reference'"):
            kdalab_kernels.dispatch.implementation(op, "triton")
