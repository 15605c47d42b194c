"""Checkpoints of recurrent and conv state: quantise, store from active slots, load into them.

Axes: S active slots, C checkpoint slots, L layers, HV value heads, V and K head dimensions, W conv
width, D conv channels (q|k|v). Pools are V-first: a row of K is contiguous, which is what a decode
step sums over, and the scales of INT8 lie along it.
"""

import torch

from kdalab_kernels import checks, slot_checks
from kdalab_kernels.aliasing import apart
from kdalab_kernels.dispatch import implementation
from kdalab_kernels.quantized import HALF_QUANTUM, SCALE_DTYPES, CheckpointBuffers, QuantizedStates
from kdalab_kernels.slot_checks import Slots


def quantize_states(
    states: torch.Tensor, scale_dtype: torch.dtype = torch.float32, *, backend: str = "auto"
) -> QuantizedStates:
    """INT8 states with one scale per k-channel: symmetric, no zero point.

    ``scale = max(max_v |S|, 1e-8) / 127``, rounded to scale_dtype, and with that rounded scale
    ``q = round_half_even(S / scale)``. The error is at most half a scale per element (plus one
    rounding), and zeros stay exact. The scheme is that of SGLang's INT8 checkpoint pool.

    Args:
        states: ``[.., V, K]`` of any floating dtype, V-first.
        scale_dtype: float32, bfloat16 or float16. float32 is the default: 0.4 % of the bytes at
            V = 128, and no range to think of. float16 ends at 6e-8: channels whose largest
            magnitude is below 7.6e-6 keep fewer than 7 bits, and one below 3e-8 would read back
            as 0, which is refused (on CPU; on an accelerator it cannot be seen without waiting).

    Returns:
        ``QuantizedStates(q [.., V, K] int8, scale [.., 1, K])``.

    Raises:
        ValueError: wrong dtype, or on CPU a NaN, an infinity, or a channel below a float16 scale.
    """
    if checks.floating("states", states).ndim < 2 or min(states.shape[-2:]) < 1:
        raise ValueError(f"states: expected shape [.., V, K], given {list(states.shape)}")
    checks.dtype("scale_dtype", scale_dtype, SCALE_DTYPES)
    if states.device.type == "cpu" and states.numel():
        if not bool(states.isfinite().all()):
            raise ValueError("states: expected finite values, given NaN or infinity")
        _refuse_out_of_scale(states, scale_dtype)
    run = implementation("quantize_states", backend, states.device, states.dtype)
    result: QuantizedStates = run(states, scale_dtype)
    return result


def dequantize_states(
    quantized: QuantizedStates, dtype: torch.dtype = torch.float32, *, backend: str = "auto"
) -> torch.Tensor:
    """``q * scale`` as ``[.., V, K]`` of dtype; the product is made in float32 (64 for float64)."""
    q, scale = _quantized("quantized", quantized)
    if scale.shape != (*q.shape[:-2], 1, q.shape[-1]):
        raise ValueError(
            f"quantized.scale: expected shape [.., 1, K] = {[*q.shape[:-2], 1, q.shape[-1]]}, "
            f"given {list(scale.shape)}"
        )
    checks.dtype("dtype", dtype, checks.FLOATS)
    run = implementation("dequantize_states", backend, q.device, dtype)
    out: torch.Tensor = run(quantized, dtype)
    return out


