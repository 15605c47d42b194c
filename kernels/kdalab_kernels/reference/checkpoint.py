"""Checkpoints of recurrent and conv state: the specification, one slot and one layer at a time."""

import torch

from kdalab_kernels.quantized import (
    AMAX_FLOOR,
    QMAX,
    CheckpointBuffers,
    QuantizedStates,
    store_dtype_scale,
)


def quantize_states(states: torch.Tensor, scale_dtype: torch.dtype) -> QuantizedStates:
    """``q = round_half_even(S / scale)``, ``scale = max(max_v |S|, 1e-8) / 127``.

    The scale is rounded to the dtype it is stored in *before* the division, so that both
    directions use the same number.
    """
    wide = states.to(torch.promote_types(states.dtype, torch.float32))
    amax = wide.abs().amax(-2, keepdim=True).clamp(min=AMAX_FLOOR)
    scale = store_dtype_scale(amax / QMAX, scale_dtype)
    q = torch.round(wide / scale.to(wide.dtype)).clamp(-QMAX, QMAX)
    return QuantizedStates(q.to(torch.int8), scale)


def dequantize_states(quantized: QuantizedStates, dtype: torch.dtype) -> torch.Tensor:
    """``q * scale``, computed in float32 (float64 for float64)."""
    wide = torch.promote_types(dtype, torch.float32)
    return (quantized.q.to(wide) * quantized.scale.to(wide)).to(dtype)


def store_checkpoints_inplace(
    active_states: torch.Tensor,
    active_conv: torch.Tensor,
    pool: CheckpointBuffers,
    src: torch.Tensor,
    dst: torch.Tensor,
) -> None:
    """The ``reference`` backend, for checked arguments; pairs of -1 are skipped."""
    for s, d in zip(src.tolist(), dst.tolist(), strict=True):
        if s < 0:
            continue
        for layer in range(active_states.shape[1]):
            S = active_states[s, layer]
            if isinstance(pool.states, QuantizedStates):
                q, scale = quantize_states(S, pool.states.scale.dtype)
                pool.states.q[d, layer] = q
                pool.states.scale[d, layer] = scale
            else:
                pool.states[d, layer] = S
            pool.conv[d, layer] = active_conv[s, layer]


def load_checkpoints_inplace(
    pool: CheckpointBuffers,
    active_states: torch.Tensor,
    active_conv: torch.Tensor,
    src: torch.Tensor,
    dst: torch.Tensor,
) -> None:
    """The ``reference`` backend, for checked arguments; pairs of -1 are skipped."""
    for s, d in zip(src.tolist(), dst.tolist(), strict=True):
        if s < 0:
            continue
        for layer in range(active_states.shape[1]):
            if isinstance(pool.states, QuantizedStates):
                kept = QuantizedStates(pool.states.q[s, layer], pool.states.scale[s, layer])
                active_states[d, layer] = dequantize_states(kept, active_states.dtype)
            else:
                active_states[d, layer] = pool.states[s, layer]
            active_conv[d, layer] = pool.conv[s, layer]
