"""Read a Hugging Face ``config.json`` of a hybrid model into a :class:`ModelSpec`.

Families: ``kimi_linear``, ``kimi_k3`` (its ``text_config``), ``qwen3_next``, ``qwen3_5`` and
``qwen3_5_moe`` (``text_config``), ``glm5_next`` (``text_config`` or flat). A field that sizes a
state is required, never defaulted: the library defaults of these families differ from the released
models, so a silent default would give a believable wrong number.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kdalab.errors import KdalabError
from kdalab.spec.hf_fields import Fields, feed_forward, layer_types
from kdalab.spec.model_spec import GroupedAttention, LatentAttention, LinearAttention, ModelSpec
from kdalab.spec.strict_json import parse_json

#: A config.json is some kilobytes; whatever is larger than this is something else.
MAX_CONFIG_BYTES = 10 * 1024 * 1024

_KDA_FAMILIES = ("kimi_linear", "glm5_next", "glm5_next_text")
_GDN_FAMILIES = ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")
# Multimodal configs whose language model sits under text_config, with that part's usual type.
_WRAPPERS = {
    "kimi_k3": "kimi_linear",
    "glm5_next": "glm5_next_text",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
}

#: Accepted values of ``model_type``.
FAMILIES: tuple[str, ...] = tuple(
    dict.fromkeys(("kimi_linear", "kimi_k3", *_KDA_FAMILIES, *_GDN_FAMILIES, *_WRAPPERS))
)


def load_hf_config(path: str | Path) -> ModelSpec:
    """Read ``config.json`` (or a folder that holds one).

    Raises:
        KdalabError: the file is missing, over 10 MB, not JSON, states a key twice, is of another
            family, or lacks fields; the message says which.
    """
    file = Path(path)
    if file.is_dir():
        file = file / "config.json"
    return spec_from_hf_config(_read_json(file), name=_name_of(file))


def spec_from_hf_config(config: dict[str, Any], *, name: str | None = None) -> ModelSpec:
    """A spec from an already parsed config; ``name`` replaces the one found in it.

    Raises:
        KdalabError: as :func:`load_hf_config`.
    """
    if not isinstance(config, dict):
        raise KdalabError(f"config is a JSON {type(config).__name__}; it must be an object")
    text = config
    family = str(config.get("model_type"))
    if family in _WRAPPERS:
        inner = config.get("text_config")
        if isinstance(inner, dict):
            text = inner
            family = str(inner.get("model_type", _WRAPPERS[family]))
        elif family != "glm5_next":  # its text-only checkpoints are flat
            raise KdalabError(f"{name or family}: a {family} config lacks text_config")
    if family not in _KDA_FAMILIES and family not in _GDN_FAMILIES:
        raise KdalabError(
            f"model_type {family!r} is not a hybrid that this reads; known: {', '.join(FAMILIES)}"
        )
    title = name or str(config.get("_name_or_path") or family)
    dtype = text.get("dtype") or text.get("torch_dtype") or config.get("dtype")
    dtype = dtype or config.get("torch_dtype") or "bf16"
    reader = Fields(text, title)
    sizes = _common(reader)
    linear, full = (_gdn_mixers if family in _GDN_FAMILIES else _kda_mixers)(reader)
    reader.raise_if_missing()
    types = layer_types(reader, sizes.pop("num_layers"))
    return ModelSpec(
        name=title,
        layer_types=types,
        linear=linear,
        full=full,
        feed_forward=feed_forward(reader, len(types)),
        conv_dtype=str(dtype),
        kv_dtype=str(dtype),
        source=f"{title}: Hugging Face config, model_type {family}",
        **sizes,
    )


def _kda_mixers(reader: Fields) -> tuple[LinearAttention, LatentAttention]:
    heads = reader.integer("linear_attn_config.num_heads", "linear_num_heads")
    dim = reader.integer("linear_attn_config.head_dim", "linear_head_dim")
    kernel = reader.integer("linear_attn_config.short_conv_kernel_size", "linear_conv_kernel_dim")
    full = LatentAttention(
        num_heads=reader.integer("num_attention_heads"),
        kv_lora_rank=reader.integer("kv_lora_rank"),
        qk_rope_head_dim=reader.integer("qk_rope_head_dim", least=0),
        qk_nope_head_dim=reader.integer("qk_nope_head_dim"),
        v_head_dim=reader.integer("v_head_dim"),
        q_lora_rank=reader.optional_integer("q_lora_rank"),
    )
    return LinearAttention("kda", heads, heads, dim, dim, kernel), full


def _gdn_mixers(reader: Fields) -> tuple[LinearAttention, GroupedAttention]:
    keys = reader.integer("linear_num_key_heads")
    values = reader.integer("linear_num_value_heads")
    k_dim = reader.integer("linear_key_head_dim")
    v_dim = reader.integer("linear_value_head_dim")
    kernel = reader.integer("linear_conv_kernel_dim")
    heads = reader.integer("num_attention_heads")
    kv_heads = reader.integer("num_key_value_heads")
    head_dim = reader.integer("head_dim")
    # Before the parts check their own arithmetic: a missing field is the better message.
    reader.raise_if_missing()
    linear = LinearAttention("gdn", keys, values, k_dim, v_dim, kernel)
    return linear, GroupedAttention(heads, kv_heads, head_dim)


def _common(reader: Fields) -> dict[str, Any]:
    return {
        "hidden_size": reader.integer("hidden_size"),
        "vocab_size": reader.integer("vocab_size"),
        "max_context": reader.integer("max_position_embeddings", "model_max_length"),
        "num_layers": reader.integer("num_hidden_layers"),
    }


def _read_json(file: Path) -> dict[str, Any]:
    try:
        if file.exists() and not file.is_file():
            raise KdalabError(f"{file}: not a regular file")
        size = file.stat().st_size
        if size > MAX_CONFIG_BYTES:
            raise KdalabError(
                f"{file}: {size:,} bytes; a config.json is at most {MAX_CONFIG_BYTES:,} bytes. "
                "Is this a weights file?"
            )
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise KdalabError(f"{file}: no such file") from error
    except UnicodeDecodeError as error:
        raise KdalabError(f"{file}: not a text file in UTF-8 ({error.reason})") from error
    except OSError as error:
        raise KdalabError(f"{file}: cannot be read ({error.strerror})") from error
    try:
        data = parse_json(text, file)
    except KdalabError:
        raise
    except json.JSONDecodeError as error:
        raise KdalabError(
            f"{file}: not JSON ({error.msg} at line {error.lineno}, column {error.colno})"
        ) from error
    except (RecursionError, ValueError) as error:
        raise KdalabError(f"{file}: not JSON that can be read ({error})") from error
    if not isinstance(data, dict):
        raise KdalabError(f"{file}: a JSON {type(data).__name__}; a config is an object")
    return data


def _name_of(file: Path) -> str:
    """A folder's name says more than ``config.json`` does."""
    return file.resolve().parent.name if file.name == "config.json" else file.stem
