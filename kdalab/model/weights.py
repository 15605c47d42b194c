"""Reading and writing checkpoints of ``KimiLinearForCausalLM``: config.json and safetensors.

Only safetensors are read; nothing is ever unpickled.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from kdalab.errors import KdalabError
from kdalab.model.config import KimiLinearConfig
from kdalab.model.kda import KDALayer
from kdalab.model.mla import MLALayer
from kdalab.model.moe import MLP, MoE
from kdalab.model.network import Block, HybridModel

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"

KEPT_WIDE = ("A_log", "dt_bias", ".gate.weight", "e_score_correction_bias")
"""Ends of the names that stay in fp32 in a model of lower precision, as in transformers: decay
rates and the router's scores are sensitive to rounding."""


def load_pretrained(
    path: str | Path, dtype: torch.dtype = torch.float32, decode_rows: int = 8
) -> HybridModel:
    """Load a folder with ``config.json`` and ``model.safetensors`` (or shards and their index).

    Raises:
        KdalabError: a file, a field or a tensor is missing, or a tensor has the wrong shape; the
            message names it.
    """
    folder = Path(path)
    config_file = folder / "config.json"
    if not config_file.is_file():
        raise KdalabError(f"no config.json in {folder}; give the folder of a checkpoint")
    config = KimiLinearConfig.from_hf(_read_json(config_file))
    return build(config, _read_tensors(folder, dtype), decode_rows)


def save_pretrained(
    model_weights: Mapping[str, torch.Tensor], config: KimiLinearConfig, path: str | Path
) -> None:
    """Write weights under their Hugging Face names, with a config that transformers reads."""
    from safetensors.torch import save_file

    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(
        {k: v.contiguous() for k, v in model_weights.items()},
        folder / SINGLE,
        metadata={"format": "pt"},
    )
    dtype = str(model_weights["lm_head.weight"].dtype).removeprefix("torch.")
    raw = config.to_hf() | {"dtype": dtype}
    (folder / "config.json").write_text(json.dumps(raw, indent=2) + "\n")


def build(
    config: KimiLinearConfig, tensors: Mapping[str, torch.Tensor], decode_rows: int = 8
) -> HybridModel:
    """Assemble the network from tensors under their Hugging Face names."""
    shapes = expected_shapes(config)
    found = {_canonical(name): tensor for name, tensor in tensors.items()}
    missing = [name for name in shapes if name not in found]
    if missing:
        raise KdalabError(
            f"{len(missing)} tensors are missing from the checkpoint, the first: {missing[0]}"
        )
    extra = [name for name in found if name not in shapes]
    if extra:
        raise KdalabError(
            f"{len(extra)} tensors of the checkpoint have no place in this network, the first: "
            f"{extra[0]}"
        )
    w: dict[str, torch.Tensor] = {}
    for name, shape in shapes.items():
        tensor = found[name]
        if name.endswith("A_log") and tensor.numel() == shape[2]:
            tensor = tensor.reshape(shape)  # some checkpoints store it flat
        if tuple(tensor.shape) != shape:
            raise KdalabError(f"{name} has shape {tuple(tensor.shape)}; expected {shape}")
        w[name] = tensor
    blocks = [_block(config, w, i) for i in range(config.num_hidden_layers)]
    return HybridModel(
        config,
        w["model.embed_tokens.weight"],
        blocks,
        w["model.norm.weight"],
        w["lm_head.weight"],
        decode_rows,
    )


