"""Reading and writing checkpoints of Kimi Linear and Kimi K3: config.json and safetensors."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from kdalab.errors import KdalabError
from kdalab.model.attn_res import AttnRes
from kdalab.model.config import KimiLinearConfig
from kdalab.model.files import SINGLE, read_json, read_tensors
from kdalab.model.kda import KDALayer
from kdalab.model.latent_moe import LatentMoE
from kdalab.model.mla import MLALayer
from kdalab.model.moe import MLP, MoE
from kdalab.model.names import text_name
from kdalab.model.network import Block, HybridModel
from kdalab.model.shapes import expected_shapes
from kdalab.model.situ import activation_of

Tensors = Mapping[str, torch.Tensor]


def load_pretrained(
    path: str | Path, dtype: torch.dtype = torch.float32, decode_rows: int = 8
) -> HybridModel:
    """Load a folder with ``config.json`` and ``model.safetensors`` (or shards and their index).

    Of a multimodal checkpoint the language model alone is loaded.

    Raises:
        KdalabError: a file, a field or a tensor is missing, malformed, quantised, of the wrong
            shape, or not finite in dtype; the message names it.
    """
    if dtype not in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        raise KdalabError(f"dtype {dtype} cannot hold weights; use a floating dtype")
    folder = Path(path)
    config_file = folder / "config.json"
    if not config_file.is_file():
        raise KdalabError(f"no config.json in {folder}; give the folder of a checkpoint")
    raw = read_json(config_file)
    config = KimiLinearConfig.from_hf(raw)
    _refuse_quantised(raw)
    return build(config, read_tensors(folder, dtype), decode_rows)


def save_pretrained(model_weights: Tensors, config: KimiLinearConfig, path: str | Path) -> None:
    """Write weights under their Hugging Face names, with a config that transformers (Kimi Linear)
    or mlx-lm (Kimi K3) reads."""
    from safetensors.torch import save_file

    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    prefix = "language_model." if config.k3_switches else ""
    save_file(
        {prefix + name: tensor.contiguous() for name, tensor in model_weights.items()},
        folder / SINGLE,
        metadata={"format": "pt"},
    )
    dtype = str(model_weights["lm_head.weight"].dtype).removeprefix("torch.")
    raw = config.to_hf() | {"dtype": dtype}
    (folder / "config.json").write_text(json.dumps(raw, indent=2) + "\n")


def build(config: KimiLinearConfig, tensors: Tensors, decode_rows: int = 8) -> HybridModel:
    """Assemble the network from tensors under their Hugging Face names.

    Raises:
        KdalabError: a tensor is missing, of another shape, given twice or without a place.
    """
    w = _checked(config, tensors)
    layers: dict[str, dict[str, torch.Tensor]] = defaultdict(dict)
    for name, tensor in w.items():
        if name.startswith("model.layers."):
            number, _, rest = name.removeprefix("model.layers.").partition(".")
            layers[number][rest] = tensor
    in_order = [layers[str(i)] for i in range(config.num_hidden_layers)]
    return HybridModel(
        config,
        w["model.embed_tokens.weight"],
        [_block(config, part, i) for i, part in enumerate(in_order)],
        w["model.norm.weight"],
        w["lm_head.weight"],
        decode_rows,
        _sites(config, w, in_order),
    )


def _checked(config: KimiLinearConfig, tensors: Tensors) -> dict[str, torch.Tensor]:
    """The tensors under their own names and in their expected shapes, all of them."""
    shapes = expected_shapes(config)
    found: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        own = text_name(name)
        if own in found:
            raise KdalabError(f"the checkpoint has {own} twice, the second time as {name}")
        if own is not None:
            found[own] = tensor
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
        if name.endswith("A_log"):
            tensor = _rates(tensor, shape, config.linear_num_heads)
        if tuple(tensor.shape) != shape:
            raise KdalabError(f"{name} has shape {tuple(tensor.shape)}; expected {shape}")
        w[name] = tensor
    return w


def _rates(tensor: torch.Tensor, shape: tuple[int, ...], heads: int) -> torch.Tensor:
    """One rate a head. Checkpoints keep them flat or with four axes, and Kimi K3's are padded with
    zeros (128 entries for 96 heads)."""
    if tensor.ndim == 1 and tensor.numel() > heads and not bool(tensor[heads:].any()):
        tensor = tensor[:heads].clone()
    return tensor.reshape(shape) if tensor.numel() == heads else tensor


def _sites(
    c: KimiLinearConfig, w: Tensors, layers: list[dict[str, torch.Tensor]]
) -> AttnRes | None:
    if c.attn_res_block_size is None:
        return None

    def query(of: Tensors, prefix: str) -> torch.Tensor:
        # Scores need norm weight and projection only as their product: as wide as it is computed.
        norm, proj = of[f"{prefix}_norm.weight"], of[f"{prefix}_proj.weight"]
        wide = torch.promote_types(norm.dtype, torch.float32)
        return norm.to(wide) * proj[0].to(wide)

    return AttnRes(
        c.attn_res_block_size,
        [query(layer, "self_attention_res") for layer in layers],
        [query(layer, "mlp_res") for layer in layers],
        query(w, "model.output_attn_res"),
        c.rms_norm_eps,
    )


def _block(c: KimiLinearConfig, w: Tensors, i: int) -> Block:
    def part(prefix: str) -> dict[str, torch.Tensor]:
        return {k.removeprefix(prefix): v for k, v in w.items() if k.startswith(prefix)}

    attention = part("self_attn.")
    feed_forward: Callable[[torch.Tensor], torch.Tensor]
    if i in c.dense_layers:
        parts = [w[f"mlp.{x}_proj.weight"] for x in ("gate", "up", "down")]
        feed_forward = MLP(parts[0], parts[1], parts[2], activation_of(c))
    elif c.routed_expert_hidden_size is not None:
        feed_forward = LatentMoE(c, part("block_sparse_moe."))
    else:
        feed_forward = MoE(c, part("block_sparse_moe."))
    return Block(
        w["input_layernorm.weight"],
        MLALayer(c, attention) if i in c.full_attn_layers else KDALayer(c, attention),
        w["post_attention_layernorm.weight"],
        feed_forward,
    )


def _refuse_quantised(raw: Mapping[str, Any]) -> None:
    for part in (raw, raw.get("text_config") or {}):
        found = part.get("quantization_config")
        if found is not None:
            details = found if isinstance(found, Mapping) else {}
            kind = details.get("format") or details.get("quant_method") or "unknown"
            raise KdalabError(
                f"the config has a quantization_config ({kind!r}): packed weights are not read "
                "here; give a checkpoint in bf16, fp16 or fp32"
            )
