"""The three networks: one shape, one size, and three mixes of attention."""

from __future__ import annotations

from dataclasses import dataclass

from kdalab.errors import KdalabError
from kdalab.model import KimiLinearConfig
from kdalab.recall.task import HIDDEN, VOCAB

LAYERS = 4

MLA_LAYERS: dict[str, tuple[int, ...]] = {"kda": (), "hybrid": (3,), "mla": (0, 1, 2, 3)}
"""Name -> its 0-based MLA layers; the others are KDA."""

TITLES = {"kda": "KDA only", "hybrid": "3 KDA : 1 MLA", "mla": "MLA only"}

NUMBER_BYTES = 4


def config_of(name: str) -> KimiLinearConfig:
    """A 4-layer Kimi-Linear network without experts.

    A KDA layer has one head, whose state is 8 x 8 numbers: room for 8 keys at right angles to each
    other, 32 in four layers. The latent of MLA (rank 20) is chosen so that the three networks have
    the same number of weights, to half a percent.

    Raises:
        KdalabError: a name that is not one of the three.
    """
    if name not in MLA_LAYERS:
        raise KdalabError(f"unknown network {name!r}; use one of {', '.join(MLA_LAYERS)}")
    return KimiLinearConfig(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        num_hidden_layers=LAYERS,
        full_attn_layers=MLA_LAYERS[name],
        dense_layers=tuple(range(LAYERS)),
        intermediate_size=128,
        rms_norm_eps=1e-5,
        linear_num_heads=1,
        linear_head_dim=8,
        linear_conv_kernel_dim=4,
        num_attention_heads=1,
        kv_lora_rank=20,
        qk_nope_head_dim=12,
        qk_rope_head_dim=4,
        v_head_dim=8,
        q_lora_rank=None,
        # Every layer is dense; the format still wants numbers for the experts.
        num_experts=1,
        num_experts_per_token=1,
        num_shared_experts=1,
        moe_intermediate_size=1,
        num_expert_group=1,
        topk_group=1,
        moe_renormalize=True,
        routed_scaling_factor=1.0,
    )


@dataclass(frozen=True, slots=True)
class Memory:
    """What a network keeps of the tokens it has read, in bytes of fp32."""

    state_bytes: int
    """Recurrent and conv state of all KDA layers, whatever the number of tokens."""

    bytes_per_token: int
    """Latent KV of all MLA layers."""

    def after(self, tokens: int) -> int:
        """Bytes after that many tokens."""
        return self.state_bytes + tokens * self.bytes_per_token


def memory_of(name: str) -> Memory:
    """How much the network ``name`` can remember with.

    Raises:
        KdalabError: as ``config_of``.
    """
    c = config_of(name)
    recurrent = c.linear_num_heads * c.linear_head_dim**2
    conv = (c.linear_conv_kernel_dim - 1) * 3 * c.kda_width
    return Memory(
        NUMBER_BYTES * len(c.kda_layers) * (recurrent + conv),
        NUMBER_BYTES * len(c.full_attn_layers) * c.latent_dim,
    )
