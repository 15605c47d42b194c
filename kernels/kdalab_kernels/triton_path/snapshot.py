"""States at boundaries inside a prefill: both kinds of state in one launch, bits as they are."""

import torch
import triton
import triton.language as tl

from kdalab_kernels.snapshot_call import SnapshotCall
from kdalab_kernels.triton_path import launch
from kdalab_kernels.triton_path.compile_specs import CompileSpec, spec
from kdalab_kernels.triton_path.rows import BITS, row_strides

BLOCK = 4096  # elements of a program


@triton.jit
def snapshot_kernel(
    pool,  # [slots, size], slots by stride
    conv_pool,  # [slots, W - 1, D], slots by stride
    h,  # [chunks, size]
    final_state,  # [N, size]
    x,  # [tokens, D]
    conv_initial,  # [N, W - 1, D]
    slots,  # [M]
    sequence,
    chunk,
    first,
    boundary,
    n_slots,
    size,
    D,
    pool_row,
    conv_row,
    W1: tl.constexpr,
    BLOCK: tl.constexpr,
):
    state_blocks = tl.cdiv(size, BLOCK)
    blocks = state_blocks + tl.cdiv(W1 * D, BLOCK)
    m, block = tl.program_id(0) // blocks, tl.program_id(0) % blocks
    slot, n = tl.load(slots + m), tl.load(sequence + m)
    if (slot >= 0) & (slot < n_slots):
        if block < state_blocks:
            place = block * BLOCK + tl.arange(0, BLOCK)
            row = tl.load(chunk + m)
            from_h = place < tl.where(row >= 0, size, 0)
            from_end = place < tl.where(row < 0, size, 0)
            to = pool + slot * pool_row + place
            tl.store(to, tl.load(h + row * size + place, mask=from_h, other=0), mask=from_h)
            end = tl.load(final_state + n * size + place, mask=from_end, other=0)
            tl.store(to, end, mask=from_end)
        else:
            place = (block - state_blocks) * BLOCK + tl.arange(0, BLOCK)
            at = tl.load(boundary + m).to(tl.int32) - W1 + place // D
            inside = place < W1 * D
            new = inside & (at >= 0)
            old = inside & (at < 0)
            window = conv_pool + slot * conv_row + place
            new_p = x + (tl.load(first + m) + at) * D + place % D
            tl.store(window, tl.load(new_p, mask=new, other=0), mask=new)
            old_p = conv_initial + n * (W1 * D) + (W1 + at) * D + place % D
            tl.store(window, tl.load(old_p, mask=old, other=0), mask=old)


def snapshot_states_inplace(call: SnapshotCall) -> None:
    """As :func:`kdalab_kernels.snapshot_states_inplace`, for checked arguments: one launch."""
    (pool_row,) = row_strides("states_pool", call.states_pool, 1)
    (conv_row,) = row_strides("conv_pool", call.conv_pool, 1)
    size = call.states_pool[0].numel() if len(call.states_pool) else 0
    W1, D = call.conv_pool.shape[1:]
    block = BLOCK
    if launch.INTERPRETED:
        block = launch.next_power_of_2(max(size, W1 * D))
    programs = len(call.slots) * (triton.cdiv(size, block) + triton.cdiv(W1 * D, block))
    if not programs:
        return

    def bits(x: torch.Tensor) -> torch.Tensor:
        return x.view(BITS[x.element_size()])

    snapshot_kernel[(programs,)](
        bits(call.states_pool),
        bits(call.conv_pool),
        bits(call.h.contiguous()),
        bits(call.final_state.contiguous()),
        bits(call.x.contiguous()),
        bits(call.conv_initial.contiguous()),
        call.slots,
        call.sequence,
        call.chunk,
        call.first,
        call.boundary,
        len(call.states_pool),
        size,
        D,
        pool_row,
        conv_row,
        W1=W1,
        BLOCK=block,
        num_warps=8,
        num_stages=2,
    )


def SPECS() -> list[CompileSpec]:
    """float32 states and bfloat16 conv windows of width 4."""
    types = dict.fromkeys(("pool", "h", "final_state"), "*i32")
    types |= dict.fromkeys(("conv_pool", "x", "conv_initial"), "*i16")
    types |= dict.fromkeys(("slots", "sequence", "chunk", "first", "boundary"), "*i64")
    types |= {"n_slots": "i32", "size": "i32", "D": "i32", "pool_row": "i64", "conv_row": "i64"}
    return [spec("snapshot", snapshot_kernel, types, {"W1": 3, "BLOCK": BLOCK}, 8)]
