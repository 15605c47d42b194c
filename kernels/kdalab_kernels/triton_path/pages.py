"""Pages and shards between pools and buffers, bits as they are; one launch each."""

from typing import Any

import torch
import triton
import triton.language as tl

from kdalab_kernels.tp import ShardPiece
from kdalab_kernels.triton_path import launch
from kdalab_kernels.triton_path.compile_specs import CompileSpec, spec
from kdalab_kernels.triton_path.rows import BITS, copy_rows, row_strides

BLOCK = 4096  # elements of a program
Run = tuple[int, int]


def _layers(x: torch.Tensor) -> torch.Tensor:
    """x as ``[rows, layers, ..]``: one layer where a row is packed, else its first axis."""
    packed = x.ndim == 2 or not len(x) or x[0].is_contiguous()
    return x[:, None] if packed else x


def _sequence(index: torch.Tensor) -> torch.Tensor:
    return torch.arange(len(index), device=index.device)


def gather_pages(pages: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """As :func:`kdalab_kernels.gather_pages`, for checked arguments; pages may be strided."""
    out = torch.zeros((len(index), *pages.shape[1:]), dtype=pages.dtype, device=pages.device)
    source = _layers(pages)
    target = out.view(len(out), *source.shape[1:])
    copy_rows((source, target), None, index, _sequence(index), ("pages", "out"))
    return out


def scatter_pages_inplace(buffer: torch.Tensor, pages: torch.Tensor, index: torch.Tensor) -> None:
    """As :func:`kdalab_kernels.scatter_pages_inplace`, for checked arguments."""
    target = _layers(pages)
    source = buffer.contiguous().view(len(buffer), *target.shape[1:])
    copy_rows((source, target), None, _sequence(index), index, ("buffer", "pages"))


@triton.jit
def move(pool, piece, inside, SCATTER: tl.constexpr):
    """From the pool's pointers to the piece's, or back."""
    if SCATTER:
        tl.store(pool, tl.load(piece, mask=inside, other=0), mask=inside)
    else:
        tl.store(piece, tl.load(pool, mask=inside, other=0), mask=inside)


@triton.jit
def shard_kernel(
    states,  # [slots, layers, ..] by strides
    piece_states,  # [n, layers, size]
    conv,  # [slots, layers, W - 1, D] by strides
    piece_conv,  # [n, layers, W - 1, kept]
    slots,  # [n]
    n_slots,
    first,  # elements before the first head in common
    size,  # elements of the heads in common
    D,
    kept,
    q_first,
    k_first,
    v_first,
    q_length,
    k_length,
    states_row,
    states_layer,
    conv_row,
    conv_layer,
    W1: tl.constexpr,
    SCATTER: tl.constexpr,
    BLOCK: tl.constexpr,
):
    state_blocks = tl.cdiv(size, BLOCK)
    blocks = state_blocks + tl.cdiv(W1 * kept, BLOCK)
    i, block = (tl.program_id(0) // blocks).to(tl.int64), tl.program_id(0) % blocks
    layer, layers = tl.program_id(1).to(tl.int64), tl.num_programs(1)
    slot = tl.load(slots + i)
    row = i * layers + layer
    if (slot >= 0) & (slot < n_slots):
        if block < state_blocks:
            place = block * BLOCK + tl.arange(0, BLOCK)
            from_p = states + slot * states_row + layer * states_layer + first + place
            move(from_p, piece_states + row * size + place, place < size, SCATTER)
        else:
            at = (block - state_blocks) * BLOCK + tl.arange(0, BLOCK)
            c = at % kept
            channel = tl.where(
                c < q_length,
                q_first + c,
                tl.where(
                    c < q_length + k_length,
                    k_first + c - q_length,
                    v_first + c - q_length - k_length,
                ),
            )
            window_p = conv + slot * conv_row + layer * conv_layer + at // kept * D + channel
            to_p = piece_conv + row * (W1 * kept) + at
            move(window_p, to_p, at < W1 * kept, SCATTER)


def _launch(
    piece: ShardPiece,
    states: torch.Tensor,
    conv: torch.Tensor,
    index: torch.Tensor,
    heads: Run,
    blocks: list[Run],
    scatter: bool,
) -> None:
    strides = (*row_strides("states", states, 2), *row_strides("conv", conv, 2))
    L, _, V, K = states.shape[1:]
    W1, D = conv.shape[2:]
    kept = sum(length for _, length in blocks)
    size = heads[1] * V * K
    block = BLOCK
    if launch.INTERPRETED:
        block = launch.next_power_of_2(max(size, W1 * kept, 1))
    programs = len(index) * (triton.cdiv(size, block) + triton.cdiv(W1 * kept, block))
    if not (programs and L):
        return

    def bits(x: torch.Tensor) -> torch.Tensor:
        return x.view(BITS[x.element_size()])

    shard_kernel[(programs, L)](
        bits(states),
        bits(piece.states.contiguous()),
        bits(conv),
        bits(piece.conv.contiguous()),
        index,
        len(states),
        heads[0] * V * K,
        size,
        D,
        max(kept, 1),
        blocks[0][0],
        blocks[1][0],
        blocks[2][0],
        blocks[0][1],
        blocks[1][1],
        *strides,
        W1=W1 if kept else 0,
        SCATTER=scatter,
        BLOCK=block,
        num_warps=8,
        num_stages=2,
    )


def gather_shard(
    states: torch.Tensor, conv: torch.Tensor, index: torch.Tensor, heads: Run, blocks: list[Run]
) -> ShardPiece:
    """As :func:`kdalab_kernels.gather_shard`, for checked arguments."""
    n, L, _, V, K = len(index), *states.shape[1:]
    piece = ShardPiece(
        states.new_zeros(n, L, heads[1], V, K),
        conv.new_zeros(n, L, conv.shape[2], sum(length for _, length in blocks)),
    )
    _launch(piece, states, conv, index, heads, blocks, False)
    return piece


def scatter_shard_inplace(
    piece: ShardPiece,
    states: torch.Tensor,
    conv: torch.Tensor,
    index: torch.Tensor,
    heads: Run,
    blocks: list[Run],
) -> None:
    """As :func:`kdalab_kernels.scatter_shard_inplace`, for checked arguments."""
    _launch(piece, states, conv, index, heads, blocks, True)


def SPECS() -> list[CompileSpec]:
    """float32 states beside bfloat16 conv windows of width 4."""
    types = {"states": "*i32", "piece_states": "*i32", "conv": "*i16", "piece_conv": "*i16"}
    types |= {"slots": "*i64"}
    numbers = ("n_slots", "first", "size", "D", "kept", "q_first", "k_first", "v_first")
    types |= dict.fromkeys((*numbers, "q_length", "k_length"), "i32")
    types |= dict.fromkeys(("states_row", "states_layer", "conv_row", "conv_layer"), "i64")
    constants: dict[str, Any] = {"W1": 3, "BLOCK": BLOCK}
    return [
        spec("gather_shard", shard_kernel, types, {**constants, "SCATTER": False}, 8),
        spec("scatter_shard", shard_kernel, types, {**constants, "SCATTER": True}, 8),
    ]
