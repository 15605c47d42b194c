"""config.json in both of its forms; what is missing or not supported is named."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from model_cases import odd_config

from kdalab.errors import KdalabError
from kdalab.model import HybridModel, KimiLinearConfig, tiny_config
from kdalab.spec.hf_config import spec_from_hf_config
from kdalab.spec.presets import preset
from kdalab.spec.sizing import state_sizes


def raw(**changes: Any) -> dict[str, Any]:
    return tiny_config().to_hf() | changes


def transformers_form(config: KimiLinearConfig) -> dict[str, Any]:
    """The same numbers under the names that transformers writes."""
    c = config
    full, dense = set(c.full_attn_layers), set(c.dense_layers)
    layers = range(c.num_hidden_layers)
    names = "vocab_size hidden_size num_hidden_layers intermediate_size rms_norm_eps q_lora_rank"
    names += " linear_num_heads linear_head_dim linear_conv_kernel_dim num_attention_heads"
    names += " kv_lora_rank qk_nope_head_dim qk_rope_head_dim v_head_dim moe_intermediate_size"
    names += " topk_group routed_scaling_factor max_position_embeddings"
    return {name: getattr(c, name) for name in names.split()} | {
        "model_type": "kimi_linear",
        "layer_types": ["full_attention" if i in full else "linear_attention" for i in layers],
        "mlp_layer_types": ["dense" if i in dense else "sparse" for i in layers],
        "num_local_experts": c.num_experts,
        "num_experts_per_tok": c.num_experts_per_token,
        "n_shared_experts": c.num_shared_experts,
        "n_group": c.num_expert_group,
        "norm_topk_prob": c.moe_renormalize,
    }


@pytest.mark.parametrize("config", [tiny_config(), odd_config()], ids=["tiny", "odd"])
def test_both_forms_read_as_the_same_config(config: KimiLinearConfig) -> None:
    assert KimiLinearConfig.from_hf(config.to_hf()) == config
    assert KimiLinearConfig.from_hf(transformers_form(config)) == config
    assert KimiLinearConfig.from_hf({"text_config": config.to_hf()}) == config


@pytest.mark.parametrize("config", [tiny_config(), odd_config()], ids=["tiny", "odd"])
def test_a_config_resolves_in_spec_with_the_same_sizes(config: KimiLinearConfig) -> None:
    spec = spec_from_hf_config(config.to_hf() | {"dtype": "float32"})
    sizes = state_sizes(spec)
    width = config.linear_num_heads * config.linear_head_dim
    kda, mla = len(config.kda_layers), len(config.full_attn_layers)
    assert spec.max_context == config.max_position_embeddings
    assert sizes.recurrent_bytes == 4 * kda * width * config.linear_head_dim
    assert sizes.conv_bytes == 4 * kda * 3 * width * (config.linear_conv_kernel_dim - 1)
    assert sizes.latent_bytes_per_token == 4 * mla * config.latent_dim


def test_the_tiny_preset_has_the_bytes_of_the_tiny_models_tensors(tiny: HybridModel) -> None:
    recurrent, conv, latent = tiny.zero_state()
    sizes = state_sizes(preset("tiny"))
    assert sizes.recurrent_bytes == recurrent.nbytes
    assert sizes.conv_bytes == conv.nbytes
    assert sizes.latent_bytes(77) == latent.new_zeros(len(latent), 77, latent.shape[2]).nbytes
    assert preset("tiny").vocab_size == tiny.vocab_size
    assert preset("tiny").max_context == tiny.config.max_position_embeddings


MOONSHOT = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "intermediate_size",
    "rms_norm_eps",
    "num_attention_heads",
    "kv_lora_rank",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "v_head_dim",
    "num_experts",
    "num_experts_per_token",
    "num_shared_experts",
    "moe_intermediate_size",
    "num_expert_group",
    "topk_group",
    "moe_renormalize",
    "routed_scaling_factor",
)


@pytest.mark.parametrize("field", MOONSHOT)
def test_a_missing_field_is_named(field: str) -> None:
    config = raw()
    del config[field]
    with pytest.raises(KdalabError, match=rf"no field {field}\b"):
        KimiLinearConfig.from_hf(config)


@pytest.mark.parametrize("field", ["num_heads", "head_dim", "short_conv_kernel_size"])
def test_a_missing_size_of_the_linear_layers_is_named(field: str) -> None:
    config = raw()
    del config["linear_attn_config"][field]
    with pytest.raises(KdalabError, match=r"no field .*(linear_|short_conv_kernel_size)"):
        KimiLinearConfig.from_hf(config)


def test_a_config_that_does_not_say_which_layer_is_which_is_refused() -> None:
    config = raw()
    del config["linear_attn_config"]["kda_layers"]
    with pytest.raises(KdalabError, match="full_attn_layers/kda_layers or layer_types"):
        KimiLinearConfig.from_hf(config)


@pytest.mark.parametrize("full", [[4], [4, 8, 8], [3, 4, 8], [4, 9], [0, 4, 8]])
def test_layer_lists_that_do_not_share_out_the_layers_are_refused(full: list[int]) -> None:
    config = raw()
    config["linear_attn_config"]["full_attn_layers"] = full
    with pytest.raises(KdalabError, match=r"each of 1\.\.8 once"):
        KimiLinearConfig.from_hf(config)


def test_layer_types_of_another_length_are_refused() -> None:
    config = transformers_form(tiny_config())
    with pytest.raises(KdalabError, match="names 7 layers; num_hidden_layers is 8"):
        KimiLinearConfig.from_hf(config | {"layer_types": config["layer_types"][:-1]})


def test_another_model_type_is_refused_by_name() -> None:
    for kind in ("qwen3_next", None):
        with pytest.raises(KdalabError, match=f"model_type is {kind!r}"):
            KimiLinearConfig.from_hf(raw(model_type=kind))


@pytest.mark.parametrize(("field", "value"), [
    ("hidden_act", "gelu"), ("attention_bias", True), ("tie_word_embeddings", True),
    ("mla_use_nope", False), ("moe_router_activation_func", "softmax"), ("moe_layer_freq", 2),
])  # fmt: skip
def test_a_network_of_another_kind_is_refused(field: str, value: Any) -> None:
    with pytest.raises(KdalabError, match=field):
        KimiLinearConfig.from_hf(raw(**{field: value}))


def test_a_config_that_the_file_format_cannot_say_is_not_saved() -> None:
    with pytest.raises(KdalabError, match="only the first layers can be dense"):
        replace(tiny_config(), dense_layers=(0, 5)).to_hf()
