"""The public ops of Kimi Delta Attention: check, then hand to one backend.

Names, argument names and defaults follow FLA (``fla.ops.kda``), so that both can be held side by
side. Left out: what only training needs (recompute, context parallel, graph capture).
Axes: B batch, T tokens, H query/key heads, HV value heads, K and V head dimensions, N sequences.
"""

from typing import Any

import torch

from kdalab_kernels import checks
from kdalab_kernels.call import KdaCall, KdaResult
from kdalab_kernels.dispatch import implementation

CHUNK_SIZES = (16, 32, 64)
SAFE_BOUND = -5.0  # the lowest gate for which FLA has a faster kernel


def chunk_kda(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    scale: float | None = None,
    initial_state: torch.Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    safe_gate: bool = False,
    lower_bound: float | None = None,
    return_intermediate_states: bool = False,
    state_v_first: bool = False,
    cu_seqlens: torch.Tensor | None = None,
    *,
    A_log: torch.Tensor | None = None,
    dt_bias: torch.Tensor | None = None,
    chunk_size: int = 64,
    backend: str = "auto",
) -> tuple[Any, ...]:
    """Kimi Delta Attention over many tokens, chunk by chunk (prefill).

    Args:
        q, k: ``[B, T, H, K]``, K at most 256.
        v: ``[B, T, HV, V]``, HV a multiple of H; head ``hv`` reads key head ``hv // (HV // H)``.
        g: ``[B, T, HV, K]`` natural-log decay at most 0, or the raw pre-activation with
            use_gate_in_kernel. Unbounded: -1000 or -inf per token is exact.
        beta: ``[B, T, HV]`` write strength in [0, 1] (in [0, 2] with allow_neg_eigval), or logits
            with use_beta_sigmoid_in_kernel.
        scale: factor on q; ``K ** -0.5`` when None.
        initial_state: ``[N, HV, K, V]`` float32 (float64 with float64 inputs); zeros when None.
        output_final_state: also return the state after each sequence's last token.
        use_qk_l2norm_in_kernel: normalise q and k, eps 1e-6 inside the root.
        use_gate_in_kernel: ``g = -exp(A_log) * softplus(g + dt_bias)``; with lower_bound
            ``lower_bound * sigmoid(exp(A_log) * (g + dt_bias))``, where A_log may be None.
        allow_neg_eigval: eigenvalues down to -1. ``beta = 2 * sigmoid(beta)`` with
            use_beta_sigmoid_in_kernel; without (FLA refuses that), beta is ready and may reach 2.
        safe_gate: FLA's promise that gates stay in [lower_bound, 0), which selects a faster kernel
            there. Here it is checked and changes nothing: the arithmetic is safe for any gate. The
            bound is -5 when g is ready and lower_bound None; values of g are looked at on CPU.
        lower_bound: below 0; read with use_gate_in_kernel or safe_gate, and refused without both.
        return_intermediate_states: also return the states at chunk *starts*, on each sequence's own
            chunk grid (chunk 0 is the initial state), in the state's dtype.
        state_v_first: states are ``[.., V, K]`` instead of ``[.., K, V]``, going in and coming out.
        cu_seqlens: ``[N + 1]`` token offsets of N sequences in one row (B = 1); empty ones allowed.
        A_log, dt_bias: ``[HV]`` and ``[HV * K]``, for use_gate_in_kernel.
        chunk_size: 16, 32 or 64 tokens: the grid of the intermediate states.
        backend: ``auto``, ``torch``, ``triton`` or ``reference``.

    Returns:
        ``(o, final_state)``, and with return_intermediate_states ``(o, final_state, h)``:
        o ``[B, T, HV, V]`` in v's dtype; final_state ``[N, HV, K, V]`` or None;
        h ``[B, NT, HV, K, V]``, NT the chunks of a row (all sequences' chunks with cu_seqlens).

    Raises:
        ValueError: naming the argument, what was expected and what was given.
    """
    checks.qkvgb(q, k, v, g, beta)
    run = implementation("chunk_kda", backend, q.device, q.dtype)
    checks.one_of("chunk_size", chunk_size, CHUNK_SIZES)
    checks.flags(
        safe_gate=safe_gate,
        use_gate_in_kernel=use_gate_in_kernel,
        return_intermediate_states=return_intermediate_states,
    )
    if safe_gate:
        bound = checks.bound(lower_bound)
        if bound is None and not use_gate_in_kernel:
            bound = SAFE_BOUND
        if bound is None or bound < SAFE_BOUND:
            raise ValueError(f"lower_bound: safe_gate expects [-5, 0), given {lower_bound}")
        if not use_gate_in_kernel:
            checks.decay_values(g, bound)
            lower_bound = None  # the promise has been looked at, and no gate is computed
    states = (torch.float32, torch.float64) if q.dtype == torch.float64 else (torch.float32,)
    call = checked_call(
        q=q,
        k=k,
        v=v,
        g=g,
        beta=beta,
        scale=scale,
        initial_state=initial_state,
        output_final_state=output_final_state,
        use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel,
        use_gate_in_kernel=use_gate_in_kernel,
        use_beta_sigmoid_in_kernel=use_beta_sigmoid_in_kernel,
        allow_neg_eigval=allow_neg_eigval,
        lower_bound=lower_bound,
        A_log=A_log,
        dt_bias=dt_bias,
        state_v_first=state_v_first,
        cu_seqlens=cu_seqlens,
        state_dtypes=states,
        return_intermediate_states=return_intermediate_states,
        chunk_size=chunk_size,
    )
    result: KdaResult = run(call)
    if return_intermediate_states:
        return result.o, result.final_state, result.intermediate_states
    return result.o, result.final_state


