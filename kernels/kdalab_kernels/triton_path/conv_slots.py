"""Short convolution against a pool of windows: a program owns some channels of one row."""

import torch
import triton
import triton.language as tl

from kdalab_kernels import checks
from kdalab_kernels.triton_path import launch
from kdalab_kernels.triton_path.compile_specs import CompileSpec, spec
from kdalab_kernels.triton_path.rows import row_strides

BD = 256  # channels of a program


@triton.jit
def copy_input(to, x, window, at, channel, limit, D: tl.constexpr, W: tl.constexpr):
    """Raw input ``at`` (before token 0: of the window) of the channels below limit, to ``to``."""
    is_new = channel < tl.where(at >= 0, limit, 0)
    new = tl.load(x + at * D, mask=is_new, other=0.0)
    tl.store(to, new.to(to.dtype.element_ty), mask=is_new)
    is_old = channel < tl.where(at < 0, limit, 0)
    old = tl.load(window + (W - 1 + at) * D, mask=is_old, other=0.0)
    tl.store(to, old, mask=is_old)


@triton.jit
def conv_slots_kernel(
    x,  # [N, T, D]
    states,  # [slots, W - 1, D], slots by stride
    weight,  # [D, W]
    bias,  # [D]
    slots,  # [N]
    y,  # [N, T, D]
    windows,  # [N, T, W - 1, D]
    T,
    n_slots,
    state_row,
    D: tl.constexpr,
    W: tl.constexpr,
    BD: tl.constexpr,
    BIAS: tl.constexpr,
    SILU: tl.constexpr,
    INPLACE: tl.constexpr,
):
    blocks: tl.constexpr = (D + BD - 1) // BD
    n = (tl.program_id(0) // blocks).to(tl.int64)
    channel = tl.program_id(0) % blocks * BD + tl.arange(0, BD)
    known = channel < D
    slot = tl.load(slots + n)
    live = (slot >= 0) & (slot < n_slots)
    limit = tl.where(live, D, 0)  # the window of any other slot is not touched
    x_p = x + n * T * D + channel
    window_p = states + tl.where(live, slot, 0) * state_row + channel

    for i in range(T):
        t = tl.cast(i, tl.int32)
        acc = tl.zeros([BD], tl.float32)
        for w in tl.static_range(W):
            at = t + (w - (W - 1))
            tap = tl.load(weight + channel * W + w, mask=known, other=0.0).to(tl.float32)
            is_new = channel < tl.where(at >= 0, limit, 0)
            is_old = channel < tl.where(at < 0, limit, 0)
            new = tl.load(x_p + at * D, mask=is_new, other=0.0).to(tl.float32)
            old = tl.load(window_p + (W - 1 + at) * D, mask=is_old, other=0.0).to(tl.float32)
            acc += (new + old) * tap
        if BIAS:
            acc += tl.load(bias + channel, mask=known, other=0.0).to(tl.float32)
        if SILU:
            acc = acc / (1.0 + tl.exp(-acc))
        acc = tl.where(channel < limit, acc, 0.0)
        tl.store(y + (n * T + t) * D + channel, acc.to(y.dtype.element_ty), mask=known)
        if not INPLACE:
            for j in tl.static_range(W - 1):
                to = windows + ((n * T + t) * (W - 1) + j) * D + channel
                copy_input(to, x_p, window_p, t + (j + 2 - W), channel, limit, D, W)
    if INPLACE:
        end = tl.cast(T, tl.int32)
        # Oldest first: a row is overwritten only by a later one, which is read just before.
        for j in tl.static_range(W - 1):
            to = window_p + j * D
            copy_input(to, x_p, window_p, end + (j + 1 - W), channel, limit, D, W)


def _run(
    x: torch.Tensor,
    states: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    activation: str | None,
    slots: torch.Tensor,
    windows: torch.Tensor | None,
) -> torch.Tensor:
    launch.refuse_float64("causal_conv1d by slot", x, states, weight, bias)
    checks.no_gradient("causal_conv1d by slot", x, states, weight, bias)
    row_strides("states", states, 1)
    x, weight = x.contiguous(), weight.contiguous()
    y = torch.empty_like(x)
    N, T, D = x.shape
    block = launch.next_power_of_2(D) if launch.INTERPRETED else BD
    programs = N * triton.cdiv(D, block)
    if programs:
        conv_slots_kernel[(programs,)](
            x,
            states,
            weight,
            weight if bias is None else bias.contiguous(),
            slots,
            y,
            y if windows is None else windows,
            T,
            len(states),
            states.stride(0),
            D=D,
            W=weight.shape[1],
            BD=block,
            BIAS=bias is not None,
            SILU=activation == "silu",
            INPLACE=windows is None,
            num_warps=4,
            num_stages=2,
        )
    return y


def causal_conv1d_update_inplace(
    x: torch.Tensor,
    states: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    activation: str | None,
    slots: torch.Tensor,
) -> torch.Tensor:
    """As :func:`kdalab_kernels.causal_conv1d_update_inplace`, for checked arguments."""
    return _run(x, states, weight, bias, activation, slots, None)


def causal_conv1d_verify(
    x: torch.Tensor,
    states: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    activation: str | None,
    slots: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As :func:`kdalab_kernels.causal_conv1d_verify`, for checked arguments."""
    N, T, D = x.shape
    windows = states.new_zeros(N, T, weight.shape[1] - 1, D)
    return _run(x, states, weight, bias, activation, slots, windows), windows


def SPECS() -> list[CompileSpec]:
    """K3's packed q|k|v convolution, D = 3 * 96 * 128."""
    types = dict.fromkeys(("x", "states", "y", "windows"), "*bf16")
    types |= {"weight": "*fp32", "bias": "*fp32", "slots": "*i64"}
    types |= {"T": "i32", "n_slots": "i32", "state_row": "i64"}
    constants = {"D": 36864, "W": 4, "BD": BD, "BIAS": False, "SILU": True}
    return [
        spec("conv_slots", conv_slots_kernel, types, {**constants, "INPLACE": True}),
        spec("conv_slots_verify", conv_slots_kernel, types, {**constants, "INPLACE": False}),
    ]