def store_checkpoints_inplace(
    active_states: torch.Tensor,
    active_conv: torch.Tensor,
    pool: CheckpointBuffers,
    src_slots: Slots,
    dst_slots: Slots,
    *,
    backend: str = "auto",
) -> None:
    """Freeze active slots into checkpoint slots: all layers, recurrent and conv together.

    The pair ``(src_slots[i], dst_slots[i])`` copies one active slot into one checkpoint slot; a
    pair of -1 is skipped, so that a launch can have a fixed size. Only the dst slots change.
    Active and checkpoint slots may be views of one buffer, as long as they have no element in
    common; moving slots within one pool goes through a copy.

    Args:
        active_states: ``[S, L, HV, V, K]`` floating.
        active_conv: ``[S, L, W - 1, D]``; copied as it is, also beside INT8 states.
        pool: ``CheckpointBuffers(states, conv)``: states ``[C, L, HV, V, K]`` of the same dtype
            (a bit-exact copy) or :class:`QuantizedStates` (see :func:`quantize_states`); conv
            ``[C, L, W - 1, D]`` of active_conv's dtype.
        src_slots, dst_slots: ``[N]`` integers; a dst slot may appear once.

    Raises:
        ValueError: wrong shape, dtype or slot, or pools that share memory; on CPU also a state that
            is not finite. Nothing has been written then.
    """
    src, dst = _checked_move(
        active_states, active_conv, pool, ("src_slots", src_slots), ("dst_slots", dst_slots), True
    )
    if active_states.device.type == "cpu":
        for slot in set(src.tolist()) - {slot_checks.PADDING}:
            slot_checks.finite("active_states", active_states[slot], slot)
            slot_checks.finite("active_conv", active_conv[slot], slot)
            if isinstance(pool.states, QuantizedStates):
                _refuse_out_of_scale(active_states[slot], pool.states.scale.dtype)
    run = implementation(
        "store_checkpoints_inplace", backend, active_states.device, active_states.dtype
    )
    run(active_states, active_conv, pool, src, dst)


def load_checkpoints_inplace(
    pool: CheckpointBuffers,
    active_states: torch.Tensor,
    active_conv: torch.Tensor,
    src_slots: Slots,
    dst_slots: Slots,
    *,
    backend: str = "auto",
) -> None:
    """Copy checkpoint slots into private active slots: the way back, with the same arguments.

    INT8 is multiplied out in float32 and rounded to active_states' dtype. A checkpoint may be
    loaded into several active slots at once; an active slot may appear once.

    Raises:
        ValueError: wrong shape, dtype or slot, or pools that share memory; on CPU also an INT8 slot
            whose scales are not finite (nothing was stored there). Nothing has been written then.
    """
    src, dst = _checked_move(
        active_states, active_conv, pool, ("src_slots", src_slots), ("dst_slots", dst_slots), False
    )
    if active_states.device.type == "cpu" and isinstance(pool.states, QuantizedStates):
        for slot in set(src.tolist()) - {slot_checks.PADDING}:
            slot_checks.finite("pool.states.scale", pool.states.scale[slot], slot)
    run = implementation(
        "load_checkpoints_inplace", backend, active_states.device, active_states.dtype
    )
    run(pool, active_states, active_conv, src, dst)