def fused_recurrent_kda(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    A_log: torch.Tensor | None = None,
    dt_bias: torch.Tensor | None = None,
    scale: float | None = None,
    initial_state: torch.Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    lower_bound: float | None = None,
    state_v_first: bool = False,
    cu_seqlens: torch.Tensor | None = None,
    *,
    backend: str = "auto",
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Kimi Delta Attention token by token (decode and short inputs).

    Arguments and results as :func:`chunk_kda`. initial_state may have any floating dtype; the
    state is kept, and returned, in float32 (float64 for float64 inputs).
    """
    checks.qkvgb(q, k, v, g, beta)
    run = implementation("fused_recurrent_kda", backend, q.device, q.dtype)
    call = checked_call(
        q=q,
        k=k,
        v=v,
        g=g,
        beta=beta,
        scale=scale,
        initial_state=initial_state,
        output_final_state=output_final_state,
        use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel,
        use_gate_in_kernel=use_gate_in_kernel,
        use_beta_sigmoid_in_kernel=use_beta_sigmoid_in_kernel,
        allow_neg_eigval=allow_neg_eigval,
        lower_bound=lower_bound,
        A_log=A_log,
        dt_bias=dt_bias,
        state_v_first=state_v_first,
        cu_seqlens=cu_seqlens,
        state_dtypes=checks.FLOATS,
    )
    result: KdaResult = run(call)
    return result.o, result.final_state


def checked_call(
    *,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    scale: float | None,
    initial_state: torch.Tensor | None,
    output_final_state: bool,
    use_qk_l2norm_in_kernel: bool,
    use_gate_in_kernel: bool,
    use_beta_sigmoid_in_kernel: bool,
    allow_neg_eigval: bool,
    lower_bound: float | None,
    A_log: torch.Tensor | None,
    dt_bias: torch.Tensor | None,
    state_v_first: bool,
    cu_seqlens: torch.Tensor | None,
    state_dtypes: tuple[torch.dtype, ...],
    return_intermediate_states: bool = False,
    chunk_size: int = 64,
) -> KdaCall:
    """The checks that both ops share, after those of the five token inputs."""
    checks.flags(
        output_final_state=output_final_state,
        use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel,
        use_gate_in_kernel=use_gate_in_kernel,
        use_beta_sigmoid_in_kernel=use_beta_sigmoid_in_kernel,
        allow_neg_eigval=allow_neg_eigval,
        state_v_first=state_v_first,
    )
    B, T, _, K = q.shape
    HV, V = v.shape[2:]
    factor = checks.scale(scale)
    offsets = checks.sequence_offsets(cu_seqlens, B, T)
    N = B if offsets is None else len(offsets) - 1
    checks.initial_state(initial_state, N, HV, K, V, state_v_first, state_dtypes)
    if use_gate_in_kernel:
        checks.gate_parameters(HV, K, A_log, dt_bias, lower_bound)
    elif A_log is not None or dt_bias is not None or lower_bound is not None:
        raise ValueError(
            "A_log, dt_bias, lower_bound: only read with use_gate_in_kernel=True, given without it"
        )
    else:
        checks.decay_values(g)
    if use_beta_sigmoid_in_kernel:
        pass  # any logit is a valid one
    else:
        checks.beta_values(beta, most=2 if allow_neg_eigval else 1)
    checks.same_place(
        ("k", k), ("initial_state", initial_state), ("A_log", A_log), ("dt_bias", dt_bias)
    )
    return KdaCall(
        q=q,
        k=k,
        v=v,
        g=g,
        beta=beta,
        scale=K**-0.5 if factor is None else factor,
        initial_state=initial_state,
        output_final_state=output_final_state,
        use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel,
        use_gate_in_kernel=use_gate_in_kernel,
        use_beta_sigmoid_in_kernel=use_beta_sigmoid_in_kernel,
        allow_neg_eigval=allow_neg_eigval,
        lower_bound=lower_bound,
        A_log=A_log,
        dt_bias=dt_bias,
        state_v_first=state_v_first,
        cu_seqlens=offsets,
        return_intermediate_states=return_intermediate_states,
        chunk_size=chunk_size,
    )
