"""A released ``config.json`` gives the preset's sizes; a broken one says what is broken."""

from __future__ import annotations

import json

import pytest

from kdalab.errors import KdalabError
from kdalab.spec import (
    LatentAttention,
    LayerType,
    load_hf_config,
    preset,
    resolve_model,
    spec_from_hf_config,
    state_sizes,
)


def kimi_config(name: str) -> dict:
    """A config in the released Kimi form, written from the preset's own numbers."""
    spec = preset(name)
    assert isinstance(spec.full, LatentAttention)
    return {
        "model_type": "kimi_linear",
        "dtype": "bfloat16",
        "hidden_size": spec.hidden_size,
        "vocab_size": spec.vocab_size,
        "model_max_length": spec.max_context,
        "num_hidden_layers": spec.num_layers,
        "num_attention_heads": spec.full.num_heads,
        "kv_lora_rank": spec.full.kv_lora_rank,
        "q_lora_rank": spec.full.q_lora_rank,
        "qk_rope_head_dim": spec.full.qk_rope_head_dim,
        "qk_nope_head_dim": spec.full.qk_nope_head_dim,
        "v_head_dim": spec.full.v_head_dim,
        "linear_attn_config": {
            "num_heads": spec.linear.num_v_heads,
            "head_dim": spec.linear.head_v_dim,
            "short_conv_kernel_size": spec.linear.conv_kernel,
            "kda_layers": [i + 1 for i in spec.linear_layers],
            "full_attn_layers": [i + 1 for i in spec.full_layers],
        },
    }


def same_sizes(one, other) -> bool:
    return state_sizes(one).to_dict() == state_sizes(other).to_dict()


def test_kimi_linear_config_gives_the_presets_sizes():
    spec = spec_from_hf_config(kimi_config("kimi-linear-48b"))
    assert spec.layer_types == preset("kimi-linear-48b").layer_types
    assert same_sizes(spec, preset("kimi-linear-48b"))


def test_kimi_k3_reads_its_text_config(tmp_path):
    folder = tmp_path / "Kimi-K3"
    folder.mkdir()
    whole = {"model_type": "kimi_k3", "text_config": kimi_config("kimi-k3"), "vision_config": {}}
    (folder / "config.json").write_text(json.dumps(whole))
    for path in (folder, folder / "config.json"):
        spec = load_hf_config(path)
        assert spec.name == "Kimi-K3"
        assert same_sizes(spec, preset("kimi-k3"))
    assert resolve_model(str(folder)).name == "Kimi-K3"


def test_transformers_kimi_linear_config_is_read():
    config_class = pytest.importorskip("transformers").KimiLinearConfig
    raw = kimi_config("kimi-linear-48b")
    raw.pop("model_type")
    config = config_class(**raw)
    assert same_sizes(spec_from_hf_config(config.to_dict()), preset("kimi-linear-48b"))
    # Without the released layer lists the library spaces full attention differently: 5, 9, ..., 25.
    default = spec_from_hf_config(config_class(dtype="bfloat16").to_dict())
    assert [i + 1 for i in default.full_layers] == [5, 9, 13, 17, 21, 25]
    assert default.linear == preset("kimi-linear-48b").linear
    assert default.full == preset("kimi-linear-48b").full
    ours, theirs = preset("kimi-linear-48b").feed_forward, default.feed_forward
    assert ours == theirs


def test_transformers_qwen3_next_defaults_are_the_preset():
    config = pytest.importorskip("transformers").Qwen3NextConfig(dtype="bfloat16")
    spec = spec_from_hf_config(config.to_dict())
    ours = preset("qwen3-next-80b")
    assert (spec.linear, spec.full, spec.layer_types) == (ours.linear, ours.full, ours.layer_types)
    assert same_sizes(spec, ours)


def test_transformers_glm5_next_defaults_are_the_preset():
    transformers = pytest.importorskip("transformers")
    config_class = getattr(transformers, "Glm5NextConfig", None)
    if config_class is None:
        pytest.skip("this transformers has no Glm5NextConfig")
    config = config_class(dtype="bfloat16")
    spec = spec_from_hf_config(config.to_dict())
    ours = preset("glm-5.3-flash")
    assert (spec.linear, spec.full, spec.layer_types) == (ours.linear, ours.full, ours.layer_types)
    assert (spec.feed_forward, spec.vocab_size) == (ours.feed_forward, ours.vocab_size)


