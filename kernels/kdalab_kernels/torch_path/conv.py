"""Depthwise causal short convolution as W shifted products."""

import torch

from kdalab_kernels.torch_path.elementwise import silu


def _span(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    activation: str | None,
    state: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """x ``[N, T, D]`` with state ``[N, W - 1, D]``.

    One multiplication and one addition per tap, each rounded on its own: a fused multiply-add
    could be used in one shape and not in another, and the result would depend on the cut.
    """
    T, W = x.shape[1], weight.shape[1]
    dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
    history = torch.cat([state.to(dtype), x.to(dtype)], dim=1)
    taps = weight.to(dtype).t().contiguous()
    y = history[:, :T] * taps[0]
    for w in range(1, W):
        y += history[:, w : w + T] * taps[w]
    if bias is not None:
        y += bias.to(dtype)
    if activation == "silu":
        y = silu(y)
    if T >= W - 1:
        kept = x[:, T - (W - 1) :].to(state.dtype, copy=True)
    else:
        kept = torch.cat([state[:, T:], x.to(state.dtype)], dim=1)
    return y.to(x.dtype), kept.contiguous()


def causal_conv1d(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    activation: str | None,
    state: torch.Tensor,
    cu_seqlens: list[int] | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As :func:`kdalab_kernels.causal_conv1d`, for checked arguments.

    Packed sequences run as one: every sequence gets W-1 rows of its own history in front, so that
    no window reaches into a neighbour, and the outputs of those rows are dropped.
    """
    if cu_seqlens is None:
        return _span(x, weight, bias, activation, state)
    W, N = weight.shape[1], len(cu_seqlens) - 1
    if N == 0:
        return torch.zeros_like(x), state.clone()
    offsets = torch.tensor(cu_seqlens, device=x.device)
    lengths = offsets.diff()
    token = torch.arange(x.shape[1], device=x.device)
    owner = torch.repeat_interleave(torch.arange(N, device=x.device), lengths)
    row = token + (owner + 1) * (W - 1)  # where each token sits once the histories are in
    start = offsets[:-1] + torch.arange(N, device=x.device) * (W - 1)
    before = start[:, None] + torch.arange(W - 1, device=x.device)
    dtype = torch.promote_types(x.dtype, state.dtype)
    packed = torch.empty(x.shape[1] + N * (W - 1), x.shape[2], dtype=dtype, device=x.device)
    packed[row] = x[0].to(dtype)
    packed[before.flatten()] = state.to(dtype).flatten(0, 1)
    head, rest = packed[None, : W - 1], packed[None, W - 1 :]
    y, _ = _span(rest, weight, bias, activation, head)
    last = (start + lengths)[:, None] + torch.arange(W - 1, device=x.device)
    final = packed[last.flatten()].view_as(state).to(state.dtype)
    return y[:, row - (W - 1)].to(x.dtype), final


def causal_conv1d_update(
    x: torch.Tensor,
    state: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    activation: str | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As :func:`kdalab_kernels.causal_conv1d_update`, for checked arguments, x ``[N, T, D]``."""
    return _span(x, weight, bias, activation, state)
