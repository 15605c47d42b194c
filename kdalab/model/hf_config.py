"""``config.json`` of Kimi Linear and Kimi K3, in and out.

Kimi K3's text model has Kimi Linear's class and ``model_type`` with more switches, and that class
has every switch off by default. A config that leaves a switch out, or misspells it, would load as
another network with believable output. So a config that turns one on must state them all, and a
name that looks like a switch and is none is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kdalab.errors import KdalabError
from kdalab.model.config import KimiLinearConfig
from kdalab.model.fields import Fields, shown
from kdalab.spec.model_spec import MAX_LAYERS

LINEAR_SWITCHES = ("gate_lower_bound", "use_full_rank_gate")
"""Kimi K3's switches within ``linear_attn_config``."""

SWITCHES = (
    "mla_use_output_gate",
    "attn_res_block_size",
    "routed_expert_hidden_size",
    "latent_moe_use_norm",
    "activation_situ_beta",
    "activation_situ_linear_beta",
)
"""Kimi K3's switches beside it."""

_LINEAR_KEYS = (
    "num_heads", "head_dim", "short_conv_kernel_size", "kda_layers", "full_attn_layers",
    *LINEAR_SWITCHES,
)  # fmt: skip
_SWITCH_LIKE = (
    "attn_res", "activation_situ", "latent_moe", "routed_expert", "mla_use", "gate_lower",
    "use_full_rank",
)  # fmt: skip
_ALSO_STATED = ("hidden_act", "mla_use_nope")
_WRAPPER = "kimi_k3"  # the one model_type whose language model stands in text_config

MAX_EXPERTS_IN_ALL = 1 << 20
"""Experts of all layers together; each has three tensors to look for."""


def read_config(raw: Mapping[str, Any]) -> KimiLinearConfig:
    """Read Moonshot's form (``linear_attn_config``) or transformers' own (``layer_types``,
    ``linear_num_heads``, ...); the text model's part may stand in ``text_config``.

    Raises:
        KdalabError: another model type, a field that is missing, of another type or absurd, or a
            switch of Kimi K3 that is not stated or not known; the message names the field.
    """
    if not isinstance(raw, Mapping):
        raise KdalabError(f"the config is a JSON {type(raw).__name__}; it must be an object")
    kind = raw.get("model_type")
    nested = raw.get("text_config")
    if nested is not None and not isinstance(nested, Mapping):
        raise KdalabError(f"text_config is {shown(nested)}; it must be an object")
    if kind == _WRAPPER and nested is None:
        raise KdalabError("a kimi_k3 config lacks text_config, the language model's part")
    if nested is not None:
        _check_wrapper(raw)
    text = raw if nested is None else nested
    if text.get("model_type") != "kimi_linear":
        raise KdalabError(
            f"model_type is {shown(text.get('model_type'))}; this network loads 'kimi_linear', "
            "alone or as the text_config of 'kimi_k3'"
        )
    linear = text.get("linear_attn_config")
    if linear is not None and not isinstance(linear, Mapping):
        raise KdalabError(f"linear_attn_config is {shown(linear)}; it must be an object")
    get = Fields(text)
    _refuse_other_networks(get)
    _check_switches(text, linear or {}, get, must_state=kind == _WRAPPER)
    n_layers = get.integer("num_hidden_layers", most=MAX_LAYERS)
    config = _build(get, n_layers)
    if n_layers * config.num_experts > MAX_EXPERTS_IN_ALL:
        raise KdalabError(
            f"num_experts is {config.num_experts:,} in {n_layers:,} layers; at most "
            f"{MAX_EXPERTS_IN_ALL:,} experts in all are read"
        )
    return config


