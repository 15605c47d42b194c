"""INT8 checkpoints: a slot's states are read once, and one byte an element is written.

A program holds ``[V, BK]`` of one head: all of V, because a k-channel's scale is its largest value
over V. The same launch copies the conv windows.
"""

from typing import Any

import torch
import triton
import triton.language as tl

from kdalab_kernels.quantized import AMAX_FLOOR, CheckpointBuffers, QuantizedStates
from kdalab_kernels.triton_path import launch
from kdalab_kernels.triton_path.compile_specs import CompileSpec, spec
from kdalab_kernels.triton_path.rows import BITS, copy_block, copy_rows, row_strides

SCALE_KINDS = {torch.float32: "single", torch.float16: "half", torch.bfloat16: "bfloat16"}
TILE = 8192  # state elements of a program
ROUND = tl.constexpr(12582912.0)  # 1.5 * 2^23: adding it leaves no place for a fraction
FLOOR = tl.constexpr(AMAX_FLOOR)


@triton.jit
def stored_scale(amax, KIND: tl.constexpr):
    """As :func:`kdalab_kernels.quantized.store_dtype_scale`: a float32 that KIND holds exactly.

    bfloat16 is rounded here by hand, because the interpreter's cast truncates.
    """
    scale = tl.div_rn(tl.maximum(amax, FLOOR), tl.full(amax.shape, 127.0, tl.float32))
    if KIND == "half":
        steps = scale * 16777216.0  # of float16's smallest step, 2^-24
        whole = steps.to(tl.int32).to(tl.float32)
        up = tl.maximum(tl.where(whole < steps, whole + 1.0, whole), 1.0) * 5.9604644775390625e-08
        scale = tl.where(scale < 6.103515625e-05, up, scale)
    if KIND == "bfloat16":
        bits = scale.to(tl.int32, bitcast=True)
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & -65536
        scale = bits.to(tl.float32, bitcast=True)
    return scale


