"""Published hybrid models, and the tiny ones that the demos run.

Every preset's ``source`` says where its numbers were read. Feed-forward sizes are there for FLOPs;
sizes of state depend on none of them.
"""

from __future__ import annotations

import difflib

from kdalab.errors import KdalabError
from kdalab.spec.model_spec import (
    FeedForward,
    GroupedAttention,
    LatentAttention,
    LinearAttention,
    ModelSpec,
    three_to_one,
)

# Kimi-Linear-48B-A3B: released config.json; full attention at 1-based 4, 8, ..., 24 and 27.
KIMI_LINEAR_48B = ModelSpec(
    name="kimi-linear-48b",
    hidden_size=2304,
    vocab_size=163_840,
    max_context=1_048_576,
    layer_types=three_to_one(27, last_is_full=True),
    linear=LinearAttention("kda", 32, 32, 128, 128, conv_kernel=4),
    # "rope" is part of the cached vector although it is not rotated (mla_use_nope).
    full=LatentAttention(32, 512, 64, 128, 128, q_lora_rank=None),
    feed_forward=FeedForward(
        intermediate_size=9216,
        num_experts=256,
        experts_per_token=8,
        moe_intermediate_size=1024,
        shared_intermediate_size=1024,  # num_shared_experts 1
        first_dense_layers=1,
    ),
    source="moonshotai/Kimi-Linear-48B-A3B-Instruct config.json; transformers KimiLinearConfig",
)

# Kimi K3: technical report (arXiv 2607.24653) and the released config.json, text_config;
# full attention at 1-based 4, 8, ..., 92 and 93.
KIMI_K3 = ModelSpec(
    name="kimi-k3",
    hidden_size=7168,
    vocab_size=163_840,
    max_context=1_048_576,
    layer_types=three_to_one(93, last_is_full=True),
    linear=LinearAttention("kda", 96, 96, 128, 128, conv_kernel=4),
    full=LatentAttention(96, 512, 64, 128, 128, q_lora_rank=1536),
    feed_forward=FeedForward(
        intermediate_size=33_792,
        num_experts=896,
        experts_per_token=16,
        moe_intermediate_size=3072,
        shared_intermediate_size=6144,  # num_shared_experts 2, computed as one MLP
        first_dense_layers=1,
        routed_hidden_size=3584,
    ),
    source="Kimi K3 technical report (arXiv 2607.24653) and released config.json, text_config",
)

# GLM-5.3-Flash: transformers 5.24 Glm5NextTextConfig, whose defaults agree with the released
# model on every number below (NVIDIA NeMo AutoModel's model page: 45 layers = 34 KDA + 11 DSA;
# llama.cpp's port: 64 x 128 KDA heads, kv_lora 512, nope and v 256, rope 0, full layers at 0-based
# 3, 7, ..., 43). One default does not: index_kpool is 4 in the release, 16 in transformers.
GLM_5_3_FLASH = ModelSpec(
    name="glm-5.3-flash",
    hidden_size=4096,
    vocab_size=154_880,
    max_context=1_048_576,
    layer_types=three_to_one(45),
    linear=LinearAttention("kda", 64, 64, 128, 128, conv_kernel=4),
    full=LatentAttention(64, 512, 0, 256, 256, q_lora_rank=1536),
    feed_forward=FeedForward(
        intermediate_size=12_288,
        num_experts=288,
        experts_per_token=8,
        moe_intermediate_size=2048,
        shared_intermediate_size=2048,  # n_shared_experts 1
        first_dense_layers=3,
    ),
    source="zai-org/GLM-5.3-Flash as described by transformers 5.24 Glm5NextTextConfig",
    notes=(
        "Left out: the sparse-attention indexer's keys (one 128-wide key per pool of 4 tokens and "
        "full layer; each engine packs them differently) and the multi-token-prediction layer.",
    ),
)

# Qwen3-Next-80B-A3B: released config.json and transformers 5.24 Qwen3NextConfig, which agree on
# every number that sizes a state (they differ in intermediate_size, 5120 and 5632, which no layer
# uses: all 48 layers route to experts).
QWEN3_NEXT_80B = ModelSpec(
    name="qwen3-next-80b",
    hidden_size=2048,
    vocab_size=151_936,
    max_context=262_144,  # released config; transformers' default is 32,768
    layer_types=three_to_one(48),
    linear=LinearAttention("gdn", 16, 32, 128, 128, conv_kernel=4),
    full=GroupedAttention(num_heads=16, num_kv_heads=2, head_dim=256),
    feed_forward=FeedForward(
        intermediate_size=5120,
        num_experts=512,
        experts_per_token=10,
        moe_intermediate_size=512,
        shared_intermediate_size=512,
        first_dense_layers=0,
    ),
    source="Qwen/Qwen3-Next-80B-A3B-Instruct config.json; transformers 5.24 Qwen3NextConfig",
    notes=("Gated DeltaNet and GQA: the same kinds of state as KDA and MLA, other shapes.",),
)

# The demos' own model: small enough to run on a laptop's CPU, the same pattern as Kimi Linear.
TINY = ModelSpec(
    name="tiny",
    hidden_size=128,
    vocab_size=320,  # 256 bytes and room for special tokens
    max_context=65_536,
    layer_types=three_to_one(8),
    linear=LinearAttention("kda", 4, 4, 32, 32, conv_kernel=4),
    full=LatentAttention(4, 64, 16, 32, 32, q_lora_rank=None),
    feed_forward=FeedForward(
        intermediate_size=256,
        num_experts=8,
        experts_per_token=2,
        moe_intermediate_size=64,
        shared_intermediate_size=64,
        first_dense_layers=1,
    ),
    conv_dtype="fp32",
    kv_dtype="fp32",
    source="KDALab's own; Kimi Linear's architecture at the size of a demo",
)

# Kimi K3 with all it has, at the size of a demo: full attention at 1-based 4, 8 and 9.
TINY_K3 = ModelSpec(
    name="tiny-k3",
    hidden_size=128,
    vocab_size=320,
    max_context=65_536,
    layer_types=three_to_one(9, last_is_full=True),
    linear=LinearAttention("kda", 4, 4, 32, 32, conv_kernel=4),
    full=LatentAttention(4, 64, 16, 32, 32, q_lora_rank=48),
    feed_forward=FeedForward(
        intermediate_size=256,
        num_experts=8,
        experts_per_token=2,
        moe_intermediate_size=64,
        shared_intermediate_size=128,  # num_shared_experts 2, computed as one MLP
        first_dense_layers=1,
        routed_hidden_size=64,
    ),
    conv_dtype="fp32",
    kv_dtype="fp32",
    source="KDALab's own; Kimi K3's architecture at the size of a demo",
)

PRESETS: dict[str, ModelSpec] = {
    spec.name: spec
    for spec in (KIMI_K3, KIMI_LINEAR_48B, GLM_5_3_FLASH, QWEN3_NEXT_80B, TINY, TINY_K3)
}


def preset(name: str) -> ModelSpec:
    """The preset of that name (case does not matter).

    Raises:
        KdalabError: no such preset; the message lists the known ones and the nearest.
    """
    key = name.strip().lower()
    if key in PRESETS:
        return PRESETS[key]
    near = difflib.get_close_matches(key, PRESETS, n=1, cutoff=0.5)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise KdalabError(f"unknown model {name!r}; known models: {', '.join(PRESETS)}.{hint}")
