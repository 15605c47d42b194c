"""Feed-forward layers: a gated MLP, and the mixture of experts with a sigmoid router.

Every expert runs over all rows of the cell, with weight 0 for the rows that did not choose it.
Gathering just the rows that did would make the shape of a product, and with it the last bits of
a token's result, depend on what its neighbours chose. All experts then fit into one product each
way: side by side in the hidden layer, and summed by the product that leaves it.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch.nn.functional import linear

from kdalab.model.config import KimiLinearConfig
from kdalab.model.situ import Activation, activation_of
from kdalab_kernels import sigmoid


class MLP:
    """A gated layer: ``down(activation(gate(x), up(x)))``."""

    def __init__(
        self, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor, activation: Activation
    ) -> None:
        self.w_gate_up = torch.cat([gate, up])
        self.w_down = down
        self.activation = activation

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = linear(x, self.w_gate_up).chunk(2, -1)
        return linear(self.activation(gate, up), self.w_down)


class Router:
    """Which experts a token goes to, and with what weight."""

    def __init__(self, config: KimiLinearConfig, w: Mapping[str, torch.Tensor]) -> None:
        self.top_k, self.n_experts = config.num_experts_per_token, config.num_experts
        self.n_groups, self.top_groups = config.num_expert_group, config.topk_group
        self.renormalize, self.scale = config.moe_renormalize, config.routed_scaling_factor
        self.weight = w["gate.weight"]
        self.bias = w["gate.e_score_correction_bias"]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Weight of each expert for each row, [row, hidden] -> [row, expert]; 0 where not chosen.

        The correction bias takes part in the choice only; with several groups the choice is
        limited to the best groups (DeepSeek-V3's router).
        """
        wide = torch.promote_types(x.dtype, torch.float32)
        scores = sigmoid(linear(x.to(wide), self.weight.to(wide)))
        choice = scores + self.bias
        if self.n_groups > 1:
            grouped = choice.view(-1, self.n_groups, self.n_experts // self.n_groups)
            best = grouped.topk(2, -1).values.sum(-1).topk(self.top_groups, -1).indices
            keep = torch.zeros(grouped.shape[:2], dtype=torch.bool).scatter_(1, best, True)
            choice = grouped.masked_fill(~keep[..., None], float("-inf")).flatten(1)
        chosen = choice.topk(self.top_k, -1).indices
        picked = scores.gather(1, chosen)
        if self.renormalize:
            picked = picked / (picked.sum(-1, keepdim=True) + 1e-20)
        dense = torch.zeros_like(scores).scatter_(1, chosen, picked * self.scale)
        return dense.to(x.dtype)


class MoE:
    """Routed and shared experts at the network's own width; weights under Hugging Face's names
    (after ``block_sparse_moe.``)."""

    def __init__(self, config: KimiLinearConfig, w: Mapping[str, torch.Tensor]) -> None:
        self.router = Router(config, w)
        self.activation = activation_of(config)
        self.n_experts, self.width = config.num_experts, config.moe_intermediate_size
        gate, up, down = (
            [w[f"experts.{e}.{part}.weight"] for e in range(self.n_experts)]
            for part in ("w1", "w3", "w2")
        )
        if config.num_shared_experts:
            for parts, name in ((gate, "gate"), (up, "up"), (down, "down")):
                parts.append(w[f"shared_experts.{name}_proj.weight"])
        self.w_gate_up = torch.cat(gate + up)
        self.w_down = torch.cat(down, 1)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[row, hidden] -> [row, hidden]."""
        weights = self.router(x)
        gate, up = linear(x, self.w_gate_up).chunk(2, -1)
        inner = self.activation(gate, up)
        routed = inner[:, : self.n_experts * self.width]
        routed.view(-1, self.n_experts, self.width).mul_(weights[..., None])
        return linear(inner, self.w_down)