@triton.jit
def store_int8_kernel(
    S,  # [slots, layers, HV, V, K] by strides, floating
    q,  # [slots, layers, HV, V, K] by strides, int8
    scale,  # [slots, layers, HV, 1, K] by strides
    conv,  # [slots, layers, conv_size] by strides, as integers
    kept,
    src,
    dst,
    n_src,
    n_dst,
    HV,
    conv_size,
    s_row,
    s_layer,
    q_row,
    q_layer,
    scale_row,
    scale_layer,
    conv_row,
    conv_layer,
    kept_row,
    kept_layer,
    V: tl.constexpr,
    K: tl.constexpr,
    BV: tl.constexpr,
    BK: tl.constexpr,
    KIND: tl.constexpr,
    BLOCK: tl.constexpr,
):
    k_blocks: tl.constexpr = (K + BK - 1) // BK
    tiles = HV * k_blocks
    blocks = tiles + tl.cdiv(conv_size, BLOCK)
    pair, block = tl.program_id(0) // blocks, tl.program_id(0) % blocks
    layer = tl.program_id(1).to(tl.int64)
    source, target = tl.load(src + pair), tl.load(dst + pair)
    live = (source >= 0) & (source < n_src) & (target >= 0) & (target < n_dst)
    if live:
        if block < tiles:
            head = (block // k_blocks).to(tl.int64)
            v = tl.arange(0, BV)
            k = (block % k_blocks) * BK + tl.arange(0, BK)
            inside = (v < V)[:, None] & (k < K)[None, :]
            place = head * (V * K) + v[:, None] * K + k[None, :]
            base = S + source * s_row + layer * s_layer
            x = tl.load(base + place, mask=inside, other=0.0).to(tl.float32)
            width = stored_scale(tl.max(tl.abs(x), axis=0), KIND)
            stored = width.to(scale.dtype.element_ty)
            scale_p = scale + target * scale_row + layer * scale_layer + head * K + k
            tl.store(scale_p, stored, mask=k < K)
            width = stored.to(tl.float32)
            # x / width by the reciprocal and one correction of the quotient: as exact, and cheaper
            # than a division for each element.
            inverse = tl.div_rn(tl.full(width.shape, 1.0, tl.float32), width)[None, :]
            y = x * inverse
            y = tl.fma(tl.fma(-y, tl.zeros_like(y) + width[None, :], x), inverse, y)
            y = (y + ROUND) - ROUND
            y = tl.minimum(tl.maximum(y, -127.0), 127.0)
            q_p = q + target * q_row + layer * q_layer + place
            tl.store(q_p, y.to(tl.int8), mask=inside)
        else:
            copy_block(
                conv,
                kept,
                source,
                target,
                layer,
                block - tiles,
                conv_size,
                (conv_row, conv_layer),
                (kept_row, kept_layer),
                BLOCK,
            )


@triton.jit
def load_int8_kernel(
    q,
    scale,
    S,
    kept,
    conv,
    src,
    dst,
    n_src,
    n_dst,
    HV,
    conv_size,
    q_row,
    q_layer,
    scale_row,
    scale_layer,
    s_row,
    s_layer,
    kept_row,
    kept_layer,
    conv_row,
    conv_layer,
    V: tl.constexpr,
    K: tl.constexpr,
    BV: tl.constexpr,
    BK: tl.constexpr,
    BLOCK: tl.constexpr,
):
    k_blocks: tl.constexpr = (K + BK - 1) // BK
    tiles = HV * k_blocks
    blocks = tiles + tl.cdiv(conv_size, BLOCK)
    pair, block = tl.program_id(0) // blocks, tl.program_id(0) % blocks
    layer = tl.program_id(1).to(tl.int64)
    source, target = tl.load(src + pair), tl.load(dst + pair)
    live = (source >= 0) & (source < n_src) & (target >= 0) & (target < n_dst)
    if live:
        if block < tiles:
            head = (block // k_blocks).to(tl.int64)
            v = tl.arange(0, BV)
            k = (block % k_blocks) * BK + tl.arange(0, BK)
            inside = (v < V)[:, None] & (k < K)[None, :]
            place = head * (V * K) + v[:, None] * K + k[None, :]
            q_p = q + source * q_row + layer * q_layer + place
            scale_p = scale + source * scale_row + layer * scale_layer + head * K + k
            y = tl.load(q_p, mask=inside, other=0).to(tl.float32)
            y *= tl.load(scale_p, mask=k < K, other=0.0).to(tl.float32)[None, :]
            s_p = S + target * s_row + layer * s_layer + place
            tl.store(s_p, y.to(S.dtype.element_ty), mask=inside)
        else:
            copy_block(
                kept,
                conv,
                source,
                target,
                layer,
                block - tiles,
                conv_size,
                (kept_row, kept_layer),
                (conv_row, conv_layer),
                BLOCK,
            )


def _tile(V: int, K: int) -> tuple[int, int]:
    BV = launch.next_power_of_2(V)
    BK = launch.next_power_of_2(K)
    if not launch.INTERPRETED:  # the interpreter wants few, large programs
        BK = max(min(BK, 16), min(BK, TILE // BV))
    return BV, BK


def _launch_int8(
    storing: bool,
    S: torch.Tensor,
    states: QuantizedStates,
    conv: tuple[torch.Tensor, torch.Tensor] | None,
    src: torch.Tensor,
    dst: torch.Tensor,
) -> None:
    """Conv is (source, target), ``[slots, layers, ..]``, or None for states alone."""
    launch.refuse_float64("INT8 states", S)
    L, HV, V, K = S.shape[1:]
    strides = {"s": row_strides("states", S, 2)}
    strides["q"] = row_strides("q", states.q, 2)
    strides["scale"] = row_strides("scale", states.scale, 2)
    conv_size = 0
    windows = (states.q, states.q)
    conv_strides = [(0, 0), (0, 0)]
    if conv is not None and conv[0].numel():
        conv_strides = [row_strides("conv", x, 2) for x in conv]  # type: ignore[misc]
        windows = tuple(x.view(BITS[x.element_size()]) for x in conv)  # type: ignore[assignment]
        conv_size = conv[0][0, 0].numel()
    BV, BK = _tile(V, K)
    BLOCK = min(TILE, launch.next_power_of_2(max(conv_size, 1)))
    blocks = HV * triton.cdiv(K, BK) + triton.cdiv(conv_size, BLOCK)
    if not (len(src) and L and blocks and V):
        return
    q, scale = states
    n_src, n_dst = (len(S), len(q)) if storing else (len(q), len(S))
    order = ("s", "q", "scale") if storing else ("q", "scale", "s")
    pools = (S, q, scale) if storing else (q, scale, S)
    numbers = [n for name in order for n in strides[name]] + [n for c in conv_strides for n in c]
    constants: dict[str, Any] = {"V": V, "K": K, "BV": BV, "BK": BK, "BLOCK": BLOCK}
    if storing:
        constants["KIND"] = SCALE_KINDS[scale.dtype]
    kernel = store_int8_kernel if storing else load_int8_kernel
    kernel[(len(src) * blocks, L)](
        *pools,
        *windows,
        src,
        dst,
        n_src,
        n_dst,
        HV,
        conv_size,
        *numbers,
        **constants,
        num_warps=4,
        num_stages=2,
    )


def _as_rows(states: torch.Tensor) -> torch.Tensor:
    """``[.., V, K]`` as one row of one layer of many heads: ``[1, 1, n, V, K]``, packed."""
    return states.reshape(1, 1, -1, *states.shape[-2:]).contiguous()


def quantize_states(states: torch.Tensor, scale_dtype: torch.dtype) -> QuantizedStates:
    """As :func:`kdalab_kernels.quantize_states`, for checked arguments."""
    *lead, V, K = states.shape
    q = torch.empty(states.shape, dtype=torch.int8, device=states.device)
    scale = torch.empty((*lead, 1, K), dtype=scale_dtype, device=states.device)
    row = torch.zeros(1, dtype=torch.int64, device=states.device)
    if states.numel():
        pool = QuantizedStates(q.view(1, 1, -1, V, K), scale.view(1, 1, -1, 1, K))
        _launch_int8(True, _as_rows(states), pool, None, row, row)
    return QuantizedStates(q, scale)


def dequantize_states(quantized: QuantizedStates, dtype: torch.dtype) -> torch.Tensor:
    """As :func:`kdalab_kernels.dequantize_states`, for checked arguments."""
    q, scale = quantized
    out = torch.empty(q.shape, dtype=dtype, device=q.device)
    row = torch.zeros(1, dtype=torch.int64, device=q.device)
    if out.numel():
        pool = QuantizedStates(_as_rows(q), _as_rows(scale))
        _launch_int8(False, out.view(1, 1, -1, *q.shape[-2:]), pool, None, row, row)
    return out


def store_checkpoints_inplace(
    active_states: torch.Tensor,
    active_conv: torch.Tensor,
    pool: CheckpointBuffers,
    src: torch.Tensor,
    dst: torch.Tensor,
) -> None:
    """As :func:`kdalab_kernels.store_checkpoints_inplace`, for checked arguments: one launch."""
    conv = (active_conv, pool.conv)
    if isinstance(pool.states, QuantizedStates):
        _launch_int8(True, active_states, pool.states, conv, src, dst)
    else:
        copy_rows((active_states, pool.states), conv, src, dst, ("active", "pool"))


def load_checkpoints_inplace(
    pool: CheckpointBuffers,
    active_states: torch.Tensor,
    active_conv: torch.Tensor,
    src: torch.Tensor,
    dst: torch.Tensor,
) -> None:
    """As :func:`kdalab_kernels.load_checkpoints_inplace`, for checked arguments: one launch."""
    conv = (pool.conv, active_conv)
    if isinstance(pool.states, QuantizedStates):
        _launch_int8(False, active_states, pool.states, conv, src, dst)
    else:
        copy_rows((pool.states, active_states), conv, src, dst, ("pool", "active"))


def SPECS() -> list[CompileSpec]:
    """float32 states of K = V = 128, float32 scales, bfloat16 conv windows."""
    types = {"S": "*fp32", "q": "*i8", "scale": "*fp32", "conv": "*i16", "kept": "*i16"}
    types |= {"src": "*i64", "dst": "*i64"}
    types |= dict.fromkeys(("n_src", "n_dst", "HV", "conv_size"), "i32")
    for name in ("s", "q", "scale", "conv", "kept"):
        types |= {f"{name}_row": "i64", f"{name}_layer": "i64"}
    constants = {"V": 128, "K": 128, "BV": 128, "BK": TILE // 128, "BLOCK": TILE}
    half = {**types, "scale": "*fp16"}
    return [
        spec("store_int8", store_int8_kernel, types, {**constants, "KIND": "single"}, 4),
        spec("store_int8_half_scale", store_int8_kernel, half, {**constants, "KIND": "half"}, 4),
        spec("load_int8", load_int8_kernel, types, constants, 4),
    ]
