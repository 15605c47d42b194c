"""Public activations whose bits do not depend on an element's place in its tensor.

A network that must give a token the same bits alone and in a batch uses these in place of
``torch.sigmoid`` and ``torch.nn.functional.silu``, which do not;
:mod:`kdalab_kernels.torch_path.elementwise` says why.
"""

import torch

from kdalab_kernels import checks
from kdalab_kernels.torch_path import elementwise

__all__ = ["sigmoid", "silu", "tanh"]


def sigmoid(x: torch.Tensor) -> torch.Tensor:
    """``1 / (1 + exp(-x))`` of a floating tensor; exact 0 and 1 at the ends."""
    return elementwise.sigmoid(checks.floating("x", x))


def silu(x: torch.Tensor) -> torch.Tensor:
    """``x / (1 + exp(-x))`` of a floating tensor."""
    return elementwise.silu(checks.floating("x", x))


def tanh(x: torch.Tensor) -> torch.Tensor:
    """``torch.tanh`` of a floating tensor."""
    return elementwise.tanh(checks.floating("x", x))
