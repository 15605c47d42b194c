"""The two forget gates and beta's sigmoid, with bits that do not depend on position."""

import torch

from kdalab_kernels.torch_path.elementwise import sigmoid, softplus


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
