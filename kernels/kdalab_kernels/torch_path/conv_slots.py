"""Short convolution against a pool of windows: all rows at once, windows gathered and scattered."""

import torch

from kdalab_kernels.torch_path.conv import causal_conv1d_update


def _rows(slots: torch.Tensor) -> torch.Tensor:
    """The rows that take part."""
    return (slots >= 0).nonzero()[:, 0]


def causal_conv1d_update_inplace(
    x: torch.Tensor,
    states: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    activation: str | None,
    slots: torch.Tensor,
) -> torch.Tensor:
    """As :func:`kdalab_kernels.causal_conv1d_update_inplace`, for checked arguments.

    Taps are multiplied and added element by element, so a row's bits do not depend on its place.
    """
    rows = _rows(slots)
    if len(rows) == len(slots):
        y, states[slots] = causal_conv1d_update(x, states[slots], weight, bias, activation)
        return y
    used = slots[rows]
    y = torch.zeros_like(x, memory_format=torch.contiguous_format)
    y[rows], states[used] = causal_conv1d_update(x[rows], states[used], weight, bias, activation)
    return y


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
    W = weight.shape[1]
    rows = _rows(slots)
    before = states[slots[rows]]
    y = torch.zeros_like(x, memory_format=torch.contiguous_format)
    y[rows], _ = causal_conv1d_update(x[rows], before, weight, bias, activation)
    history = torch.cat([before, x[rows].to(states.dtype)], dim=1)
    windows = states.new_zeros(N, T, W - 1, D)
    for t in range(T):
        windows[rows, t] = history[:, t + 1 : t + W]
    return y, windows
