"""The token recurrence with states that advance in place, a cacheful of heads at a time."""

import torch

from kdalab_kernels import checks
from kdalab_kernels.call import Activated, KdaCall, KdaResult
from kdalab_kernels.torch_path.tiles import Block, TileGrid

GROUP_BYTES = 1 << 21  # of states: a token passes over them three times, from a cache after once


def fused_recurrent_kda(call: KdaCall) -> KdaResult:
    """The ``torch`` backend of :func:`kdalab_kernels.fused_recurrent_kda`, forward only."""
    checks.no_gradient(
        "fused_recurrent_kda", call.q, call.k, call.v, call.g, call.beta, call.initial_state
    )
    with torch.no_grad():
        return _loop(call, call.activated("torch"))


def advance(
    S: torch.Tensor,
    rows: torch.Tensor,
    read: torch.Tensor,
    write: torch.Tensor,
    decay: torch.Tensor,
    k: torch.Tensor,
) -> None:
    """One token for each of n heads: S and ``read`` and ``write`` change in place.

    The output is read together with the error, from the *decayed* state ``S~``, so that a token
    passes over the state three times instead of four::

        o_t = S_t^T q = S~_t^T q + (q . k) d_t        d_t = beta v - S~_t^T (beta k)

    Args:
        S: ``[n, K, V]``, any strides: ``pool[slot].transpose(-1, -2)`` for a V-first pool. Best
            not larger than ``GROUP_BYTES``.
        rows: ``[n, 2, K]``: scaled q, and beta * k.
        read: ``[n, 2, V]``, any content; becomes rows times ``S~``.
        write: ``[n, 1, V]``: beta * v; becomes d.
        decay: ``[n, K, 1]``: e^g.
        k: ``[n, K, 1]``.

    The output is then ``read[:, :1] + (q . k) * write``.
    """
    torch.bmm(rows, S.mul_(decay), out=read)
    S.addcmul_(k, write.sub_(read[:, 1:]))


def _loop(call: KdaCall, x: Activated) -> KdaResult:
    B, T, HV, V = call.v.shape
    K = call.K
    grid = TileGrid(B, T, 1, call.cu_seqlens, x.q.device)  # a wave is a token
    before, S = _states(call, grid)
    o = torch.empty_like(call.v, memory_format=torch.contiguous_format)
    n = grid.first_tile[-1] * HV
    if not n:
        S.zero_() if before is None else S.copy_(before)
        return call.result(o, grid.unranked(S))
    block = Block(range(len(grid.counts)), 0, tuple(grid.counts), slice(0, grid.first_tile[-1]))

    def tokens(t: torch.Tensor) -> torch.Tensor:
        out = torch.empty((n, 1, t.shape[-1]), dtype=call.dtype, device=t.device)
        grid.load(t, block, out)
        return out

    q, k, write, beta = tokens(x.q), tokens(x.k), tokens(x.v), tokens(x.beta[..., None])
    decay = tokens(x.g).exp_().transpose(1, 2)
    write.mul_(beta)
    rows = torch.cat([q.mul_(call.scale), k * beta], dim=1)
    read = torch.empty((n, 2, V), dtype=call.dtype, device=S.device)
    k_T = k.transpose(1, 2)
    states = S.flatten(0, 1)
    source = None if before is None else before.flatten(0, 1)
    size = max(1, GROUP_BYTES // (K * V * S.element_size()))
    for low in range(0, len(states), size):
        state = states[low : low + size]
        state.zero_() if source is None else state.copy_(source[low : low + size])
        spans = _spans(grid, HV, low, low + len(state))
        # Cut once into a view per token: indexing inside the loop would cost as much as the work.
        per_token = [_cut(t, spans) for t in (rows, read, write, decay, k_T)]
        for row, both, delta, a, k_t in zip(*per_token, strict=True):
            if len(a) < len(state):  # the shortest sequences have ended
                state = state[: len(a)]
            advance(state, row, both, delta, a, k_t)
    grid.store(read[:, :1], write.mul_(torch.bmm(q, k_T)), block, o)
    return call.result(o, grid.unranked(S))


def _states(call: KdaCall, grid: TileGrid) -> tuple[torch.Tensor | None, torch.Tensor]:
    """Initial states by rank, or None for zeros, and room for the final ones.

    Both ``[N, HV, K, V]``; the memory behind has the layout that the caller asked for.
    """
    K, V = call.K, call.V
    shape = (V, K) if call.state_v_first else (K, V)
    S = torch.empty((call.N, call.HV, *shape), dtype=call.dtype, device=call.q.device)
    before = call.initial_state
    if before is not None:
        before = grid.ranked(before)
    if call.state_v_first:
        S = S.transpose(-1, -2)
        before = None if before is None else before.transpose(-1, -2)
    return before, S


def _spans(grid: TileGrid, HV: int, low: int, high: int) -> list[tuple[int, int]]:
    """(first row, rows) of every token's rows that belong to the heads [low, high)."""
    waves = zip(grid.first_tile, grid.counts, strict=False)
    return [
        (first * HV + low, min(count * HV, high) - low)
        for first, count in waves
        if count * HV > low
    ]


def _cut(t: torch.Tensor, spans: list[tuple[int, int]]) -> tuple[torch.Tensor, ...]:
    """A view of t's rows for every span."""
    if sum(rows for _, rows in spans) == len(t):
        return t.split([rows for _, rows in spans])
    return tuple(t.narrow(0, first, rows) for first, rows in spans)
