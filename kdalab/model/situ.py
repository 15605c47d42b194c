"""The gated activations of the feed-forward layers: SwiGLU, and Kimi K3's SiTU-GLU.

Both take what two projections of the same input gave, ``gate`` and ``up``, of any shape.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from kdalab.model.config import KimiLinearConfig
from kdalab_kernels import sigmoid, silu, tanh

Activation = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""(gate, up) -> hidden, element by element."""


def swiglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """``silu(gate) * up``."""
    return silu(gate) * up


def situ_glu(
    gate: torch.Tensor, up: torch.Tensor, beta: float, linear_beta: float | None
) -> torch.Tensor:
    """``[b1 tanh(gate / b1) sigmoid(gate)] * [b2 tanh(up / b2)]`` (Kimi K3 report).

    The sigmoid sees the gate as it is. What comes out stays within ``b1 * b2``; near 0, and for
    betas that grow without end, it is SwiGLU. Computed in fp32 (or fp64) and rounded once.

    Args:
        beta: b1, of the gate.
        linear_beta: b2, of ``up``; None leaves ``up`` as it is.
    """
    wide = torch.promote_types(gate.dtype, torch.float32)
    g, u = gate.to(wide), up.to(wide)
    if linear_beta is not None:
        u = tanh(u / linear_beta) * linear_beta
    return (tanh(g / beta) * beta * sigmoid(g) * u).to(gate.dtype)


def activation_of(config: KimiLinearConfig) -> Activation:
    """The activation that ``hidden_act`` names."""
    if config.hidden_act == "silu":
        return swiglu
    beta, linear_beta = config.activation_situ_beta, config.activation_situ_linear_beta
    assert beta is not None  # the config has seen to it
    return lambda gate, up: situ_glu(gate, up, beta, linear_beta)
