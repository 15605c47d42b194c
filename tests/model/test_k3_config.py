"""Kimi K3's config and checkpoint layout: every switch is stated, and what is wrong is named."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from model_cases import half_k3_config, odd_k3_config, prompt
from safetensors.torch import load_file, save_file

from kdalab.errors import KdalabError
from kdalab.model import (
    KimiLinearConfig,
    load_pretrained,
    named_model,
    save_pretrained,
    tiny_config,
    tiny_k3_config,
    tiny_k3_model,
)
from kdalab.model.files import INDEX, SINGLE
from kdalab.model.hf_config import LINEAR_SWITCHES, SWITCHES
from kdalab.model.tiny import tiny_weights
from kdalab.model.weights import build
from kdalab.spec import preset, state_sizes
from kdalab.spec.hf_config import load_hf_config

CONFIGS = pytest.mark.parametrize(
    "config", [tiny_k3_config(), odd_k3_config(), half_k3_config()], ids=["tiny", "odd", "half"]
)


def raw(linear: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """The tiny config's ``config.json`` with other fields in its text part."""
    config = tiny_k3_config().to_hf()
    config["text_config"]["linear_attn_config"] |= linear or {}
    config["text_config"] |= changes
    return config


def refused(config: Any) -> str:
    with pytest.raises(KdalabError) as error:
        KimiLinearConfig.from_hf(config)
    return str(error.value)


# -- config ----------------------------------------------------------------------------------


@CONFIGS
def test_a_config_reads_as_the_one_it_was_made_from(config: KimiLinearConfig) -> None:
    written = json.loads(json.dumps(config.to_hf()))
    assert written["model_type"] == "kimi_k3"
    assert KimiLinearConfig.from_hf(written) == config
    assert KimiLinearConfig.from_hf(written["text_config"]) == config


def test_layers_are_counted_from_one_in_the_file_and_from_zero_here() -> None:
    linear = raw()["text_config"]["linear_attn_config"]
    assert linear["full_attn_layers"] == [4, 8, 9]
    assert tiny_k3_config().full_attn_layers == (3, 7, 8)


def test_every_switch_is_off_unless_it_is_on() -> None:
    assert tiny_config().k3_switches == ()
    assert set(tiny_config().to_hf()) & set(SWITCHES) == set()
    assert len(tiny_k3_config().k3_switches) == 7


@pytest.mark.parametrize("field", [*SWITCHES, "hidden_act", "mla_use_nope"])
def test_a_switch_that_is_not_stated_is_named(field: str) -> None:
    config = raw()
    del config["text_config"][field]
    assert f"does not state {field}" in refused(config)
    assert f"does not state {field}" in refused(config["text_config"])


@pytest.mark.parametrize("field", LINEAR_SWITCHES)
def test_a_switch_of_the_linear_layers_that_is_not_stated_is_named(field: str) -> None:
    config = raw()
    del config["text_config"]["linear_attn_config"][field]
    assert f"does not state linear_attn_config.{field}" in refused(config)


def test_a_kimi_k3_config_states_its_switches_even_when_all_are_off() -> None:
    assert "is of model_type kimi_k3" in refused(
        {"model_type": "kimi_k3", "text_config": tiny_config().to_hf()}
    )
    assert "lacks text_config" in refused({"model_type": "kimi_k3"})


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"attn_res_blocksize": 3}, "attn_res_blocksize"),
        ({"activation_situ_gamma": 1.0}, "activation_situ_gamma"),
        ({"latent_moe_norm": True}, "latent_moe_norm"),
        ({"mla_use_gate": True}, "mla_use_gate"),
        ({"gate_lower_bound": -5.0}, "gate_lower_bound belongs into linear_attn_config"),
        ({"linear": {"gate_lowerbound": -5.0}}, "gate_lowerbound"),
        ({"linear": {"attn_res_block_size": 3}}, "attn_res_block_size'; it belongs beside"),
    ],
)
def test_a_switch_that_is_not_known_is_named(changes: dict[str, Any], named: str) -> None:
    assert named in refused(raw(**changes))


