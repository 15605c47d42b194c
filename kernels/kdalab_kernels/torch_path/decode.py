"""Decode against a pool of states: each sequence advances in its own slot, heads in cached blocks.

A sequence is a call of its own, with shapes that only the model decides. So its bits cannot depend
on the rest of the batch, and a block of heads stays in the cache between its three passes.
"""

from collections.abc import Iterator

import torch

from kdalab_kernels import checks
from kdalab_kernels.call import KdaCall

BLOCK_BYTES = 1 << 21
"""State of the heads that are advanced together: small enough to stay cached between the passes,
large enough that the calls cost little (measured: 32 heads of 64 KiB beat 16 and 64)."""


class _Rows:
    """Inputs of every row after activation, head-major: one view per row and token is a block."""

    def __init__(self, call: KdaCall) -> None:
        x = call.activated("torch")
        heads = call.HV // call.q.shape[2]

        def wide(t: torch.Tensor) -> torch.Tensor:
            return t.to(call.dtype)

        q, k = wide(x.q) * call.scale, wide(x.k)
        if heads > 1:
            q, k = q.repeat_interleave(heads, 2), k.repeat_interleave(heads, 2)
        beta = wide(x.beta)[..., None]
        self.k = k.unsqueeze(3)  # [N, T, HV, 1, K]
        self.decay = wide(x.g).exp().unsqueeze(3)  # [N, T, HV, 1, K]
        self.queries = torch.stack([q, k * beta], dim=3)  # [N, T, HV, 2, K]
        self.written = (wide(x.v) * beta).unsqueeze(4)  # [N, T, HV, V, 1]
        self.qk = (q * k).sum(-1, keepdim=True)  # [N, T, HV, 1]


def _blocks(HV: int, V: int, K: int) -> Iterator[slice]:
    step = max(1, BLOCK_BYTES // (V * K * 4))
    for start in range(0, HV, step):
        yield slice(start, start + step)


def _advance(
    rows: _Rows, n: int, heads: slice, S: torch.Tensor, o: torch.Tensor, kept: torch.Tensor | None
) -> None:
    """Row n's tokens through S ``[heads, V, K]``, in place; o ``[T, heads, V]``.

    As in :mod:`.recurrent` the output is read together with the error, from the decayed state.
    """
    for t in range(o.shape[0]):
        read = torch.bmm(rows.queries[n, t, heads], S.mul_(rows.decay[n, t, heads]).transpose(1, 2))
        delta = rows.written[n, t, heads] - read[:, 1, :, None]
        S.addcmul_(delta, rows.k[n, t, heads])
        o[t] = torch.addcmul(read[:, 0], rows.qk[n, t, heads], delta[..., 0])
        if kept is not None:
            kept[t] = S


def fused_recurrent_kda_inplace(
    call: KdaCall, states: torch.Tensor, slots: torch.Tensor
) -> torch.Tensor:
    """As :func:`kdalab_kernels.fused_recurrent_kda_inplace`, for checked arguments."""
    checks.no_gradient(
        "fused_recurrent_kda_inplace", call.q, call.k, call.v, call.g, call.beta, states
    )
    o = torch.zeros_like(call.v, memory_format=torch.contiguous_format)
    with torch.no_grad():
        rows = _Rows(call)
        for n, slot in enumerate(slots.tolist()):
            if slot < 0:
                continue
            for heads in _blocks(*states.shape[1:]):
                S = states[slot, heads]
                wide = S.to(call.dtype)  # S itself where the pool has the dtype of the arithmetic
                _advance(rows, n, heads, wide, o[n, :, heads], None)
                if wide is not S:
                    S.copy_(wide)
    return o


def fused_recurrent_kda_verify(
    call: KdaCall, states: torch.Tensor, slots: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """As :func:`kdalab_kernels.fused_recurrent_kda_verify`, for checked arguments."""
    checks.no_gradient(
        "fused_recurrent_kda_verify", call.q, call.k, call.v, call.g, call.beta, states
    )
    N, T = call.q.shape[:2]
    o = torch.zeros_like(call.v, memory_format=torch.contiguous_format)
    kept = torch.empty((N, T, *states.shape[1:]), dtype=states.dtype, device=states.device)
    with torch.no_grad():
        rows = _Rows(call)
        for n, slot in enumerate(slots.tolist()):
            if slot < 0:
                kept[n] = 0
                continue
            for heads in _blocks(*states.shape[1:]):
                S = states[slot, heads].to(call.dtype, copy=True)
                _advance(rows, n, heads, S, o[n, :, heads], kept[n, :, heads])
    return o, kept


def commit_verified_inplace(
    states: torch.Tensor,
    conv_states: torch.Tensor,
    slots: torch.Tensor,
    intermediate: torch.Tensor,
    conv_windows: torch.Tensor,
    accepted: torch.Tensor,
) -> None:
    """As :func:`kdalab_kernels.commit_verified_inplace`, for checked arguments."""
    for n, (slot, j) in enumerate(zip(slots.tolist(), accepted.tolist(), strict=True)):
        if slot >= 0 and j > 0:
            states[slot] = intermediate[n, j - 1]
            conv_states[slot] = conv_windows[n, j - 1]
