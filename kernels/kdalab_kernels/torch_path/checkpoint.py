"""Checkpoints of recurrent and conv state, in pieces that stay in the processor's cache.

Every operation here is exactly rounded or a maximum, so a slot's bits depend on nothing around it.
"""

from collections.abc import Iterator

import torch

from kdalab_kernels.quantized import (
    AMAX_FLOOR,
    QMAX,
    CheckpointBuffers,
    QuantizedStates,
    store_dtype_scale,
)

BLOCK_BYTES = 1 << 21
"""Working memory of one piece: the passes over it after the first find it in the cache."""


def _blocks(states: torch.Tensor) -> Iterator[slice]:
    """Slices of the first axis of ``[heads, V, K]``, each of about BLOCK_BYTES."""
    heads, V, K = states.shape
    step = max(1, BLOCK_BYTES // max(1, V * K * 4))
    for start in range(0, heads, step):
        yield slice(start, start + step)


def _quantize_into(states: torch.Tensor, q: torch.Tensor, scale: torch.Tensor) -> None:
    """``[heads, V, K]`` into int8 ``[heads, V, K]`` and scales ``[heads, 1, K]``."""
    dtype = torch.promote_types(states.dtype, torch.float32)
    for part in _blocks(states):
        S = states[part].to(dtype)
        # max(max, -min) instead of max |S|: two reductions and no copy of S
        amax = torch.maximum(S.amax(1, keepdim=True), S.amin(1, keepdim=True).neg_())
        rounded = store_dtype_scale(amax.clamp_(min=AMAX_FLOOR) / QMAX, scale.dtype)
        scale[part] = rounded
        q[part] = (S / rounded.to(dtype)).round_().clamp_(-QMAX, QMAX)


def _dequantize_into(q: torch.Tensor, scale: torch.Tensor, out: torch.Tensor) -> None:
    """The way back, into ``[heads, V, K]`` of any floating dtype."""
    dtype = torch.promote_types(out.dtype, torch.float32)
    for part in _blocks(out):
        if out.dtype == dtype:
            out[part] = q[part]
            out[part] *= scale[part].to(dtype)
        else:
            out[part] = q[part].to(dtype) * scale[part].to(dtype)


def quantize_states(states: torch.Tensor, scale_dtype: torch.dtype) -> QuantizedStates:
    """As :func:`kdalab_kernels.quantize_states`, for checked arguments."""
    *lead, V, K = states.shape
    q = torch.empty(states.shape, dtype=torch.int8, device=states.device)
    scale = torch.empty((*lead, 1, K), dtype=scale_dtype, device=states.device)
    _quantize_into(states.reshape(-1, V, K), q.view(-1, V, K), scale.view(-1, 1, K))
    return QuantizedStates(q, scale)


def dequantize_states(quantized: QuantizedStates, dtype: torch.dtype) -> torch.Tensor:
    """As :func:`kdalab_kernels.dequantize_states`, for checked arguments."""
    q, scale = quantized
    V, K = q.shape[-2:]
    out = torch.empty(q.shape, dtype=dtype, device=q.device)
    _dequantize_into(q.reshape(-1, V, K), scale.reshape(-1, 1, K), out.view(-1, V, K))
    return out


def store_checkpoints_inplace(
    active_states: torch.Tensor,
    active_conv: torch.Tensor,
    pool: CheckpointBuffers,
    src: torch.Tensor,
    dst: torch.Tensor,
) -> None:
    """As :func:`kdalab_kernels.store_checkpoints_inplace`, for checked arguments."""
    for s, d in zip(src.tolist(), dst.tolist(), strict=True):
        if s < 0:
            continue
        pool.conv[d] = active_conv[s]
        if isinstance(pool.states, QuantizedStates):
            for layer, S in enumerate(active_states[s]):  # a view: pools may be strided by layer
                _quantize_into(S, pool.states.q[d, layer], pool.states.scale[d, layer])
        else:
            pool.states[d] = active_states[s]


def load_checkpoints_inplace(
    pool: CheckpointBuffers,
    active_states: torch.Tensor,
    active_conv: torch.Tensor,
    src: torch.Tensor,
    dst: torch.Tensor,
) -> None:
    """As :func:`kdalab_kernels.load_checkpoints_inplace`, for checked arguments."""
    for s, d in zip(src.tolist(), dst.tolist(), strict=True):
        if s < 0:
            continue
        active_conv[d] = pool.conv[s]
        if isinstance(pool.states, QuantizedStates):
            for layer, S in enumerate(active_states[d]):
                _dequantize_into(pool.states.q[s, layer], pool.states.scale[s, layer], S)
        else:
            active_states[d] = pool.states[s]
