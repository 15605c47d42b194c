"""Short convolution against a pool of windows: the specification, one token at a time."""

import torch

from kdalab_kernels.reference.conv import naive_causal_conv1d


def causal_conv1d_update_inplace(
    x: torch.Tensor,
    states: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    activation: str | None,
    slots: torch.Tensor,
) -> torch.Tensor:
    """The ``reference`` backend of the decode step, x ``[N, T, D]``."""
    y = torch.zeros_like(x, memory_format=torch.contiguous_format)
    for n, slot in enumerate(slots.tolist()):
        if slot >= 0:
            row, window = naive_causal_conv1d(
                x[n : n + 1], weight, bias, states[slot : slot + 1], activation
            )
            y[n], states[slot] = row[0], window[0]
    return y


def causal_conv1d_verify(
    x: torch.Tensor,
    states: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    activation: str | None,
    slots: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The ``reference`` backend of the verify step: the window after every token is kept."""
    N, T, D = x.shape
    y = torch.zeros_like(x, memory_format=torch.contiguous_format)
    windows = states.new_zeros(N, T, weight.shape[1] - 1, D)
    for n, slot in enumerate(slots.tolist()):
        if slot < 0:
            continue
        window = states[slot : slot + 1]
        for t in range(T):
            row, window = naive_causal_conv1d(
                x[n : n + 1, t : t + 1], weight, bias, window, activation
            )
            y[n, t], windows[n, t] = row[0, 0], window[0]
    return y, windows