BAD = [
    ({"linear": {"gate_lower_bound": 5.0}}, "gate_lower_bound is 5.0"),
    ({"linear": {"gate_lower_bound": "-5"}}, "gate_lower_bound is '-5'"),
    ({"linear": {"gate_lower_bound": float("nan")}}, "gate_lower_bound is nan"),
    ({"linear": {"use_full_rank_gate": "false"}}, "use_full_rank_gate is 'false'"),
    ({"linear": {"use_full_rank_gate": 1}}, "use_full_rank_gate is 1"),
    ({"mla_use_output_gate": "yes"}, "mla_use_output_gate is 'yes'"),
    ({"attn_res_block_size": 0}, "attn_res_block_size is 0"),
    ({"attn_res_block_size": 3.0}, "attn_res_block_size is 3.0"),
    ({"routed_expert_hidden_size": True}, "routed_expert_hidden_size is True"),
    ({"routed_expert_hidden_size": None}, "latent_moe_use_norm is True"),
    ({"latent_moe_use_norm": "true"}, "latent_moe_use_norm is 'true'"),
    ({"hidden_act": "relu"}, "hidden_act is 'relu'"),
    ({"hidden_act": ["situ"]}, "hidden_act is ['situ']"),
    ({"activation_situ_beta": None}, "activation_situ_beta is None"),
    ({"activation_situ_beta": 0}, "activation_situ_beta is 0"),
    ({"activation_situ_linear_beta": -25.0}, "activation_situ_linear_beta is -25.0"),
    ({"moe_renormalize": "false"}, "moe_renormalize is 'false'"),
    ({"routed_scaling_factor": "1.0"}, "routed_scaling_factor is '1.0'"),
    ({"rms_norm_eps": 0}, "rms_norm_eps is 0"),
    ({"vocab_size": "320"}, "vocab_size is '320'"),
    ({"hidden_size": 128.0}, "hidden_size is 128.0"),
    ({"hidden_size": 10**400}, "hidden_size is a number of 401 digits"),
    ({"num_hidden_layers": 10**12}, "num_hidden_layers is 1000000000000"),
    ({"num_experts": 10**12}, "num_experts is 1000000000000"),
    ({"num_experts": 10**8}, "num_experts is 100,000,000 in 9 layers"),
    ({"num_attention_heads": 10**12}, "num_attention_heads is 1000000000000"),
    ({"num_attention_heads": -4}, "num_attention_heads is -4"),
    ({"num_experts_per_token": 9}, "num_experts_per_token is 9"),
    ({"num_expert_group": 3}, "num_expert_group is 3"),
    ({"topk_group": 2}, "topk_group is 2"),
    ({"first_k_dense_replace": "1"}, "first_k_dense_replace is '1'"),
    ({"linear": {"num_heads": "4"}}, "linear_attn_config.num_heads is '4'"),
    ({"linear": {"num_heads": 10**12}}, "linear_attn_config.num_heads is 1000000000000"),
    ({"linear": {"full_attn_layers": "4,8,9"}}, "full_attn_layers is '4,8,9'"),
    ({"linear": {"full_attn_layers": [4, 8, "9"]}}, "full_attn_layers is [4, 8, '9']"),
    ({"linear": {"full_attn_layers": [3, 7, 8]}}, "each of 1..9 once"),
    ({"linear_attn_config": None}, "linear_attn_config."),
    ({"linear_attn_config": 3}, "linear_attn_config is 3"),
    ({"moe_layer_freq": "1"}, "moe_layer_freq is '1'"),
    ({"attention_bias": "no"}, "attention_bias is 'no'"),
    ({"topk_method": "greedy"}, "topk_method 'greedy'"),
    ({"model_max_length": "1M"}, "model_max_length is '1M'"),
]


@pytest.mark.parametrize(("changes", "named"), BAD)
def test_a_malformed_field_is_named(tmp_path: Path, changes: dict[str, Any], named: str) -> None:
    config = raw(**changes)
    assert named in refused(config)
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(KdalabError):
        load_pretrained(tmp_path)


@pytest.mark.parametrize("text", [3, "kimi", [1]])
def test_a_text_config_that_is_no_object_is_refused(text: Any) -> None:
    assert "text_config is" in refused({"model_type": "kimi_k3", "text_config": text})


def test_numbers_that_contradict_each_other_are_refused_wherever_they_come_from() -> None:
    for change in (
        {"attn_res_block_size": 0}, {"gate_lower_bound": 1.0}, {"hidden_act": "gelu"},
        {"activation_situ_beta": -1.0}, {"routed_expert_hidden_size": None},
    ):  # fmt: skip
        with pytest.raises(KdalabError):
            replace(tiny_k3_config(), **change)


# -- checkpoint ------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_pretrained(tiny_weights(0, tiny_k3_config()), tiny_k3_config(), tmp_path)
    return tmp_path


@CONFIGS
def test_a_saved_model_loads_as_itself(tmp_path: Path, config: KimiLinearConfig) -> None:
    weights = tiny_weights(3, config)
    save_pretrained(weights, config, tmp_path)
    loaded, tokens = load_pretrained(tmp_path), prompt(70)
    assert loaded.config == config
    assert torch.equal(loaded.logits(tokens), build(config, weights).logits(tokens))


def test_the_preset_has_the_bytes_of_the_models_tensors(folder: Path) -> None:
    recurrent, conv, latent = tiny_k3_model().zero_state()
    for sizes in (state_sizes(preset("tiny-k3")), state_sizes(load_hf_config(folder))):
        assert sizes.recurrent_bytes == recurrent.nbytes
        assert sizes.conv_bytes == conv.nbytes
        assert sizes.latent_bytes(7) == latent.new_zeros(len(latent), 7, latent.shape[2]).nbytes
    spec = preset("tiny-k3")
    assert spec.full_layers == tiny_k3_config().full_attn_layers
    assert spec.feed_forward == load_hf_config(folder).feed_forward


