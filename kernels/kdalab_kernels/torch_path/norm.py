"""L2 norm over the head dimension."""

import torch


def l2norm(x: torch.Tensor, eps: float) -> torch.Tensor:
    """As :func:`kdalab_kernels.l2norm`: eps inside the root, float32 arithmetic (64 for 64)."""
    wide = x if x.dtype == torch.float64 else x.to(torch.float32)
    squares = (wide * wide).sum(-1, keepdim=True)
    return (wide / squares.add_(eps).sqrt_()).to(x.dtype)
