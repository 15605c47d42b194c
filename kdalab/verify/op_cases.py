"""How each op is drawn and called; see :mod:`kdalab.verify.ops`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

import kdalab_kernels as kk
from kdalab.verify.ops import Call, Draw, OpCase, Tensors
from kdalab.verify.page_op_cases import PAGE_CASES
from kdalab.verify.state_op_cases import STATE_CASES


def _scan(op: Callable[..., Any], **more: object) -> OpCase:
    """A case of one of the two forms of the recurrence, with raw or ready gates."""

    def case(draw: Draw) -> tuple[Tensors, Call]:
        inputs = draw.tokens()
        flags: dict[str, object] = {"use_qk_l2norm_in_kernel": draw.one_of(True, False), **more}
        HV, K = inputs["g"].shape[2:]
        gate = draw.one_of("ready", "classic", "bounded")
        if gate != "ready":
            flags["use_gate_in_kernel"] = True
            flags["lower_bound"] = -5.0 if gate == "bounded" else None
            inputs["g"] = draw.normal(*inputs["g"].shape)
            inputs["A_log"] = draw.normal(HV)
            inputs["dt_bias"] = draw.normal(HV * K)
        if draw.one_of(True, False):
            flags["use_beta_sigmoid_in_kernel"] = True
            inputs["beta"] = draw.normal(*inputs["beta"].shape)
        if draw.one_of(True, False):
            flags["state_v_first"] = True
            inputs["initial_state"] = inputs["initial_state"].transpose(-1, -2).contiguous()

        def call(x: Tensors, backend: str) -> Iterable[torch.Tensor]:
            outputs: tuple[torch.Tensor, ...] = op(
                **x, **flags, output_final_state=True, backend=backend
            )
            return outputs

        return inputs, call

    return OpCase(case)


def _gate(draw: Draw) -> tuple[Tensors, Call]:
    T, HV, K = draw.one_of(1, 7, 65), draw.one_of(1, 3), draw.one_of(16, 60, 128)
    bound = draw.one_of(None, -5.0, -1.5)
    inputs = {
        "g": 4 * draw.normal(1, T, HV, K),
        "A_log": draw.normal(HV),
        "dt_bias": draw.normal(HV * K),
    }
    return inputs, lambda x, backend: [kk.fused_kda_gate(**x, lower_bound=bound, backend=backend)]


def _gate_sum(draw: Draw) -> tuple[Tensors, Call]:
    tokens = draw.tokens()
    inputs = {"g": tokens["g"], "cu_seqlens": tokens["cu_seqlens"]}
    HV, K = inputs["g"].shape[2:]
    more: Tensors = {"chunk_size": draw.one_of(16, 64)}
    if draw.one_of(True, False):
        inputs["g"] = draw.normal(*inputs["g"].shape)
        inputs["A_log"], inputs["dt_bias"] = draw.normal(HV), draw.normal(HV * K)
        more["lower_bound"] = draw.one_of(None, -5.0)
    return inputs, lambda x, backend: [kk.kda_gate_chunk_cumsum(**x, **more, backend=backend)]


def _conv(draw: Draw) -> tuple[Tensors, Call]:
    lengths = draw.one_of((1,), (2,), (70,), (3, 0, 1, 40))
    D, W = draw.one_of(8, 60, 96), draw.one_of(2, 4)
    inputs = {
        "x": draw.normal(1, sum(lengths), D),
        "weight": draw.normal(D, W),
        "bias": draw.one_of(None, draw.normal(D)),
        "activation": draw.one_of("silu", None),
        "initial_state": draw.normal(len(lengths), W - 1, D),
        "cu_seqlens": torch.tensor([0, *lengths]).cumsum(0),
    }
    return inputs, lambda x, b: kk.causal_conv1d(**x, output_final_state=True, backend=b)  # type: ignore[return-value]


def _conv_update(draw: Draw) -> tuple[Tensors, Call]:
    N, D, W = draw.one_of(1, 5), draw.one_of(8, 60), draw.one_of(2, 4)
    inputs = {
        "x": draw.normal(N, D) if draw.one_of(True, False) else draw.normal(N, 3, D),
        "state": draw.normal(N, W - 1, D),
        "weight": draw.normal(D, W),
    }
    return inputs, lambda x, backend: kk.causal_conv1d_update(**x, backend=backend)


def _l2norm(draw: Draw) -> tuple[Tensors, Call]:
    size = draw.one_of(1.0, 1e-4, 1e4)
    inputs = {"x": size * draw.normal(draw.one_of(1, 9), 3, draw.one_of(16, 60, 128))}
    return inputs, lambda x, backend: [kk.l2norm(**x, backend=backend)]


def _summary_inputs(draw: Draw) -> Tensors:
    tokens = draw.tokens()
    return {name: tokens[name] for name in ("k", "v", "g", "beta")}


def _summary(draw: Draw) -> tuple[Tensors, Call]:
    return _summary_inputs(draw), lambda x, backend: kk.chunk_summary(**x, backend=backend)


def _maps(draw: Draw, count: int) -> Tensors:
    HV, K, V = draw.one_of(1, 3), draw.one_of(16, 60), draw.one_of(16, 32)
    inputs = {}
    for i in range(count):
        inputs[f"M{i}"] = draw.normal(1, HV, K, K) / K**0.5
        inputs[f"b{i}"] = draw.normal(1, HV, K, V)
    return inputs


def _compose(draw: Draw) -> tuple[Tensors, Call]:
    def call(x: Tensors, backend: str) -> Iterable[torch.Tensor]:
        first, second = (kk.AffineSummary(x[f"M{i}"], x[f"b{i}"]) for i in (0, 1))
        return kk.compose(first, second, backend=backend)

    return _maps(draw, 2), call


def _apply(draw: Draw) -> tuple[Tensors, Call]:
    inputs = _maps(draw, 1)
    inputs["S"] = draw.normal(*inputs["b0"].shape)
    return inputs, lambda x, backend: [
        kk.apply(kk.AffineSummary(x["M0"], x["b0"]), x["S"], backend=backend)
    ]


CASES: dict[str, OpCase] = {
    "chunk_kda": _scan(kk.chunk_kda, return_intermediate_states=True),
    "fused_recurrent_kda": _scan(kk.fused_recurrent_kda),
    "fused_kda_gate": OpCase(_gate),
    "kda_gate_chunk_cumsum": OpCase(_gate_sum),
    "causal_conv1d": OpCase(_conv),
    "causal_conv1d_update": OpCase(_conv_update),
    "l2norm": OpCase(_l2norm),
    "chunk_summary": OpCase(_summary),
    "compose": OpCase(_compose),
    "apply": OpCase(_apply),
    **STATE_CASES,
    **PAGE_CASES,
}
"""Op -> its case. A test keeps this list complete."""