def _build(get: Fields, n_layers: int) -> KimiLinearConfig:
    hidden_act = get.value("hidden_act", default="silu")[1]
    if not isinstance(hidden_act, str):
        raise KdalabError(f"hidden_act is {shown(hidden_act)}; it must be 'silu' or 'situ'")
    return KimiLinearConfig(
        vocab_size=get.integer("vocab_size"),
        hidden_size=get.integer("hidden_size"),
        num_hidden_layers=n_layers,
        full_attn_layers=_full_layers(get, n_layers),
        dense_layers=_dense_layers(get, n_layers),
        intermediate_size=get.integer("intermediate_size"),
        rms_norm_eps=get.number("rms_norm_eps", above=0.0),
        linear_num_heads=get.integer("linear_attn_config.num_heads", "linear_num_heads"),
        linear_head_dim=get.integer("linear_attn_config.head_dim", "linear_head_dim"),
        linear_conv_kernel_dim=get.integer(
            "linear_attn_config.short_conv_kernel_size", "linear_conv_kernel_dim", most=1024
        ),
        num_attention_heads=get.integer("num_attention_heads"),
        kv_lora_rank=get.integer("kv_lora_rank"),
        qk_nope_head_dim=get.integer("qk_nope_head_dim"),
        qk_rope_head_dim=get.integer("qk_rope_head_dim", least=0),
        v_head_dim=get.integer("v_head_dim"),
        q_lora_rank=get.integer("q_lora_rank", default=None),
        num_experts=get.integer("num_experts", "num_local_experts", "n_routed_experts"),
        num_experts_per_token=get.integer("num_experts_per_token", "num_experts_per_tok"),
        num_shared_experts=get.integer("num_shared_experts", "n_shared_experts", least=0),
        moe_intermediate_size=get.integer("moe_intermediate_size"),
        num_expert_group=get.integer("num_expert_group", "n_group"),
        topk_group=get.integer("topk_group"),
        moe_renormalize=get.boolean("moe_renormalize", "norm_topk_prob"),
        routed_scaling_factor=get.number("routed_scaling_factor"),
        max_position_embeddings=get.integer(
            "max_position_embeddings", "model_max_length", most=1 << 53, default=None
        ),
        gate_lower_bound=get.number("linear_attn_config.gate_lower_bound", below=0.0, default=None),
        use_full_rank_gate=get.boolean("linear_attn_config.use_full_rank_gate", default=False),
        mla_use_output_gate=get.boolean("mla_use_output_gate", default=False),
        attn_res_block_size=get.integer("attn_res_block_size", default=None),
        routed_expert_hidden_size=get.integer("routed_expert_hidden_size", default=None),
        latent_moe_use_norm=get.boolean("latent_moe_use_norm", default=False),
        hidden_act=hidden_act,
        activation_situ_beta=get.number("activation_situ_beta", above=0.0, default=None),
        activation_situ_linear_beta=get.number(
            "activation_situ_linear_beta", above=0.0, default=None
        ),
    )