def expected_shapes(config: KimiLinearConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor of the checkpoint and its shape ([out, in] for projections)."""
    c, hidden = config, config.hidden_size
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (c.vocab_size, hidden),
        "model.norm.weight": (hidden,),
        "lm_head.weight": (c.vocab_size, hidden),
    }
    for i in range(c.num_hidden_layers):
        layer = f"model.layers.{i}."
        shapes[layer + "input_layernorm.weight"] = (hidden,)
        shapes[layer + "post_attention_layernorm.weight"] = (hidden,)
        attention = _mla_shapes(c) if i in c.full_attn_layers else _kda_shapes(c)
        shapes |= {f"{layer}self_attn.{k}": v for k, v in attention.items()}
        if i in c.dense_layers:
            shapes |= _mlp_shapes(layer + "mlp.", hidden, c.intermediate_size)
        else:
            shapes |= {f"{layer}block_sparse_moe.{k}": v for k, v in _moe_shapes(c).items()}
    return shapes


def dtype_of(name: str, dtype: torch.dtype) -> torch.dtype:
    """What a tensor of a model of ``dtype`` is kept in."""
    return torch.promote_types(dtype, torch.float32) if name.endswith(KEPT_WIDE) else dtype


def _kda_shapes(c: KimiLinearConfig) -> dict[str, tuple[int, ...]]:
    width, dim, hidden = c.kda_width, c.linear_head_dim, c.hidden_size
    shapes: dict[str, tuple[int, ...]] = {}
    for x in "qkv":
        shapes[f"{x}_proj.weight"] = (width, hidden)
        shapes[f"{x}_conv1d.weight"] = (width, 1, c.linear_conv_kernel_dim)
    for x in "fg":
        shapes[f"{x}_a_proj.weight"] = (dim, hidden)
        shapes[f"{x}_b_proj.weight"] = (width, dim)
    shapes["b_proj.weight"] = (c.linear_num_heads, hidden)
    shapes["A_log"] = (1, 1, c.linear_num_heads, 1)
    shapes["dt_bias"] = (width,)
    shapes["o_norm.weight"] = (dim,)
    shapes["o_proj.weight"] = (hidden, width)
    return shapes


def _mla_shapes(c: KimiLinearConfig) -> dict[str, tuple[int, ...]]:
    q_out = c.num_attention_heads * (c.qk_nope_head_dim + c.qk_rope_head_dim)
    shapes: dict[str, tuple[int, ...]] = {
        "kv_a_proj_with_mqa.weight": (c.latent_dim, c.hidden_size),
        "kv_a_layernorm.weight": (c.kv_lora_rank,),
        "kv_b_proj.weight": (
            c.num_attention_heads * (c.qk_nope_head_dim + c.v_head_dim),
            c.kv_lora_rank,
        ),
        "o_proj.weight": (c.hidden_size, c.num_attention_heads * c.v_head_dim),
    }
    if c.q_lora_rank is None:
        shapes["q_proj.weight"] = (q_out, c.hidden_size)
    else:
        shapes["q_a_proj.weight"] = (c.q_lora_rank, c.hidden_size)
        shapes["q_a_layernorm.weight"] = (c.q_lora_rank,)
        shapes["q_b_proj.weight"] = (q_out, c.q_lora_rank)
    return shapes


def _mlp_shapes(prefix: str, hidden: int, width: int) -> dict[str, tuple[int, ...]]:
    return {
        f"{prefix}gate_proj.weight": (width, hidden),
        f"{prefix}up_proj.weight": (width, hidden),
        f"{prefix}down_proj.weight": (hidden, width),
    }


def _moe_shapes(c: KimiLinearConfig) -> dict[str, tuple[int, ...]]:
    hidden, width = c.hidden_size, c.moe_intermediate_size
    shapes: dict[str, tuple[int, ...]] = {
        "gate.weight": (c.num_experts, hidden),
        "gate.e_score_correction_bias": (c.num_experts,),
    }
    for e in range(c.num_experts):
        shapes |= {
            f"experts.{e}.w1.weight": (width, hidden),
            f"experts.{e}.w2.weight": (hidden, width),
            f"experts.{e}.w3.weight": (width, hidden),
        }
    return shapes | _mlp_shapes("shared_experts.", hidden, width * c.num_shared_experts)


def _canonical(name: str) -> str:
    # transformers saves the dense layers' MLP under the experts' prefix as well.
    for part in ("gate_proj", "up_proj", "down_proj"):
        name = name.replace(f".block_sparse_moe.{part}.", f".mlp.{part}.")
    return name


def _block(c: KimiLinearConfig, w: Mapping[str, torch.Tensor], i: int) -> Block:
    layer = f"model.layers.{i}."

    def part(prefix: str) -> dict[str, torch.Tensor]:
        start = layer + prefix
        return {k.removeprefix(start): v for k, v in w.items() if k.startswith(start)}

    attention = part("self_attn.")
    feed_forward: MLP | MoE
    if i in c.dense_layers:
        dense = part("mlp.")
        feed_forward = MLP(*(dense[f"{x}_proj.weight"] for x in ("gate", "up", "down")))
    else:
        feed_forward = MoE(c, part("block_sparse_moe."))
    return Block(
        w[layer + "input_layernorm.weight"],
        MLALayer(c, attention) if i in c.full_attn_layers else KDALayer(c, attention),
        w[layer + "post_attention_layernorm.weight"],
        feed_forward,
    )


def _read_json(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:  # not UTF-8, or not JSON
        raise KdalabError(f"{file} is not JSON: {error}") from error


def _read_tensors(folder: Path, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    from safetensors import SafetensorError, safe_open

    files = [folder / SINGLE]
    if (folder / INDEX).is_file():
        index = _read_json(folder / INDEX)
        places = index.get("weight_map") if isinstance(index, dict) else None
        if not isinstance(places, dict) or not all(isinstance(x, str) for x in places.values()):
            raise KdalabError(f"{INDEX} has no weight_map from tensors to file names")
        files = [folder / name for name in sorted(set(places.values()))]
    tensors: dict[str, torch.Tensor] = {}
    for file in files:
        if file.parent != folder:
            raise KdalabError(f"the index names {file}, outside the checkpoint's folder")
        if not file.is_file():
            raise KdalabError(f"{file.name} is missing from {folder}")
        try:
            with safe_open(file, "pt") as f:
                for name in f.keys():  # noqa: SIM118
                    # A copy: views of the file start at any address, and products over weights
                    # that are not aligned may give a row other last bits at another place.
                    tensors[name] = f.get_tensor(name).to(dtype_of(name, dtype), copy=True)
        except SafetensorError as error:
            raise KdalabError(f"{file} cannot be read as safetensors: {error}") from error
    return tensors