def test_qwen3_next_interval_form():
    config = {
        "model_type": "qwen3_next",
        "hidden_size": 64,
        "vocab_size": 100,
        "max_position_embeddings": 1000,
        "num_hidden_layers": 8,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "linear_conv_kernel_dim": 4,
        "full_attention_interval": 4,
        "torch_dtype": "float32",
    }
    spec = spec_from_hf_config(config)
    assert spec.full_layers == (3, 7)
    assert spec.kv_dtype == "fp32"
    assert state_sizes(spec).conv_bytes_per_layer == (2 * 32 + 64) * 3 * 4
    del config["linear_num_value_heads"]
    with pytest.raises(KdalabError, match="lacks linear_num_value_heads"):
        spec_from_hf_config(config)


def test_missing_fields_are_named_together():
    config = kimi_config("tiny")
    del config["kv_lora_rank"], config["linear_attn_config"]["head_dim"]
    with pytest.raises(
        KdalabError, match=r"lacks linear_attn_config\.head_dim or linear_head_dim, kv_lora_rank"
    ):
        spec_from_hf_config(config)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": "128"}, "hidden_size is '128'"),
        ({"hidden_size": True}, "hidden_size is True"),
        ({"num_hidden_layers": -3}, "num_hidden_layers is -3"),
        ({"num_hidden_layers": 10**9}, "at most"),
        ({"model_type": "llama"}, "known: kimi_linear"),
        ({"model_type": ["kimi_linear"]}, "known: kimi_linear"),
        ({"dtype": "int3"}, "unknown dtype"),
        ({"linear_attn_config": 7}, "lacks linear_attn_config.num_heads"),
    ],
)
def test_wrong_values_are_named(change, message):
    with pytest.raises(KdalabError, match=message):
        spec_from_hf_config(kimi_config("tiny") | change)


@pytest.mark.parametrize(
    ("kda", "full", "message"),
    [
        ([1, 2, 3], [4, 8], r"in neither: \[5, 6, 7\]"),
        ([1, 2, 3, 4, 5, 6, 7], [4, 8], r"twice: \[4\]"),
        ([1, 2, 3, 5, 6, 7], [4, 9], r"out of range: \[9\]"),
        (["1"], [4, 8], "list of integers"),
    ],
)
def test_layer_lists_must_share_out_the_layers(kda, full, message):
    config = kimi_config("tiny")
    config["linear_attn_config"] |= {"kda_layers": kda, "full_attn_layers": full}
    with pytest.raises(KdalabError, match=message):
        spec_from_hf_config(config)


def test_layer_words_are_checked():
    config = kimi_config("tiny")
    for key in ("kda_layers", "full_attn_layers"):
        del config["linear_attn_config"][key]
    with pytest.raises(KdalabError, match="does not say which layers"):
        spec_from_hf_config(config)
    with pytest.raises(KdalabError, match="layer_types has 2 for 8 layers"):
        spec_from_hf_config(config | {"layer_types": ["linear_attention"] * 2})
    with pytest.raises(KdalabError, match="layer_types has sliding"):
        spec_from_hf_config(config | {"layer_types": ["sliding"] * 8})
    words = ["linear_attention"] * 7 + ["indexed_attention"]
    spec = spec_from_hf_config(config | {"layer_types": words})
    assert spec.layer_types[-1] is LayerType.FULL
    assert spec.num_linear_layers == 7


def test_wrapper_without_text_config_says_so():
    with pytest.raises(KdalabError, match="kimi_k3 config lacks text_config"):
        spec_from_hf_config({"model_type": "kimi_k3"})


def test_files_that_are_not_configs_say_why(tmp_path):
    file = tmp_path / "config.json"
    with pytest.raises(KdalabError, match="no such file"):
        load_hf_config(file)
    file.write_text("{not json")
    with pytest.raises(KdalabError, match=r"not JSON .*line 1, column 2"):
        load_hf_config(file)
    file.write_text("[1, 2]")
    with pytest.raises(KdalabError, match="JSON list"):
        load_hf_config(file)
    file.write_text("[" * 200_000)
    with pytest.raises(KdalabError, match="not JSON"):
        load_hf_config(file)
    file.write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(KdalabError, match="UTF-8"):
        load_hf_config(file)
    with file.open("wb") as handle:
        handle.truncate(10 * 1024 * 1024 + 1)
    with pytest.raises(KdalabError, match="10,485,761 bytes"):
        load_hf_config(file)
