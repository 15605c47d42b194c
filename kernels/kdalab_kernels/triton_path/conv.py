"""Depthwise causal short convolution over packed sequences, with its state going in and out.

One program computes a tile of BT tokens by BD channels. The W - 1 inputs before a sequence's first
token come from its state, so no window reaches into a neighbour; the tile that holds a sequence's
end also writes its new state. Every output is the same chain of W multiply-adds, wherever a
sequence was cut into calls.
"""

from itertools import pairwise

import torch
import triton
import triton.language as tl

from kdalab_kernels import checks
from kdalab_kernels.triton_path import launch
from kdalab_kernels.triton_path.compile_specs import CompileSpec, spec

BD = 128  # channels of a program


@triton.jit
def history_rows(x, state, first, n, t, channel, live, D: tl.constexpr, W: tl.constexpr):
    """Inputs at positions t (``[R]``, from -(W-1) on) of sequence n: below 0 they are its state."""
    inside = t >= 0
    x_p = x + first * D + t[:, None] * D + channel[None, :]
    s_p = state + n * ((W - 1) * D) + (W - 1 + t)[:, None] * D + channel[None, :]
    new = tl.load(x_p, mask=live & inside[:, None], other=0.0).to(tl.float32)
    old = tl.load(s_p, mask=live & (t < 0)[:, None], other=0.0).to(tl.float32)
    return tl.where(inside[:, None], new, old)


@triton.jit
def causal_conv1d_kernel(
    x,  # [tokens, D]
    weight,  # [D, W]
    bias,  # [D]
    state,  # [N, W - 1, D]
    table,  # [n_tiles, 2]: sequence, tile within it
    offsets,  # [N + 1]
    y,  # [tokens, D]
    final,  # [N, W - 1, D]
    D: tl.constexpr,
    W: tl.constexpr,
    HISTORY: tl.constexpr,  # power of 2, at least W - 1
    BIAS: tl.constexpr,
    SILU: tl.constexpr,
    BT: tl.constexpr,
    BD: tl.constexpr,
):
    tile = tl.program_id(0)
    channel = tl.program_id(1) * BD + tl.arange(0, BD)
    known = channel < D
    n = tl.load(table + 2 * tile).to(tl.int64)
    start = tl.load(table + 2 * tile + 1) * BT
    first = tl.load(offsets + n)
    length = (tl.load(offsets + n + 1) - first).to(tl.int32)

    t = start + tl.arange(0, BT)
    live = (t < length)[:, None] & known[None, :]
    acc = tl.zeros([BT, BD], tl.float32)
    for w in tl.static_range(W):
        tap = tl.load(weight + channel * W + w, mask=known, other=0.0).to(tl.float32)
        acc += history_rows(x, state, first, n, t + (w - (W - 1)), channel, live, D, W) * tap
    if BIAS:
        acc += tl.load(bias + channel, mask=known, other=0.0).to(tl.float32)
    if SILU:
        acc = acc / (1.0 + tl.exp(-acc))
    y_p = y + first * D + t[:, None] * D + channel[None, :]
    tl.store(y_p, acc, mask=live)

    if (W > 1) & (start + BT >= length):
        row = tl.arange(0, HISTORY)
        kept = (row < W - 1)[:, None] & known[None, :]
        last = history_rows(x, state, first, n, length - (W - 1) + row, channel, kept, D, W)
        final_p = final + n * ((W - 1) * D) + row[:, None] * D + channel[None, :]
        tl.store(final_p, last, mask=kept)


def causal_conv1d(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    activation: str | None,
    state: torch.Tensor,
    cu_seqlens: list[int] | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As :func:`kdalab_kernels.causal_conv1d`, for checked arguments."""
    launch.refuse_float64("causal_conv1d", x, weight, bias, state)
    checks.no_gradient("causal_conv1d", x, weight, bias, state)
    x, weight, state = x.contiguous(), weight.contiguous(), state.contiguous()
    B, T, D = x.shape
    W = weight.shape[1]
    y, final = torch.empty_like(x), torch.empty_like(state)
    longest = T if cu_seqlens is None else max((b - a for a, b in pairwise(cu_seqlens)), default=0)
    BT = launch.next_power_of_2(min(longest, 32))
    tiles = launch.tiles(B, T, cu_seqlens, BT, x.device, least=1)
    grid = (len(tiles.table), triton.cdiv(D, BD))
    if len(tiles.table) and D:
        causal_conv1d_kernel[grid](
            x,
            weight,
            weight if bias is None else bias.contiguous(),
            state,
            tiles.table,
            tiles.offsets,
            y,
            final,
            D=D,
            W=W,
            HISTORY=launch.next_power_of_2(W - 1),
            BIAS=bias is not None,
            SILU=activation == "silu",
            BT=BT,
            BD=BD,
            num_warps=4 if BT >= 8 else 1,
        )
    return y, final


def causal_conv1d_update(
    x: torch.Tensor,
    state: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    activation: str | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As :func:`kdalab_kernels.causal_conv1d_update`, for checked arguments, x ``[N, T, D]``."""
    return causal_conv1d(x, weight, bias, activation, state, None)


def SPECS() -> list[CompileSpec]:
    """Prefill tiles and one-token tiles of K3's packed q|k|v convolution, D = 3 * 96 * 128."""
    types = dict.fromkeys(("x", "weight", "bias", "state", "y", "final"), "*bf16")
    types |= {"weight": "*fp32", "table": "*i32", "offsets": "*i64"}
    common = {"D": 36864, "W": 4, "HISTORY": 4, "BIAS": False, "SILU": True, "BD": BD}
    return [
        spec("causal_conv1d", causal_conv1d_kernel, types, {**common, "BT": 32}, 4),
        spec("causal_conv1d_update", causal_conv1d_kernel, types, {**common, "BT": 1}, 1),
    ]
