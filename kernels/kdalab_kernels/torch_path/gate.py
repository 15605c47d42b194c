"""The two forget gates and beta's sigmoid, with bits that do not depend on position."""

from itertools import pairwise

import torch

from kdalab_kernels.torch_path.elementwise import sigmoid, softplus

LOG2_E = 1.4426950408889634


def fused_kda_gate(
    g: torch.Tensor,
    A_log: torch.Tensor | None,
    dt_bias: torch.Tensor | None,
    lower_bound: float | None,
    output_dtype: torch.dtype | None,
) -> torch.Tensor:
    """As :func:`kdalab_kernels.fused_kda_gate`, for checked arguments."""
    dtype = torch.float64 if g.dtype == torch.float64 else torch.float32
    f = g.to(dtype)
    if dt_bias is not None:
        f = f + dt_bias.to(dtype).view(g.shape[-2:])
    rate = None
    if A_log is not None:  # kept finite: inf * softplus(-inf) = inf * 0 would be NaN
        rate = A_log.to(dtype).exp().clamp(max=torch.finfo(dtype).max)[:, None]
    if lower_bound is None:
        assert rate is not None
        out = softplus(f) * -rate
    else:
        out = sigmoid(f if rate is None else f * rate) * lower_bound
    return out.to(output_dtype or dtype)


def beta_sigmoid(logits: torch.Tensor) -> torch.Tensor:
    """Write strength in (0, 1) from logits."""
    return sigmoid(logits)


def kda_gate_chunk_cumsum(
    g: torch.Tensor,
    A_log: torch.Tensor | None,
    dt_bias: torch.Tensor | None,
    lower_bound: float | None,
    chunk_size: int,
    cu_seqlens: list[int] | None,
) -> torch.Tensor:
    """As :func:`kdalab_kernels.kda_gate_chunk_cumsum`, for checked arguments.

    Every sequence is padded to whole chunks, so that one call of cumsum serves all of them.
    """
    dtype = torch.float64 if g.dtype == torch.float64 else torch.float32
    if A_log is None and lower_bound is None:
        decay = g.to(dtype) * LOG2_E
    else:
        decay = fused_kda_gate(g, A_log, dt_bias, lower_bound, dtype).mul_(LOG2_E)
    out = torch.empty_like(decay, memory_format=torch.contiguous_format)
    offsets = [0, g.shape[1]] if cu_seqlens is None else cu_seqlens
    for start, end in pairwise(offsets):
        piece = torch.nn.functional.pad(
            decay[:, start:end], (0, 0, 0, 0, 0, -(end - start) % chunk_size)
        )
        sums = piece.unflatten(1, (-1, chunk_size)).cumsum(2) if end > start else piece[:, :, None]
        out[:, start:end] = sums.flatten(1, 2)[:, : end - start]
    return out
