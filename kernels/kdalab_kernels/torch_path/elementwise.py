"""Activations whose bits do not depend on where an element stands in its tensor.

torch computes ``sigmoid``, ``silu`` and ``softplus`` with vector code for most of a tensor and with
scalar code for the last few elements, and the two differ in the last bit: one row of a batch would
not equal the same row alone. ``exp``, ``log1p`` and ``tanh`` take one path throughout, and
``+ * /`` are exactly rounded, so everything here is built from those.
"""

import torch


def sigmoid(x: torch.Tensor) -> torch.Tensor:
    """``1 / (1 + exp(-x))``; exact 0 and 1 at the ends (exp overflows to inf, 1/inf is 0)."""
    return torch.neg(x).exp_().add_(1.0).reciprocal_()


def silu(x: torch.Tensor) -> torch.Tensor:
    """``x / (1 + exp(-x))``."""
    return x / torch.neg(x).exp_().add_(1.0)


def softplus(x: torch.Tensor) -> torch.Tensor:
    """``log(1 + exp(x)) = max(x, 0) + log1p(exp(-|x|))``: no overflow, exact 0 far below."""
    return torch.abs(x).neg_().exp_().log1p_().add_(x.clamp(min=0.0))


def tanh(x: torch.Tensor) -> torch.Tensor:
    """``torch.tanh``, which takes one path throughout."""
    return torch.tanh(x)
