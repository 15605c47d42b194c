"""Every tensor of a checkpoint: its Hugging Face name and its shape."""

from __future__ import annotations

from kdalab.model.config import KimiLinearConfig

Shapes = dict[str, tuple[int, ...]]


def expected_shapes(config: KimiLinearConfig) -> Shapes:
    """Every tensor of the checkpoint and its shape ([out, in] for projections)."""
    c, hidden = config, config.hidden_size
    shapes: Shapes = {
        "model.embed_tokens.weight": (c.vocab_size, hidden),
        "model.norm.weight": (hidden,),
        "lm_head.weight": (c.vocab_size, hidden),
    }
    if c.attn_res_block_size is not None:
        shapes |= _site_shapes("model.output_attn_res_", hidden)
    for i in range(c.num_hidden_layers):
        layer = f"model.layers.{i}."
        shapes[layer + "input_layernorm.weight"] = (hidden,)
        shapes[layer + "post_attention_layernorm.weight"] = (hidden,)
        attention = _mla_shapes(c) if i in c.full_attn_layers else _kda_shapes(c)
        shapes |= {f"{layer}self_attn.{k}": v for k, v in attention.items()}
        if c.attn_res_block_size is not None:
            shapes |= _site_shapes(f"{layer}self_attention_res_", hidden)
            shapes |= _site_shapes(f"{layer}mlp_res_", hidden)
        if i in c.dense_layers:
            shapes |= _mlp_shapes(layer + "mlp.", hidden, c.intermediate_size)
        else:
            shapes |= {f"{layer}block_sparse_moe.{k}": v for k, v in _moe_shapes(c).items()}
    return shapes


def _kda_shapes(c: KimiLinearConfig) -> Shapes:
    width, dim, hidden = c.kda_width, c.linear_head_dim, c.hidden_size
    shapes: Shapes = {}
    for x in "qkv":
        shapes[f"{x}_proj.weight"] = (width, hidden)
        shapes[f"{x}_conv1d.weight"] = (width, 1, c.linear_conv_kernel_dim)
    for x in "f" if c.use_full_rank_gate else "fg":
        shapes[f"{x}_a_proj.weight"] = (dim, hidden)
        shapes[f"{x}_b_proj.weight"] = (width, dim)
    if c.use_full_rank_gate:
        shapes["g_proj.weight"] = (width, hidden)
    shapes["b_proj.weight"] = (c.linear_num_heads, hidden)
    # One rate a head. Kimi Linear's checkpoints have it with four axes, Kimi K3's flat.
    heads = c.linear_num_heads
    shapes["A_log"] = (1, 1, heads, 1) if c.gate_lower_bound is None else (heads,)
    shapes["dt_bias"] = (width,)
    shapes["o_norm.weight"] = (dim,)
    shapes["o_proj.weight"] = (hidden, width)
    return shapes


def _mla_shapes(c: KimiLinearConfig) -> Shapes:
    q_out = c.num_attention_heads * (c.qk_nope_head_dim + c.qk_rope_head_dim)
    shapes: Shapes = {
        "kv_a_proj_with_mqa.weight": (c.latent_dim, c.hidden_size),
        "kv_a_layernorm.weight": (c.kv_lora_rank,),
        "kv_b_proj.weight": (
            c.num_attention_heads * (c.qk_nope_head_dim + c.v_head_dim),
            c.kv_lora_rank,
        ),
        "o_proj.weight": (c.hidden_size, c.num_attention_heads * c.v_head_dim),
    }
    if c.mla_use_output_gate:
        shapes["g_proj.weight"] = (c.num_attention_heads * c.v_head_dim, c.hidden_size)
    if c.q_lora_rank is None:
        shapes["q_proj.weight"] = (q_out, c.hidden_size)
    else:
        shapes["q_a_proj.weight"] = (c.q_lora_rank, c.hidden_size)
        shapes["q_a_layernorm.weight"] = (c.q_lora_rank,)
        shapes["q_b_proj.weight"] = (q_out, c.q_lora_rank)
    return shapes


def _mlp_shapes(prefix: str, hidden: int, width: int) -> Shapes:
    return {
        f"{prefix}gate_proj.weight": (width, hidden),
        f"{prefix}up_proj.weight": (width, hidden),
        f"{prefix}down_proj.weight": (hidden, width),
    }


def _moe_shapes(c: KimiLinearConfig) -> Shapes:
    hidden, width, latent = c.hidden_size, c.moe_intermediate_size, c.routed_expert_hidden_size
    shapes: Shapes = {
        "gate.weight": (c.num_experts, hidden),
        "gate.e_score_correction_bias": (c.num_experts,),
    }
    for e in range(c.num_experts):
        shapes[f"experts.{e}.w1.weight"] = (width, latent or hidden)
        shapes[f"experts.{e}.w2.weight"] = (latent or hidden, width)
        shapes[f"experts.{e}.w3.weight"] = (width, latent or hidden)
    if latent is not None:
        shapes["routed_expert_down_proj.weight"] = (latent, hidden)
        shapes["routed_expert_up_proj.weight"] = (hidden, latent)
    if c.latent_moe_use_norm:
        assert latent is not None  # the config has seen to it
        shapes["routed_expert_norm.weight"] = (latent,)
    if c.num_shared_experts:
        shapes |= _mlp_shapes("shared_experts.", hidden, width * c.num_shared_experts)
    return shapes


def _site_shapes(prefix: str, hidden: int) -> Shapes:
    return {f"{prefix}norm.weight": (hidden,), f"{prefix}proj.weight": (1, hidden)}
