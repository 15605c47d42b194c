"""The token recurrence with states that advance in place: four operations per token."""

import torch

from kdalab_kernels import checks
from kdalab_kernels.call import KdaCall, KdaResult
from kdalab_kernels.torch_path.tiles import Block, TileGrid


def fused_recurrent_kda(call: KdaCall) -> KdaResult:
    """The ``torch`` backend of :func:`kdalab_kernels.fused_recurrent_kda`, forward only.

    The output is read together with the error, from the *decayed* state, so that a token touches
    the state three times instead of four::

        o_t = S_t^T q = S~_t^T q + (q . k) d_t
    """
    checks.no_gradient(
        "fused_recurrent_kda", call.q, call.k, call.v, call.g, call.beta, call.initial_state
    )
    with torch.no_grad():
        return _loop(call)


def _loop(call: KdaCall) -> KdaResult:
    x = call.activated("torch")
    B, T, HV, V = call.v.shape
    K = call.K
    grid = TileGrid(B, T, 1, call.cu_seqlens, x.q.device)  # a wave is a token
    S = grid.ranked(call.initial_states_k_first())
    o = torch.empty_like(call.v, memory_format=torch.contiguous_format)
    n = grid.first_tile[-1] * HV
    if n:
        block = Block(range(len(grid.counts)), 0, tuple(grid.counts), slice(0, grid.first_tile[-1]))

        def tokens(t: torch.Tensor) -> torch.Tensor:
            out = torch.empty((n, 1, t.shape[-1]), dtype=call.dtype, device=t.device)
            grid.load(t, block, out)
            return out

        q, k, bv, beta = tokens(x.q), tokens(x.k), tokens(x.v), tokens(x.beta[..., None])
        decay = tokens(x.g).exp_().transpose(1, 2)
        bv.mul_(beta)
        rows = torch.cat([q.mul_(call.scale), k * beta], dim=1)
        read = torch.empty((n, 2, V), dtype=call.dtype, device=S.device)
        k_T = k.transpose(1, 2)
        # Cut once into one view per token: indexing inside the loop would cost as much as the work.
        sizes = [count * HV for count in grid.counts]
        per_token = [t.split(sizes) for t in (rows, read, read[:, 1:], bv, decay, k_T)]
        states = S.view(-1, K, V)
        state = states[: sizes[0]]
        for row, both, old, delta, a, k_t in zip(*per_token, strict=True):
            if len(a) < len(state):  # the shortest sequences have ended
                state = states[: len(a)]
            torch.bmm(row, state.mul_(a), out=both)
            state.addcmul_(k_t, delta.sub_(old))
        qk = torch.bmm(q, k_T)
        grid.store(torch.addcmul(read[:, :1], qk, bv), block, o)
    return call.result(o, grid.unranked(S))
