"""The chunkwise form, written for reading: every decay between two tokens is formed exactly."""

import torch

from kdalab_kernels import checks
from kdalab_kernels.call import KdaCall, KdaResult
from kdalab_kernels.reference.recurrent import accumulation_dtype


def pairwise_decay(g: torch.Tensor) -> torch.Tensor:
    """``D[i, j] = exp(sum of g over tokens j+1 .. i)`` for i >= j, and 0 above the diagonal.

    Every exponent is a sum of same-sign terms, so nothing cancels, and it is masked *before*
    ``exp``: an unbounded gate gives 0, never ``inf`` and never ``0 * inf`` in a gradient.

    Args:
        g: ``[..., C, K]`` natural-log decay, at most 0.

    Returns:
        ``[..., C, C, K]``.
    """
    C = g.shape[-2]
    i = torch.arange(C, device=g.device)
    later = (i[:, None] > i[None, :])[..., None]
    since_j = torch.where(later, g[..., :, None, :], 0.0).cumsum(-3)
    causal = (i[:, None] >= i[None, :])[..., None]
    return torch.where(causal, since_j, 0.0).exp() * causal


def one_chunk(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    S: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One chunk of any length C; axes ``[B, HV, C, ...]``, q scaled, S ``[B, HV, K, V]``.

    The names are those of the Kimi Linear report, section 3: the unit-lower-triangular system
    ``(I + Akk) N = beta * (V - (K . gamma) S)`` gives the pseudo values N (the "UT transform").

    Returns:
        ``O [B, HV, C, V]`` and the state after the chunk.
    """
    D = pairwise_decay(g)
    gamma = D[..., :, 0, :] * g[..., :1, :].exp()  # decay from the chunk's start to row i
    to_end = D[..., -1, :, :]  # decay from row j to the chunk's end
    Akk = torch.einsum("bhic,bhjc,bhijc->bhij", k, k, D).tril(-1) * beta[..., None]
    Aqk = torch.einsum("bhic,bhjc,bhijc->bhij", q, k, D)
    unit = torch.eye(g.shape[-2], dtype=g.dtype, device=g.device)
    rhs = beta[..., None] * (v - (k * gamma) @ S)
    N = torch.linalg.solve_triangular(unit + Akk, rhs, upper=False, unitriangular=True)
    O = (q * gamma) @ S + Aqk @ N
    S = gamma[..., -1, :, None] * S + (k * to_end).transpose(-1, -2) @ N
    return O, S


def naive_chunk_kda(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    scale: float | None = None,
    initial_state: torch.Tensor | None = None,
    output_final_state: bool = False,
    chunk_size: int = 64,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The chunkwise form of :func:`naive_recurrent_kda`; T may be any length (a short last chunk).

    Shapes and results as there. Differentiable. Memory: ``B * HV * C * C * K`` numbers per chunk.
    """
    checks.token_inputs(q, k, v, g, beta, initial_state)
    checks.flag("output_final_state", output_final_state)
    scale, chunk_size = checks.scale(scale), checks.integer("chunk_size", chunk_size, 1)
    o, S, _ = chunks_with_starts(q, k, v, g, beta, scale, initial_state, chunk_size)
    return o, (S if output_final_state else None)


def chunks_with_starts(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    scale: float | None,
    initial_state: torch.Tensor | None,
    chunk_size: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """``(o, final state, states at chunk starts [B, NT, HV, K, V])``."""
    B, T, H, K = q.shape
    HV, V = v.shape[2:]
    dtype = accumulation_dtype(q, k, v, g, beta, initial_state)
    scale = K**-0.5 if scale is None else scale
    Q, Kt, Vt, gt, bt = (x.to(dtype).transpose(1, 2) for x in (q, k, v, g, beta))
    Q = Q.repeat_interleave(HV // H, dim=1) * scale
    Kt = Kt.repeat_interleave(HV // H, dim=1)
    if initial_state is None:
        S = Q.new_zeros(B, HV, K, V)
    else:
        S = initial_state.to(dtype).clone()
    starts, outputs = [], []
    for t in range(0, T, chunk_size):
        c = slice(t, t + chunk_size)
        starts.append(S)
        O, S = one_chunk(Q[:, :, c], Kt[:, :, c], Vt[:, :, c], gt[:, :, c], bt[:, :, c], S)
        outputs.append(O)
    if not outputs:
        return v.new_zeros(B, 0, HV, V), S, S.new_zeros(B, 0, HV, K, V)
    o = torch.cat(outputs, dim=2).transpose(1, 2).to(v.dtype)
    return o, S, torch.stack(starts, dim=1)


def chunk_kda(call: KdaCall) -> KdaResult:
    """The ``reference`` backend: one sequence after another through the chunkwise form."""
    x = call.activated("reference")
    states = call.initial_states_k_first()
    outputs, finals, starts = [], [], []
    for n, (row, span) in enumerate(call.sequences()):
        q, k, v, g, beta = (t[row, span] for t in x)
        o, S, h = chunks_with_starts(
            q, k, v, g, beta, call.scale, states[n : n + 1], call.chunk_size
        )
        outputs.append(o)
        finals.append(S)
        starts.append(h)
    if starts:
        h = torch.cat(starts, dim=0 if call.cu_seqlens is None else 1)
    else:
        h = states.new_zeros(call.v.shape[0], 0, *states.shape[1:])
    return call.result(call.join(outputs), torch.cat([states[:0], *finals]), h)
