"""Tiny models made on the spot: the real architectures with random, fixed weights."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from kdalab.errors import KdalabError
from kdalab.model.config import KimiLinearConfig
from kdalab.model.files import dtype_of
from kdalab.model.network import HybridModel
from kdalab.model.shapes import expected_shapes
from kdalab.model.weights import build


def tiny_config() -> KimiLinearConfig:
    """8 layers in the 3:1 pattern (6 KDA + 2 MLA), the sizes of the preset ``tiny``."""
    return KimiLinearConfig(
        vocab_size=320,
        hidden_size=128,
        num_hidden_layers=8,
        full_attn_layers=(3, 7),
        dense_layers=(0,),
        intermediate_size=256,
        rms_norm_eps=1e-5,
        linear_num_heads=4,
        linear_head_dim=32,
        linear_conv_kernel_dim=4,
        num_attention_heads=4,
        kv_lora_rank=64,
        qk_nope_head_dim=32,
        qk_rope_head_dim=16,
        v_head_dim=32,
        q_lora_rank=None,
        num_experts=8,
        num_experts_per_token=2,
        num_shared_experts=1,
        moe_intermediate_size=64,
        num_expert_group=1,
        topk_group=1,
        moe_renormalize=True,
        routed_scaling_factor=1.0,
        max_position_embeddings=65_536,
    )


def tiny_k3_config() -> KimiLinearConfig:
    """Kimi K3 with every switch on, at the sizes of the preset ``tiny-k3``.

    9 layers, the last two both MLA as in K3; blocks of 3, so that the output mixes the embedding,
    two whole blocks and the last one's sum.
    """
    return replace(
        tiny_config(),
        num_hidden_layers=9,
        full_attn_layers=(3, 7, 8),
        q_lora_rank=48,
        num_shared_experts=2,
        gate_lower_bound=-5.0,
        use_full_rank_gate=True,
        mla_use_output_gate=True,
        attn_res_block_size=3,
        routed_expert_hidden_size=64,
        latent_moe_use_norm=True,
        hidden_act="situ",
        activation_situ_beta=4.0,
        activation_situ_linear_beta=25.0,
    )


def tiny_weights(
    seed: int = 0, config: KimiLinearConfig | None = None, dtype: torch.dtype = torch.float32
) -> dict[str, torch.Tensor]:
    """Random weights under Hugging Face names; the same seed gives the same bits.

    Projections keep the variance of what goes through them. Decay rates are initialised as FLA
    and Kimi Linear do (A in 1..16, dt log-uniform in 1e-3..1e-1), so that some channels forget
    within a few tokens and others keep hundreds: a state that is wrong is seen in the logits.
    With a lower bound A is around 1 (0.4..1.6 for most heads) and the bias gives the same decays.
    """
    config = config or tiny_config()
    bound = config.gate_lower_bound
    random = torch.Generator().manual_seed(seed)
    weights = {}
    for name, shape in expected_shapes(config).items():
        values = torch.randn(shape, generator=random, dtype=torch.float64)
        if name.endswith("A_log") and bound is not None:
            values = 0.3 * values
        elif name.endswith("A_log"):
            values = torch.log(1 + 15 * torch.rand(shape, generator=random, dtype=torch.float64))
        elif name.endswith("dt_bias"):
            low, high = math.log(1e-3), math.log(1e-1)
            dt = torch.exp(low + (high - low) * torch.rand(shape, generator=random).double())
            # softplus(bias) = dt, or -bound * sigmoid(bias) = dt
            if bound is None:
                values = dt + torch.log(-torch.expm1(-dt))
            else:
                values = torch.log(dt / (-bound - dt))
        elif name.endswith("e_score_correction_bias"):
            values = 0.05 * values
        elif "norm" in name.rsplit(".", 2)[-2]:
            values = 1 + 0.1 * values
        elif "conv1d" in name:
            values = 0.6 * values
        elif "embed" not in name:
            values = values / math.sqrt(shape[-1])
        if name == "lm_head.weight":
            values = 2 * values
        weights[name] = values.to(dtype_of(name, dtype))
    return weights


def tiny_model(
    seed: int = 0, dtype: torch.dtype = torch.float32, decode_rows: int = 8
) -> HybridModel:
    """The tiny model with the weights of ``seed``."""
    config = tiny_config()
    return build(config, tiny_weights(seed, config, dtype), decode_rows)


def tiny_k3_model(
    seed: int = 0, dtype: torch.dtype = torch.float32, decode_rows: int = 8
) -> HybridModel:
    """The tiny Kimi K3 with the weights of ``seed``."""
    config = tiny_k3_config()
    return build(config, tiny_weights(seed, config, dtype), decode_rows)


TINY_MODELS = {"tiny": tiny_model, "tiny-k3": tiny_k3_model}
"""Models that need no file, under the names of their presets in ``kdalab.spec``."""


def named_model(
    name: str, seed: int = 0, dtype: torch.dtype = torch.float32, decode_rows: int = 8
) -> HybridModel:
    """One of ``TINY_MODELS`` by name.

    Raises:
        KdalabError: another name; a real model has a folder, and ``load_pretrained`` loads it.
    """
    if name not in TINY_MODELS:
        raise KdalabError(
            f"no model {name!r} is made on the spot; there are {', '.join(TINY_MODELS)}. "
            "Give load_pretrained the folder of any other"
        )
    return TINY_MODELS[name](seed, dtype, decode_rows)
