"""What a checkpoint folder must hold; each thing that is wrong with one is named."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
from model_cases import odd_config, prompt
from safetensors.torch import save_file

from kdalab.errors import KdalabError
from kdalab.model import load_pretrained, save_pretrained, tiny_config
from kdalab.model.files import INDEX, SINGLE
from kdalab.model.shapes import expected_shapes
from kdalab.model.tiny import tiny_weights
from kdalab.model.weights import build
from kdalab.spec.hf_config import load_hf_config
from kdalab.spec.sizing import state_sizes


@lru_cache
def _drawn() -> dict[str, torch.Tensor]:
    return tiny_weights(0)


def weights_of_zero() -> dict[str, torch.Tensor]:
    """The tiny model's weights, drawn once; the dictionary is the caller's own."""
    return dict(_drawn())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_pretrained(weights_of_zero(), tiny_config(), tmp_path)
    return tmp_path


def edit(file: Path, **changes: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


@pytest.mark.parametrize("config", [tiny_config(), odd_config()], ids=["tiny", "odd"])
def test_a_saved_model_loads_as_itself(tmp_path: Path, config: Any) -> None:
    weights = tiny_weights(3, config)
    save_pretrained(weights, config, tmp_path)
    loaded = load_pretrained(tmp_path, decode_rows=3)
    assert loaded.config == config
    assert loaded.decode_rows == 3
    tokens = prompt(70)
    assert torch.equal(loaded.logits(tokens), build(config, weights).logits(tokens))


def test_a_saved_folder_resolves_in_spec_with_the_sizes_of_the_real_states(folder: Path) -> None:
    recurrent, conv, latent = load_pretrained(folder).zero_state()
    sizes = state_sizes(load_hf_config(folder))
    assert (sizes.recurrent_bytes, sizes.conv_bytes) == (recurrent.nbytes, conv.nbytes)
    one_token = latent.new_zeros(latent.shape[0], 1, latent.shape[2])
    assert sizes.latent_bytes_per_token == one_token.nbytes


def test_a_folder_of_shards_loads_and_a_missing_shard_is_named(folder: Path) -> None:
    weights = weights_of_zero()
    names = sorted(weights)
    places: dict[str, str] = {}
    for i, part in enumerate((names[::2], names[1::2])):
        save_file({n: weights[n] for n in part}, folder / f"part-{i}.safetensors")
        places |= dict.fromkeys(part, f"part-{i}.safetensors")
    (folder / SINGLE).unlink()
    (folder / INDEX).write_text(json.dumps({"weight_map": places}))
    tokens = prompt(5)
    expected = build(tiny_config(), weights).logits(tokens)
    assert torch.equal(load_pretrained(folder).logits(tokens), expected)
    (folder / "part-1.safetensors").unlink()
    with pytest.raises(KdalabError, match=r"part-1\.safetensors is missing"):
        load_pretrained(folder)


def test_a_flat_decay_rate_is_read_as_the_four_axis_one() -> None:
    weights = weights_of_zero()
    flat = {k: v.flatten() if k.endswith("A_log") else v for k, v in weights.items()}
    tokens = prompt(5)
    a, b = (build(tiny_config(), w).logits(tokens) for w in (flat, weights))
    assert torch.equal(a, b)


# -- files -----------------------------------------------------------------------------------


def test_a_folder_without_a_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KdalabError, match=r"no config\.json in"):
        load_pretrained(tmp_path)
    with pytest.raises(KdalabError, match=r"no config\.json in"):
        load_pretrained(tmp_path / "nowhere")


@pytest.mark.parametrize("content", [b"", b"{", b"weights: 3", b"\xff\xfe\x00"])
@pytest.mark.parametrize("name", ["config.json", INDEX])
def test_a_json_file_that_is_not_json_is_refused(folder: Path, name: str, content: bytes) -> None:
    (folder / name).write_bytes(content)
    with pytest.raises(KdalabError, match=f"{name} is not JSON"):
        load_pretrained(folder)


@pytest.mark.parametrize("content", ["[1, 2]", '"kimi"', "null", "3"])
def test_a_config_that_is_no_object_is_refused(folder: Path, content: str) -> None:
    (folder / "config.json").write_text(content)
    with pytest.raises(KdalabError, match="must be an object"):
        load_pretrained(folder)


def test_a_folder_without_weights_is_refused(folder: Path) -> None:
    (folder / SINGLE).unlink()
    with pytest.raises(KdalabError, match=r"model\.safetensors is missing"):
        load_pretrained(folder)


@pytest.mark.parametrize(
    "content", [b"", b"not safetensors at all", b"\xff" * 64, b"\x80\x02}q\x00."]
)
def test_weights_that_are_not_safetensors_are_refused(folder: Path, content: bytes) -> None:
    (folder / SINGLE).write_bytes(content)
    with pytest.raises(KdalabError, match="cannot be read as safetensors"):
        load_pretrained(folder)


def test_a_truncated_weights_file_is_refused(folder: Path) -> None:
    whole = (folder / SINGLE).read_bytes()
    (folder / SINGLE).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(KdalabError, match="cannot be read as safetensors"):
        load_pretrained(folder)


@pytest.mark.parametrize(
    "place", ["../outside.safetensors", "/outside.safetensors", "sub/x.safetensors", ".."]
)
def test_an_index_cannot_point_outside_the_folder(folder: Path, place: str) -> None:
    save_file(weights_of_zero(), folder.parent / "outside.safetensors")
    target = str(folder.parent) + place if place.startswith("/") else place
    (folder / INDEX).write_text(json.dumps({"weight_map": {"lm_head.weight": target}}))
    with pytest.raises(KdalabError, match="is missing" if place == ".." else "outside"):
        load_pretrained(folder)


@pytest.mark.parametrize("index", [{}, [], {"weight_map": 3}, {"weight_map": {"a": 3}}])
def test_an_index_without_a_map_of_tensors_is_refused(folder: Path, index: Any) -> None:
    (folder / INDEX).write_text(json.dumps(index))
    with pytest.raises(KdalabError, match="no weight_map"):
        load_pretrained(folder)


# -- tensors ---------------------------------------------------------------------------------

SOME = (
    "lm_head.weight",
    "model.layers.0.mlp.up_proj.weight",
    "model.layers.1.self_attn.k_conv1d.weight",
    "model.layers.2.self_attn.dt_bias",
    "model.layers.3.self_attn.kv_b_proj.weight",
    "model.layers.4.block_sparse_moe.experts.7.w2.weight",
)


@pytest.mark.parametrize("name", SOME)
def test_a_missing_tensor_is_named(name: str) -> None:
    weights = weights_of_zero()
    del weights[name]
    with pytest.raises(KdalabError, match=f"1 tensors are missing.*{name}"):
        build(tiny_config(), weights)


def test_a_tensor_without_a_place_is_named() -> None:
    extra = "model.layers.8.input_layernorm.weight"
    with pytest.raises(KdalabError, match=f"1 tensors .* have no place.*{extra}"):
        build(tiny_config(), weights_of_zero() | {extra: torch.ones(128)})


@pytest.mark.parametrize("name", [*SOME, "model.layers.0.self_attn.A_log"])
def test_a_tensor_of_another_shape_is_named_with_both_shapes(name: str) -> None:
    wrong = torch.zeros(7, 7)
    expected = expected_shapes(tiny_config())[name]
    with pytest.raises(KdalabError) as error:
        build(tiny_config(), weights_of_zero() | {name: wrong})
    for part in (name, "(7, 7)", str(expected)):
        assert part in str(error.value)


def test_a_transposed_tensor_is_not_taken_for_the_right_one() -> None:
    name = "model.layers.3.self_attn.kv_a_proj_with_mqa.weight"
    weights = weights_of_zero()
    with pytest.raises(KdalabError, match=name):
        build(tiny_config(), weights | {name: weights[name].T})


# -- values, keys and the index --------------------------------------------------------------


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("name", ["lm_head.weight", "model.layers.1.self_attn.A_log"])
def test_a_weight_that_is_not_finite_is_named_with_its_place(
    folder: Path, name: str, value: float
) -> None:
    weights = weights_of_zero()
    weights[name] = weights[name].clone()
    weights[name].view(-1)[-1] = value
    save_file(weights, folder / SINGLE)
    last = [n - 1 for n in weights[name].shape]
    with pytest.raises(KdalabError, match="1 values that are NaN or infinite") as error:
        load_pretrained(folder)
    for part in (name, SINGLE, str(value), str(last)):
        assert part in str(error.value)


def test_a_weight_that_the_asked_for_dtype_cannot_hold_is_named(folder: Path) -> None:
    weights = weights_of_zero()
    weights["lm_head.weight"] = weights["lm_head.weight"].clone()
    weights["lm_head.weight"][2, 5] = 1e5
    save_file(weights, folder / SINGLE)
    load_pretrained(folder, dtype=torch.bfloat16)
    with pytest.raises(KdalabError, match=r"lm_head\.weight .*float16.*inf at \[2, 5\]"):
        load_pretrained(folder, dtype=torch.float16)


@pytest.mark.parametrize("read", [load_pretrained, load_hf_config])
@pytest.mark.parametrize("inner", [False, True])
def test_a_key_that_stands_twice_is_refused(folder: Path, read: Any, inner: bool) -> None:
    file = folder / "config.json"
    text = file.read_text()
    key = '"head_dim": 32' if inner else '"model_type": "kimi_linear"'
    assert key in text
    file.write_text(text.replace(key, f"{key}, {key}"))
    with pytest.raises(KdalabError, match=f"states '{key.split(chr(34))[1]}' twice"):
        read(folder)


def _index(folder: Path) -> dict[str, str]:
    """Two shards; gives the places that an honest index names."""
    weights = weights_of_zero()
    names = sorted(weights)
    places: dict[str, str] = {}
    for i, part in enumerate((names[::2], names[1::2])):
        save_file({n: weights[n] for n in part}, folder / f"part-{i}.safetensors")
        places |= dict.fromkeys(part, f"part-{i}.safetensors")
    (folder / SINGLE).unlink()
    (folder / INDEX).write_text(json.dumps({"weight_map": places}))
    return places


def test_an_index_that_places_a_tensor_where_it_is_not_is_refused(folder: Path) -> None:
    places = _index(folder)
    load_pretrained(folder)
    name = next(n for n, where in places.items() if where == "part-1.safetensors")
    for places_now, message in (
        (places | {name: "part-0.safetensors"}, rf"1 tensors in part-0.* not hold.*{name}"),
        (places | {"model.none": "part-1.safetensors"}, r"part-1.* not hold.*model\.none"),
        ({n: p for n, p in places.items() if n != name}, rf"part-1.* holds 1 tensors.*{name}"),
    ):
        (folder / INDEX).write_text(json.dumps({"weight_map": places_now}))
        with pytest.raises(KdalabError, match=message):
            load_pretrained(folder)


def test_a_tensor_that_the_index_says_nothing_of_is_refused_on_the_vision_side_too(
    folder: Path,
) -> None:
    places = _index(folder)
    shard = folder / "part-1.safetensors"
    held = {n: t for n, t in weights_of_zero().items() if places[n] == shard.name}
    save_file(held | {"vision_tower.x": torch.ones(2)}, shard)
    with pytest.raises(KdalabError, match=r"part-1.* holds 1 tensors.*vision_tower\.x"):
        load_pretrained(folder)
