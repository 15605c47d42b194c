"""The two forget gates: from the pre-activation f to the natural-log decay g <= 0."""

import math
from itertools import pairwise

import torch

from kdalab_kernels import checks


def _precision(g: torch.Tensor) -> torch.dtype:
    return torch.float64 if g.dtype == torch.float64 else torch.float32


def _rate(A_log: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """``exp(A_log)`` as ``[HV, 1]``, kept finite: ``inf * 0`` would be NaN for a closed gate."""
    return A_log.to(dtype).exp().clamp(max=torch.finfo(dtype).max)[:, None]


def naive_kda_gate(
    g: torch.Tensor,
    A_log: torch.Tensor,
    dt_bias: torch.Tensor | None = None,
    output_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Classic gate: ``-exp(A_log) * softplus(g + dt_bias)`` (Kimi Linear 48B).

    Args:
        g: ``[..., HV, K]`` pre-activation.
        A_log: ``[HV]``.
        dt_bias: ``[HV * K]`` or None.
        output_dtype: float32 when None (float64 for float64 input).
    """
    checks.gate_inputs(g, A_log, dt_bias, None, output_dtype)
    dtype = _precision(g)
    f = g.to(dtype)
    if dt_bias is not None:
        f = f + dt_bias.to(dtype).view(g.shape[-2:])
    return (-_rate(A_log, dtype) * torch.nn.functional.softplus(f)).to(output_dtype or dtype)


def naive_kda_lowerbound_gate(
    g: torch.Tensor,
    A_log: torch.Tensor | None = None,
    dt_bias: torch.Tensor | None = None,
    lower_bound: float = -5.0,
    output_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Lower-bound gate: ``lower_bound * sigmoid(exp(A_log) * (g + dt_bias))`` (Kimi K3).

    ``A_log=None`` means a rate of 1. Arguments otherwise as :func:`naive_kda_gate`.
    """
    checks.bound(lower_bound, required=True)
    checks.gate_inputs(g, A_log, dt_bias, lower_bound, output_dtype)
    dtype = _precision(g)
    f = g.to(dtype)
    if dt_bias is not None:
        f = f + dt_bias.to(dtype).view(g.shape[-2:])
    if A_log is not None:
        f = _rate(A_log, dtype) * f
    return (lower_bound * torch.sigmoid(f)).to(output_dtype or dtype)


def fused_kda_gate(
    g: torch.Tensor,
    A_log: torch.Tensor | None,
    dt_bias: torch.Tensor | None,
    lower_bound: float | None,
    output_dtype: torch.dtype | None,
) -> torch.Tensor:
    """The ``reference`` backend: the lower bound chooses the gate."""
    if lower_bound is None:
        assert A_log is not None
        return naive_kda_gate(g, A_log, dt_bias, output_dtype)
    return naive_kda_lowerbound_gate(g, A_log, dt_bias, lower_bound, output_dtype)


def beta_sigmoid(logits: torch.Tensor) -> torch.Tensor:
    """Write strength in (0, 1) from logits."""
    return torch.sigmoid(logits)


def kda_gate_chunk_cumsum(
    g: torch.Tensor,
    A_log: torch.Tensor | None,
    dt_bias: torch.Tensor | None,
    lower_bound: float | None,
    chunk_size: int,
    cu_seqlens: list[int] | None,
) -> torch.Tensor:
    """The ``reference`` backend: the gate, then one running sum after another, in base 2."""
    dtype = _precision(g)
    if A_log is None and lower_bound is None:
        decay = g.to(dtype)
    else:
        decay = fused_kda_gate(g, A_log, dt_bias, lower_bound, dtype)
    offsets = [0, g.shape[1]] if cu_seqlens is None else cu_seqlens
    pieces = [decay[:, :0]]
    for start, end in pairwise(offsets):
        for t in range(start, end, chunk_size):
            pieces.append(decay[:, t : min(t + chunk_size, end)].cumsum(1))
    return torch.cat(pieces, dim=1) / math.log(2.0)
