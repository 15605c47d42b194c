"""L2 norm over the head dimension."""

import torch


def l2norm(x: torch.Tensor, eps: float) -> torch.Tensor:
    """``x / sqrt(sum(x^2) + eps)`` over the last axis, as in FLA (eps inside the root).

    Not ``torch.nn.functional.normalize``, which divides by ``max(norm, eps)``: the two differ for
    tiny vectors. Computed in float32 (float64 for float64); returned in x's dtype.
    """
    wide = x if x.dtype == torch.float64 else x.to(torch.float32)
    return (wide / torch.sqrt((wide * wide).sum(-1, keepdim=True) + eps)).to(x.dtype)