def test_the_layout_of_a_released_checkpoint_loads(folder: Path) -> None:
    """Shards, a vision tower, padded decay rates, experts' names without the wrapper's prefix."""
    saved = load_file(folder / SINGLE)
    (folder / SINGLE).unlink()
    for name, w in saved.items():
        if name.endswith("A_log"):
            saved[name] = torch.cat([w, torch.zeros(128 - len(w))])
    saved["vision_tower.patch_embed.proj.weight"] = torch.ones(3)
    saved["mm_projector.linear_1.weight"] = torch.ones(3)
    names = sorted(saved)
    places: dict[str, str] = {}
    for i, part in enumerate((names[::2], names[1::2])):
        save_file({n: saved[n] for n in part}, folder / f"model-{i}.safetensors")
        places |= dict.fromkeys(part, f"model-{i}.safetensors")
    (folder / INDEX).write_text(json.dumps({"weight_map": places}))
    tokens = prompt(20)
    assert torch.equal(load_pretrained(folder).logits(tokens), tiny_k3_model().logits(tokens))


def test_decay_rates_that_are_not_one_a_head_are_refused() -> None:
    weights = tiny_weights(0, tiny_k3_config())
    name = "model.layers.0.self_attn.A_log"
    for wrong in (torch.ones(128), torch.ones(3), torch.ones(4, 32)):
        with pytest.raises(KdalabError, match=f"{name} has shape"):
            build(tiny_k3_config(), weights | {name: wrong})


def test_a_tensor_that_is_there_under_two_names_is_refused() -> None:
    weights = tiny_weights(0, tiny_k3_config())
    twice = {"language_model.lm_head.weight": weights["lm_head.weight"]}
    with pytest.raises(KdalabError, match=r"lm_head\.weight twice"):
        build(tiny_k3_config(), weights | twice)


def test_packed_experts_are_refused(folder: Path) -> None:
    saved = load_file(folder / SINGLE)
    expert = "language_model.model.layers.1.block_sparse_moe.experts.0.w1.weight"
    packed = saved | {f"{expert}_packed": torch.zeros(64, 32, dtype=torch.uint8)}
    del packed[expert]
    save_file(packed, folder / SINGLE)
    with pytest.raises(KdalabError, match="packed, quantised weight"):
        load_pretrained(folder)
    save_file(saved | {expert: torch.zeros(64, 64, dtype=torch.uint8)}, folder / SINGLE)
    with pytest.raises(KdalabError, match=r"w1\.weight is stored as torch\.uint8"):
        load_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    for part in (config, config["text_config"]):
        part["quantization_config"] = {"format": "mxfp4-pack"}
        (folder / "config.json").write_text(json.dumps(config))
        with pytest.raises(KdalabError, match=r"quantization_config \('mxfp4-pack'\)"):
            load_pretrained(folder)
        del part["quantization_config"]


@pytest.mark.parametrize("name", [
    "model.output_attn_res_proj.weight", "model.layers.0.self_attention_res_norm.weight",
    "model.layers.8.self_attn.g_proj.weight", "model.layers.0.self_attn.g_proj.weight",
    "model.layers.5.block_sparse_moe.routed_expert_norm.weight",
])  # fmt: skip
def test_a_missing_tensor_is_named(name: str) -> None:
    weights = tiny_weights(0, tiny_k3_config())
    del weights[name]
    with pytest.raises(KdalabError, match=f"1 tensors are missing.*{name}"):
        build(tiny_k3_config(), weights)


def test_a_model_that_is_not_made_on_the_spot_is_refused() -> None:
    assert named_model("tiny-k3").config == tiny_k3_config()
    with pytest.raises(KdalabError, match="there are tiny, tiny-k3"):
        named_model("kimi-k3")


@pytest.mark.parametrize("rows", [0, -1, "8", 1.5, True, 10**12])
def test_an_absurd_number_of_decode_rows_is_refused(rows: Any) -> None:
    with pytest.raises(KdalabError, match="decode_rows must be"):
        tiny_k3_model(decode_rows=rows)


# -- beside text_config ----------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["kimi_linear", "kimi_vl", "", 3])
def test_a_text_config_within_another_model_is_refused_with_the_place(kind: Any) -> None:
    config = tiny_k3_config().to_hf() | {"model_type": kind}
    with pytest.raises(KdalabError, match=r"text_config, and model_type beside it is .*'kimi_k3'"):
        KimiLinearConfig.from_hf(config)


@pytest.mark.parametrize(
    ("key", "value", "place"),
    [
        ("mla_use_output_gate", False, "into text_config"),
        ("attn_res_block_size", 4, "into text_config"),
        ("attn_res_size", 4, "into text_config"),
        ("gate_lower_bound", -5.0, "into text_config.linear_attn_config"),
        ("hidden_act", "situ", "into text_config"),
        ("linear_attn_config", {}, "into text_config"),
    ],
)
def test_a_switch_beside_text_config_is_refused_with_its_place(
    key: str, value: Any, place: str
) -> None:
    config = tiny_k3_config().to_hf()
    assert KimiLinearConfig.from_hf(config | {key: None}) == tiny_k3_config()
    with pytest.raises(KdalabError) as error:
        KimiLinearConfig.from_hf(config | {key: value})
    assert str(error.value).startswith(f"{key} stands beside text_config")
    assert str(error.value).endswith(place)