def write_config(config: KimiLinearConfig) -> dict[str, Any]:
    """A ``config.json`` in Moonshot's form; transformers reads it too while every switch of Kimi K3
    is off. With one on it is ``kimi_k3``, its ``text_config`` states all of them, and mlx-lm reads
    it.

    Raises:
        KdalabError: dense layers that the format cannot say.
    """
    first_expert_layer = len(config.dense_layers)
    if config.dense_layers != tuple(range(first_expert_layer)):
        raise KdalabError("only the first layers can be dense in a saved config")
    length = config.max_position_embeddings
    linear = {
        "num_heads": config.linear_num_heads,
        "head_dim": config.linear_head_dim,
        "short_conv_kernel_size": config.linear_conv_kernel_dim,
        "full_attn_layers": [i + 1 for i in config.full_attn_layers],
        "kda_layers": [i + 1 for i in config.kda_layers],
    }
    text = {
        **({} if length is None else {"model_max_length": length}),
        "architectures": ["KimiLinearForCausalLM"],
        "model_type": "kimi_linear",
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_hidden_layers,
        "intermediate_size": config.intermediate_size,
        "rms_norm_eps": config.rms_norm_eps,
        "hidden_act": config.hidden_act,
        "linear_attn_config": linear,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_attention_heads,
        "kv_lora_rank": config.kv_lora_rank,
        "q_lora_rank": config.q_lora_rank,
        "qk_nope_head_dim": config.qk_nope_head_dim,
        "qk_rope_head_dim": config.qk_rope_head_dim,
        "v_head_dim": config.v_head_dim,
        "mla_use_nope": True,
        "first_k_dense_replace": first_expert_layer,
        "num_experts": config.num_experts,
        "num_experts_per_token": config.num_experts_per_token,
        "num_shared_experts": config.num_shared_experts,
        "moe_intermediate_size": config.moe_intermediate_size,
        "num_expert_group": config.num_expert_group,
        "topk_group": config.topk_group,
        "moe_renormalize": config.moe_renormalize,
        "routed_scaling_factor": config.routed_scaling_factor,
        "tie_word_embeddings": False,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    if not config.k3_switches:
        return text
    linear |= {name: getattr(config, name) for name in LINEAR_SWITCHES}
    text |= {name: getattr(config, name) for name in SWITCHES}
    return {"model_type": "kimi_k3", "text_config": text}


def _check_wrapper(raw: Mapping[str, Any]) -> None:
    """What stands beside text_config: another wrapper's fields mean something else, and a switch of
    the language model would not be read there."""
    if raw.get("model_type") not in (None, _WRAPPER):
        raise KdalabError(
            f"the config has a text_config, and model_type beside it is "
            f"{shown(raw.get('model_type'))}; this network loads the text_config of {_WRAPPER!r}"
        )
    inner = (*SWITCHES, *LINEAR_SWITCHES, *_ALSO_STATED, "linear_attn_config")
    for key, value in raw.items():
        if value is not None and (key in inner or str(key).startswith(_SWITCH_LIKE)):
            raise KdalabError(
                f"{key} stands beside text_config, where it is not read; it belongs into "
                f"text_config{'.linear_attn_config' if key in LINEAR_SWITCHES else ''}"
            )


def _refuse_other_networks(get: Fields) -> None:
    if get.value("mla_use_nope", default=True)[1] is not True:
        raise KdalabError("mla_use_nope is not true: rotated keys are not supported here")
    router = get.value("moe_router_activation_func", default="sigmoid")[1]
    if router != "sigmoid":
        raise KdalabError(f"moe_router_activation_func {shown(router)} is not supported here")
    method = get.value("topk_method", default="noaux_tc")[1]
    if method != "noaux_tc":
        raise KdalabError(f"topk_method {shown(method)} is not supported here; only 'noaux_tc'")
    if get.integer("moe_layer_freq", default=1) != 1:
        raise KdalabError("moe_layer_freq must be 1: experts in every layer but the first")
    for switch in ("attention_bias", "tie_word_embeddings"):
        if get.boolean(switch, default=False):
            raise KdalabError(f"the config sets {switch}, which is not supported here")


def _check_switches(
    text: Mapping[str, Any], linear: Mapping[str, Any], get: Fields, must_state: bool
) -> None:
    """Every switch in its place, under its name, and all stated once one is on."""
    for key in linear:
        if key not in _LINEAR_KEYS:
            where = "; it belongs beside linear_attn_config" if key in SWITCHES else ""
            raise KdalabError(
                f"linear_attn_config has the unknown field {shown(key)}{where}; "
                f"known: {', '.join(_LINEAR_KEYS)}"
            )
    for key, value in text.items():
        if key in LINEAR_SWITCHES and value is not None:
            raise KdalabError(f"{key} belongs into linear_attn_config, not beside it")
        known = key in SWITCHES or key in LINEAR_SWITCHES or key == "mla_use_nope"
        if not known and str(key).startswith(_SWITCH_LIKE):
            raise KdalabError(
                f"the config has the unknown field {shown(key)}; Kimi K3's switches are "
                f"{', '.join((*SWITCHES, *LINEAR_SWITCHES))}"
            )
    names = [f"linear_attn_config.{name}" for name in LINEAR_SWITCHES] + list(SWITCHES)
    on = [name for name in names if get.value(name, default=False)[1] is not False]
    if get.value("hidden_act", default="silu")[1] == "situ":
        on.append("hidden_act")
    if must_state or on:
        why = f"sets {on[0]}" if on else "is of model_type kimi_k3"
        for name in (*names, *_ALSO_STATED):
            if not get.states(name):
                raise KdalabError(
                    f"the config {why} and does not state {name}; a Kimi K3 config must state "
                    "every switch (null or false for off), because the library's defaults differ"
                )


def _full_layers(get: Fields, n_layers: int) -> tuple[int, ...]:
    full, kda = "linear_attn_config.full_attn_layers", "linear_attn_config.kda_layers"
    if all(get.value(name, default=None)[1] is not None for name in (full, kda)):
        at_full, at_kda = get.layers(full, n_layers), get.layers(kda, n_layers)
        if sorted(at_full + at_kda) != list(range(n_layers)):
            raise KdalabError(
                f"linear_attn_config's layer lists must name each of 1..{n_layers} once"
            )
        return tuple(at_full)
    types = get.words("layer_types", n_layers, ("full_attention", "linear_attention"))
    if types is None:
        raise KdalabError(
            "the config has no field linear_attn_config.full_attn_layers/kda_layers or layer_types"
        )
    return tuple(i for i, kind in enumerate(types) if kind == "full_attention")


def _dense_layers(get: Fields, n_layers: int) -> tuple[int, ...]:
    types = get.words("mlp_layer_types", n_layers, ("dense", "sparse"))
    if types is not None:
        return tuple(i for i, kind in enumerate(types) if kind == "dense")
    dense = get.integer("first_k_dense_replace", least=0, default=1)
    return tuple(range(min(n_layers, dense)))
