"""The public ops around the recurrence: gate, short convolution, l2 norm."""

import torch

from kdalab_kernels import checks
from kdalab_kernels.call import L2NORM_EPS
from kdalab_kernels.dispatch import implementation


def fused_kda_gate(
    g: torch.Tensor,
    A_log: torch.Tensor | None = None,
    dt_bias: torch.Tensor | None = None,
    lower_bound: float | None = None,
    output_dtype: torch.dtype | None = None,
    *,
    backend: str = "auto",
) -> torch.Tensor:
    """Natural-log decay from the gate's pre-activation (as ``fla.ops.kda.gate.fused_kda_gate``).

    Args:
        g: ``[..., HV, K]`` pre-activation.
        A_log: ``[HV]``; may be None with a lower bound (a rate of 1).
        dt_bias: ``[HV * K]`` or None.
        lower_bound: None for the classic gate ``-exp(A_log) * softplus(g + dt_bias)``, else the
            gate ``lower_bound * sigmoid(exp(A_log) * (g + dt_bias))``.
        output_dtype: float32 when None (float64 for float64 g).

    Returns:
        ``[..., HV, K]``, every value at most 0.
    """
    checks.gate_inputs(g, A_log, dt_bias, lower_bound, output_dtype)
    run = implementation("fused_kda_gate", backend, g.device, g.dtype)
    out: torch.Tensor = run(g, A_log, dt_bias, lower_bound, output_dtype)
    return out


def kda_gate_chunk_cumsum(
    g: torch.Tensor,
    A_log: torch.Tensor | None = None,
    dt_bias: torch.Tensor | None = None,
    lower_bound: float | None = None,
    chunk_size: int = 64,
    cu_seqlens: torch.Tensor | None = None,
    *,
    backend: str = "auto",
) -> torch.Tensor:
    """The gate and its running sum inside each chunk, in base 2, in one pass.

    ``G_t = sum of log2(e) * gate(g_s)`` over the tokens s of t's chunk up to and with t, so that
    ``2 ** G`` is the decay since the chunk's start (as FLA's function of this name).

    Args:
        g: ``[B, T, HV, K]`` pre-activation; without A_log and lower_bound the log-decay itself.
        A_log, dt_bias, lower_bound: as :func:`fused_kda_gate`.
        chunk_size: tokens, a power of 2 from 1 to 256.
        cu_seqlens: ``[N + 1]`` offsets of N sequences in one row (B = 1), each on its own grid.

    Returns:
        ``[B, T, HV, K]`` float32 (float64 for float64 g), every value at most 0.
    """
    checks.floating("g", g)
    if g.ndim != 4:
        raise ValueError(f"g: expected shape [B, T, HV, K], given {list(g.shape)}")
    checks.one_of("chunk_size", chunk_size, (1, 2, 4, 8, 16, 32, 64, 128, 256))
    if A_log is not None or lower_bound is not None:
        checks.gate_parameters(g.shape[-2], g.shape[-1], A_log, dt_bias, lower_bound)
    elif dt_bias is not None:
        raise ValueError("dt_bias: only read with A_log or lower_bound, given without both")
    else:
        checks.decay_values(g)
    checks.same_place(("g", g), ("A_log", A_log), ("dt_bias", dt_bias))
    offsets = checks.sequence_offsets(cu_seqlens, g.shape[0], g.shape[1])
    run = implementation("kda_gate_chunk_cumsum", backend, g.device, g.dtype)
    out: torch.Tensor = run(g, A_log, dt_bias, lower_bound, chunk_size, offsets)
    return out


def l2norm(x: torch.Tensor, eps: float = L2NORM_EPS, *, backend: str = "auto") -> torch.Tensor:
    """``x / sqrt(sum(x^2) + eps)`` over the last axis, in x's dtype (computed in float32 or 64).

    Raises:
        ValueError: x is no floating tensor, or eps no finite number of at least 0.
    """
    checks.floating("x", x)
    checks.number("eps", eps, 0.0)
    run = implementation("l2norm", backend, x.device, x.dtype)
    if x.ndim < 1:
        raise ValueError("x: expected at least one axis, given a scalar")
    out: torch.Tensor = run(x, eps)
    return out


def causal_conv1d(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    activation: str | None = "silu",
    initial_state: torch.Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: torch.Tensor | None = None,
    *,
    backend: str = "auto",
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Depthwise causal short convolution over any number of tokens.

    ``y_t[d] = act(bias[d] + sum_w weight[d, w] * x_{t - (W - 1) + w}[d])``

    Args:
        x: ``[B, T, D]``.
        weight: ``[D, W]``; the last column meets the newest token.
        bias: ``[D]`` or None.
        activation: ``"silu"`` or None.
        initial_state: ``[N, W - 1, D]``, the W-1 raw inputs before the first token, oldest first
            (time-major, as vLLM and SGLang keep it; FLA keeps W columns); zeros when None.
        output_final_state: also return the state after the last token of each sequence.
        cu_seqlens: ``[N + 1]`` offsets of N sequences in one row (B = 1); empty ones pass through.

    Returns:
        y ``[B, T, D]`` in x's dtype, and the final state in initial_state's (else x's) dtype or
        None. Without activation the bits do not depend on how a sequence was cut into calls.
    """
    checks.floating("x", x)
    run = implementation("causal_conv1d", backend, x.device, x.dtype)
    offsets = None
    if x.ndim < 1:
        raise ValueError("x: expected 3 axes [B, T, D], given a scalar")
    if x.ndim == 3:
        offsets = checks.sequence_offsets(cu_seqlens, x.shape[0], x.shape[1])
    N = x.shape[0] if offsets is None else len(offsets) - 1
    checks.flag("output_final_state", output_final_state)
    checks.conv_inputs(x, weight, bias, activation, initial_state, N, "initial_state")
    if initial_state is None:
        initial_state = x.new_zeros(N, weight.shape[1] - 1, x.shape[2])
    y, state = run(x, weight, bias, activation, initial_state, offsets)
    return y, (state if output_final_state else None)


def causal_conv1d_update(
    x: torch.Tensor,
    state: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    activation: str | None = "silu",
    *,
    backend: str = "auto",
) -> tuple[torch.Tensor, torch.Tensor]:
    """One or several tokens against a kept state; as :func:`causal_conv1d` with that state.

    Args:
        x: ``[N, D]`` for one token each, or ``[N, T, D]``.
        state: ``[N, W - 1, D]``; not changed, the new one is returned.
        weight, bias, activation: as in :func:`causal_conv1d`.

    Returns:
        y in x's shape and dtype, and the new state ``[N, W - 1, D]`` in state's dtype.
    """
    single = checks.floating("x", x).ndim == 2
    run = implementation("causal_conv1d_update", backend, x.device, x.dtype)
    x3 = x[:, None] if single else x
    if state is None:
        raise ValueError("state: expected shape [N, W - 1, D], given None")
    checks.conv_inputs(x3, weight, bias, activation, state)
    y, new_state = run(x3, state, weight, bias, activation)
    return (y[:, 0] if single else y), new_state
