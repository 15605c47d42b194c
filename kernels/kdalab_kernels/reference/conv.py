"""Depthwise causal short convolution, token by token, with its state."""

from itertools import pairwise

import torch

from kdalab_kernels import checks


def naive_causal_conv1d(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    state: torch.Tensor,
    activation: str | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``y_t[d] = act(bias[d] + sum_w weight[d, w] * x_{t - (W-1) + w}[d])``.

    Args:
        x: ``[N, T, D]``.
        weight: ``[D, W]``; column ``W - 1`` meets the newest input.
        bias: ``[D]`` or None.
        state: ``[N, W - 1, D]``, the last W-1 raw inputs before x, oldest first.
        activation: ``"silu"`` or None.

    Returns:
        y ``[N, T, D]`` and the new state; a piece shorter than W-1 keeps the older rows.
    """
    checks.floating("state", state)
    checks.conv_inputs(x, weight, bias, activation, state)
    W = weight.shape[1]
    dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
    window = [row.to(dtype) for row in state.unbind(1)]
    raw = list(state.unbind(1))
    rows = []
    for x_t in x.unbind(1):
        window.append(x_t.to(dtype))
        raw.append(x_t.to(state.dtype))
        y = torch.stack(window[len(window) - W :], dim=-1).mul(weight.to(dtype)).sum(-1)
        if bias is not None:
            y = y + bias.to(dtype)
        rows.append((torch.nn.functional.silu(y) if activation == "silu" else y).to(x.dtype))
    y = torch.stack(rows, dim=1) if rows else x.new_zeros(x.shape)
    last = raw[len(raw) - (W - 1) :]
    return y, (torch.stack(last, dim=1) if last else state.clone())


def causal_conv1d(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    activation: str | None,
    state: torch.Tensor,
    cu_seqlens: list[int] | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The ``reference`` backend: one sequence after another."""
    if cu_seqlens is None:
        return naive_causal_conv1d(x, weight, bias, state, activation)
    outputs, finals = [x[:, :0]], [state[:0]]
    for n, (start, end) in enumerate(pairwise(cu_seqlens)):
        y, s = naive_causal_conv1d(x[:, start:end], weight, bias, state[n : n + 1], activation)
        outputs.append(y)
        finals.append(s)
    return torch.cat(outputs, dim=1), torch.cat(finals)


def causal_conv1d_update(
    x: torch.Tensor,
    state: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    activation: str | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The ``reference`` backend of a decode step of one or several tokens, x ``[N, T, D]``."""
    return naive_causal_conv1d(x, weight, bias, state, activation)