def _checked_move(
    active_states: torch.Tensor,
    active_conv: torch.Tensor,
    buffers: CheckpointBuffers,
    src: tuple[str, Slots],
    dst: tuple[str, Slots],
    storing: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Shapes and dtypes of both pools, and the slots as tensors; src is the active side or not."""
    S = slot_checks.pool("active_states", active_states, "[S, L, HV, V, K]", (None,) * 5)
    n_active, L, HV, V, K = S.shape
    conv = slot_checks.pool(
        "active_conv", active_conv, "[S, L, W - 1, D]", (n_active, L, None, None)
    )
    if not isinstance(buffers, CheckpointBuffers):
        raise ValueError(f"pool: expected CheckpointBuffers, given {type(buffers).__name__}")
    states, kept_conv = buffers
    if isinstance(states, QuantizedStates):
        q, scale = _quantized("pool.states", states)
        C = q.shape[0]
        if q.shape != (C, L, HV, V, K):
            raise ValueError(
                f"pool.states.q: expected shape [C, L, HV, V, K] = [C, {L}, {HV}, {V}, {K}], "
                f"given {list(q.shape)}"
            )
        slot_checks.pool("pool.states.scale", scale, "[C, L, HV, 1, K]", (C, L, HV, 1, K))
        checks.same_place(("active_states", S), ("pool.states.q", q), ("pool.states.scale", scale))
    else:
        kept = slot_checks.pool("pool.states", states, "[C, L, HV, V, K]", (None, L, HV, V, K))
        C = kept.shape[0]
        if kept.dtype != S.dtype:
            raise ValueError(
                f"pool.states: expected the dtype of active_states, {S.dtype}, or "
                f"QuantizedStates, given {kept.dtype}"
            )
        checks.same_place(("active_states", S), ("pool.states", kept))
    slot_checks.pool("pool.conv", kept_conv, "[C, L, W - 1, D]", (C, L, *conv.shape[2:]))
    if kept_conv.dtype != conv.dtype:
        raise ValueError(
            f"pool.conv: expected the dtype of active_conv, {conv.dtype}, given {kept_conv.dtype}"
        )
    checks.same_place(("active_states", S), ("active_conv", conv), ("pool.conv", kept_conv))
    n_src, n_dst = (n_active, C) if storing else (C, n_active)
    source = slot_checks.slots(*src, n_src, S.device)
    target = slot_checks.slots(*dst, n_dst, S.device, len(source), distinct=True)
    for i, (a, b) in enumerate(zip(source.tolist(), target.tolist(), strict=True)):
        if (a < 0) != (b < 0):
            raise ValueError(
                f"{src[0]}, {dst[0]}: expected -1 in both or in neither, "
                f"given {a} and {b} in row {i}"
            )
    _apart(S, conv, buffers, storing)
    return source, target


def _apart(
    active: torch.Tensor, conv: torch.Tensor, buffers: CheckpointBuffers, storing: bool
) -> None:
    kept: tuple[tuple[str, object], ...]
    if isinstance(buffers.states, QuantizedStates):
        q, scale = buffers.states
        kept = (("pool.states.q", q), ("pool.states.scale", scale), ("pool.conv", buffers.conv))
    else:
        kept = (("pool.states", buffers.states), ("pool.conv", buffers.conv))
    mine = (("active_states", active), ("active_conv", conv))
    apart(kept, mine) if storing else apart(mine, kept)


def _quantized(name: str, states: object) -> QuantizedStates:
    if not isinstance(states, QuantizedStates):
        raise ValueError(f"{name}: expected QuantizedStates, given {type(states).__name__}")
    for part, x in zip(("q", "scale"), states, strict=True):
        checks.tensor(f"{name}.{part}", x)
    if states.q.dtype != torch.int8:
        raise ValueError(f"{name}.q: expected dtype int8, given {states.q.dtype}")
    if states.q.ndim < 2:
        raise ValueError(f"{name}.q: expected shape [.., V, K], given {list(states.q.shape)}")
    checks.dtype(f"{name}.scale", states.scale.dtype, SCALE_DTYPES)
    slot_checks.own_memory(f"{name}.q", states.q)
    slot_checks.own_memory(f"{name}.scale", states.scale)
    return states


def _refuse_out_of_scale(states: torch.Tensor, scale_dtype: torch.dtype) -> None:
    """Channels too large for a scale; and too small for a float16 one, whose least is 2^-24."""
    if not states.numel():
        return
    amax = states.abs().amax(-2)
    largest = 127 * torch.finfo(scale_dtype).max
    if bool((amax.double() > largest).any()):
        raise ValueError(
            f"states: expected no channel above {largest:.2g} (its scale would be infinite) with a "
            f"{scale_dtype} scale, given one of {amax.max():.2g}"
        )
    if scale_dtype != torch.float16:
        return
    if bool(((amax > 0) & (amax < HALF_QUANTUM / 2)).any()):
        raise ValueError(
            "states: expected no channel below 3e-08 (it would read back as 0) with a float16 "
            f"scale, given one of {amax[amax > 0].min():.2g}; use a float32 or bfloat16 scale"
        )
