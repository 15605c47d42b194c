"""The token recurrence: the definition of Kimi Delta Attention, one token at a time."""

import torch

from kdalab_kernels import checks
from kdalab_kernels.call import KdaCall, KdaResult


def accumulation_dtype(*tensors: torch.Tensor | None) -> torch.dtype:
    """float64 as soon as one input is float64, else float32 (never less)."""
    if any(x is not None and x.dtype == torch.float64 for x in tensors):
        return torch.float64
    return torch.float32


def naive_recurrent_kda(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    scale: float | None = None,
    initial_state: torch.Tensor | None = None,
    output_final_state: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Decay, then write the delta, then read (Kimi Linear report, section 3).

    Per head, with the state ``S`` a ``[K, V]`` matrix::

        S~_t = Diag(exp(g_t)) S_{t-1}
        d_t  = beta_t * (v_t - S~_t^T k_t)
        S_t  = S~_t + k_t d_t^T
        o_t  = S_t^T (scale * q_t)

    Differentiable; every step makes new tensors.

    Args:
        q, k: ``[B, T, H, K]``.
        v: ``[B, T, HV, V]``; query and key head ``hv // (HV // H)`` serves value head ``hv``.
        g: ``[B, T, HV, K]``, natural-log decay, at most 0.
        beta: ``[B, T, HV]``, write strength.
        scale: factor on q, ``K ** -0.5`` when None.
        initial_state: ``[B, HV, K, V]``, zeros when None.
        output_final_state: also return the state after the last token.

    Returns:
        ``o [B, T, HV, V]`` in v's dtype and ``S [B, HV, K, V]`` (float32, or float64 when any
        input is) or None.
    """
    checks.token_inputs(q, k, v, g, beta, initial_state)
    checks.flag("output_final_state", output_final_state)
    scale = checks.scale(scale)
    B, T, H, K = q.shape
    HV, V = v.shape[2:]
    dtype = accumulation_dtype(q, k, v, g, beta, initial_state)
    scale = K**-0.5 if scale is None else scale
    Q = q.to(dtype).repeat_interleave(HV // H, dim=2) * scale
    Kt = k.to(dtype).repeat_interleave(HV // H, dim=2)
    Vt, a, b = v.to(dtype), g.to(dtype).exp(), beta.to(dtype)
    if initial_state is None:
        S = Q.new_zeros(B, HV, K, V)
    else:
        S = initial_state.to(dtype).clone()
    rows = []
    for t in range(T):
        decayed = a[:, t, :, :, None] * S
        error = Vt[:, t] - torch.einsum("bhkv,bhk->bhv", decayed, Kt[:, t])
        delta = b[:, t, :, None] * error
        S = decayed + Kt[:, t, :, :, None] * delta[:, :, None, :]
        rows.append(torch.einsum("bhkv,bhk->bhv", S, Q[:, t]))
    o = torch.stack(rows, dim=1) if rows else Q.new_zeros(B, 0, HV, V)
    return o.to(v.dtype), (S if output_final_state else None)


def fused_recurrent_kda(call: KdaCall) -> KdaResult:
    """The ``reference`` backend: one sequence after another through the recurrence."""
    x = call.activated("reference")
    states = call.initial_states_k_first()
    outputs, finals = [], []
    for n, (row, span) in enumerate(call.sequences()):
        q, k, v, g, beta = (t[row, span] for t in x)
        o, S = naive_recurrent_kda(q, k, v, g, beta, call.scale, states[n : n + 1], True)
        assert S is not None
        outputs.append(o)
        finals.append(S)
    return call.result(call.join(outputs), torch.cat([states[:0], *finals]))
