"""Root-mean-square norms, computed in fp32 (or fp64) row by row."""

from __future__ import annotations

import torch

from kdalab_kernels import sigmoid


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """``weight * x / sqrt(mean(x^2) + eps)`` over the last axis, in x's dtype."""
    wide = x if x.dtype == torch.float64 else x.float()
    scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return weight * (wide * scale).to(x.dtype)


def gated_rms_norm(
    x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, eps: float
) -> torch.Tensor:
    """KDA's output norm: ``rms_norm(x) * sigmoid(gate)``, per head over V (Kimi Linear report)."""
    return rms_norm(x, weight, eps) * sigmoid(gate)
