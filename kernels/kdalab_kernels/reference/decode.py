"""Decode against a pool of states: the specification, one sequence after another."""

import torch

from kdalab_kernels.call import Activated, KdaCall
from kdalab_kernels.reference.recurrent import naive_recurrent_kda


def _token(x: Activated, n: int, t: int, scale: float, S: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """One token of row n through the recurrence; S and the result are ``[HV, K, V]``."""
    q, k, v, g, beta = (tensor[n : n + 1, t : t + 1] for tensor in x)
    o, end = naive_recurrent_kda(q, k, v, g, beta, scale, S[None], True)
    assert end is not None
    return o[0, 0], end[0]


def fused_recurrent_kda_inplace(
    call: KdaCall, states: torch.Tensor, slots: torch.Tensor
) -> torch.Tensor:
    """The ``reference`` backend of the decode step."""
    x = call.activated("reference")
    o = torch.zeros_like(call.v, memory_format=torch.contiguous_format)
    for n, slot in enumerate(slots.tolist()):
        if slot < 0:
            continue
        S = states[slot].to(call.dtype).transpose(-1, -2)
        for t in range(call.q.shape[1]):
            o[n, t], S = _token(x, n, t, call.scale, S)
        states[slot] = S.transpose(-1, -2)
    return o


def fused_recurrent_kda_verify(
    call: KdaCall, states: torch.Tensor, slots: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The ``reference`` backend of the verify step: every state is kept, none is written back."""
    x = call.activated("reference")
    N, T = call.q.shape[:2]
    o = torch.zeros_like(call.v, memory_format=torch.contiguous_format)
    kept = states.new_zeros(N, T, *states.shape[1:])
    for n, slot in enumerate(slots.tolist()):
        if slot < 0:
            continue
        S = states[slot].to(call.dtype).transpose(-1, -2)
        for t in range(T):
            o[n, t], S = _token(x, n, t, call.scale, S)
            kept[n, t] = S.transpose(-1, -2)
    return o, kept


def commit_verified_inplace(
    states: torch.Tensor,
    conv_states: torch.Tensor,
    slots: torch.Tensor,
    intermediate: torch.Tensor,
    conv_windows: torch.Tensor,
    accepted: torch.Tensor,
) -> None:
    """The ``reference`` backend: the state after the last accepted token becomes the slot's."""
    for n, (slot, j) in enumerate(zip(slots.tolist(), accepted.tolist(), strict=True)):
        if slot >= 0 and j > 0:
            states[slot] = intermediate[n, j - 1]
            conv_states[slot] = conv_windows[n, j - 1]
