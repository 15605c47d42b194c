"""Configuration of a Kimi-Linear or Kimi K3 network."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kdalab.errors import KdalabError


@dataclass(frozen=True, slots=True)
class KimiLinearConfig:
    """The numbers that shape the network, under Hugging Face's names.

    ``full_attn_layers`` (MLA) and ``dense_layers`` (no experts) are 0-based here; the
    checkpoint's ``linear_attn_config`` counts from 1. Kimi K3 is this network with switches on,
    and every switch is off unless it is said to be on.

    Raises:
        KdalabError: numbers that contradict each other; the message names the field.
    """

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    full_attn_layers: tuple[int, ...]
    dense_layers: tuple[int, ...]
    intermediate_size: int
    rms_norm_eps: float
    # KDA
    linear_num_heads: int
    linear_head_dim: int
    linear_conv_kernel_dim: int
    # MLA
    num_attention_heads: int
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    q_lora_rank: int | None
    # experts
    num_experts: int
    num_experts_per_token: int
    num_shared_experts: int
    moe_intermediate_size: int
    num_expert_group: int
    topk_group: int
    moe_renormalize: bool
    routed_scaling_factor: float

    max_position_embeddings: int | None = None
    """Longest context in tokens, where the checkpoint says it; nothing here depends on it."""
    latent_eps: float = 1e-6
    """Epsilon of the norms inside MLA: the reference keeps its class default here, not
    ``rms_norm_eps``."""

    # Kimi K3's switches
    gate_lower_bound: float | None = None
    """Least log-decay of KDA's forget gate, ``bound * sigmoid(exp(A_log) * z)``; None for
    ``-exp(A_log) * softplus(z)``."""
    use_full_rank_gate: bool = False
    """KDA's output gate by one product (``g_proj``), not two narrow ones."""
    mla_use_output_gate: bool = False
    """A sigmoid gate on what MLA gives, before its output projection."""
    attn_res_block_size: int | None = None
    """Decoder layers of one block of the attention residuals; None for a plain residual stream."""
    routed_expert_hidden_size: int | None = None
    """Width at which routed experts work (latent MoE); None for ``hidden_size``."""
    latent_moe_use_norm: bool = False
    """A norm on the experts' sum, before it is projected back to ``hidden_size``."""
    hidden_act: str = "silu"
    """``silu`` (SwiGLU) or ``situ`` (SiTU-GLU)."""
    activation_situ_beta: float | None = None
    """SiTU's bound on the gate."""
    activation_situ_linear_beta: float | None = None
    """SiTU's bound on ``up``; None for none."""

    def __post_init__(self) -> None:
        for name, wrong, rule in self._contradictions():
            if wrong:
                raise KdalabError(f"{name} is {getattr(self, name)!r}; {rule}")

    def _contradictions(self) -> list[tuple[str, bool, str]]:
        """(field, whether it is wrong, what it must be)."""
        bound, block = self.gate_lower_bound, self.attn_res_block_size
        situ, betas = self.hidden_act == "situ", "must be a number above 0"
        groups, experts = self.num_expert_group, self.num_experts
        per_group = experts // groups if groups > 0 and experts % groups == 0 else 0
        beta, linear_beta = self.activation_situ_beta, self.activation_situ_linear_beta
        least_group = 2 if groups > 1 else 1  # a group is judged by its two best experts
        return [
            ("num_expert_group", per_group < least_group,
             f"it must divide num_experts = {experts} into groups of {least_group} or more"),
            ("topk_group", not 1 <= self.topk_group <= groups,
             f"it must be 1 to num_expert_group = {groups}"),
            ("num_experts_per_token",
             not 1 <= self.num_experts_per_token <= per_group * self.topk_group,
             f"it must be 1 to {per_group * self.topk_group}, the experts of topk_group groups"),
            ("gate_lower_bound", bound is not None and not -math.inf < bound < 0,
             "it must be a number below 0, or null"),
            ("attn_res_block_size", block is not None and block < 1,
             "it must be a number of layers, at least 1, or null"),
            ("latent_moe_use_norm",
             self.latent_moe_use_norm and self.routed_expert_hidden_size is None,
             "the norm belongs to the latent experts: give routed_expert_hidden_size too"),
            ("hidden_act", self.hidden_act not in ("silu", "situ"),
             "this network has 'silu' and 'situ'"),
            ("activation_situ_beta", situ and (beta is None or not 0 < beta < math.inf), betas),
            ("activation_situ_linear_beta",
             situ and linear_beta is not None and not 0 < linear_beta < math.inf, betas),
        ]  # fmt: skip

    @property
    def k3_switches(self) -> tuple[str, ...]:
        """Names of the Kimi K3 switches that are on."""
        names = (
            "gate_lower_bound",
            "use_full_rank_gate",
            "mla_use_output_gate",
            "attn_res_block_size",
            "routed_expert_hidden_size",
            "latent_moe_use_norm",
        )
        on = [name for name in names if getattr(self, name) not in (None, False)]
        return (*on, *(["hidden_act"] if self.hidden_act != "silu" else []))

    @property
    def latent_dim(self) -> int:
        """Numbers cached for one token of one MLA layer: latent | rope part."""
        return self.kv_lora_rank + self.qk_rope_head_dim

    @property
    def kda_width(self) -> int:
        """Channels of q, of k and of v in a KDA layer: heads x head dimension."""
        return self.linear_num_heads * self.linear_head_dim

    @property
    def kda_layers(self) -> tuple[int, ...]:
        """0-based KDA layers."""
        full = set(self.full_attn_layers)
        return tuple(i for i in range(self.num_hidden_layers) if i not in full)

    @classmethod
    def from_hf(cls, raw: Mapping[str, Any]) -> KimiLinearConfig:
        """Read ``config.json``; see :func:`kdalab.model.hf_config.read_config`."""
        from kdalab.model.hf_config import read_config

        return read_config(raw)

    def to_hf(self) -> dict[str, Any]:
        """The same as a ``config.json``; see :func:`kdalab.model.hf_config.write_config`."""
        from kdalab.model.hf_config import write_config

        return write_config(self)
