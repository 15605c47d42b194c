"""Kimi K3's Stable Latent MoE: routed experts that work in a narrower space than the network.

``z = W_down x``, ``u = sum_j p_j E_j(z)`` over the chosen experts, and
``y = W_up RMSNorm(u) + Shared(x)`` (Kimi K3 report). The router and the shared experts read x at
full width; the norm stands after the weighted sum and before ``W_up``.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch.nn.functional import linear

from kdalab.model.config import KimiLinearConfig
from kdalab.model.moe import MLP, Router
from kdalab.model.norm import rms_norm
from kdalab.model.situ import activation_of


class LatentMoE:
    """Weights of one layer under Hugging Face's names (after ``block_sparse_moe.``).

    As in :class:`~kdalab.model.moe.MoE` every expert runs over all rows.
    """

    def __init__(self, config: KimiLinearConfig, w: Mapping[str, torch.Tensor]) -> None:
        self.router = Router(config, w)
        self.activation = activation_of(config)
        self.n_experts, self.width = config.num_experts, config.moe_intermediate_size
        self.eps = config.rms_norm_eps
        self.w_in = w["routed_expert_down_proj.weight"]  # [latent, hidden]
        self.w_norm = w["routed_expert_norm.weight"] if config.latent_moe_use_norm else None
        self.w_out = w["routed_expert_up_proj.weight"]  # [hidden, latent]
        gate, up, down = (
            [w[f"experts.{e}.{part}.weight"] for e in range(self.n_experts)]
            for part in ("w1", "w3", "w2")
        )
        self.w_gate_up = torch.cat(gate + up)
        self.w_down = torch.cat(down, 1)
        # Several shared experts are one MLP of their widths together: a sum is what it computes.
        self.shared = None
        if config.num_shared_experts:
            parts = [w[f"shared_experts.{x}_proj.weight"] for x in ("gate", "up", "down")]
            self.shared = MLP(parts[0], parts[1], parts[2], self.activation)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[row, hidden] -> [row, hidden]."""
        weights = self.router(x)
        gate, up = linear(linear(x, self.w_in), self.w_gate_up).chunk(2, -1)
        inner = self.activation(gate, up)
        inner.view(-1, self.n_experts, self.width).mul_(weights[..., None])
        mixed = linear(inner, self.w_down)
        if self.w_norm is not None:
            mixed = rms_norm(mixed, self.w_norm, self.eps)
        y = linear(mixed, self.w_out)
        return y if self.shared is None else y + self.shared(x)
