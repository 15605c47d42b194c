"""Configuration of a Kimi-Linear network, read from a Hugging Face ``config.json``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kdalab.errors import KdalabError


@dataclass(frozen=True, slots=True)
class KimiLinearConfig:
    """The numbers that shape the network, under Hugging Face's names.

    ``full_attn_layers`` (MLA) and ``dense_layers`` (no experts) are 0-based here; the
    checkpoint's ``linear_attn_config`` counts from 1.
    """

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    full_attn_layers: tuple[int, ...]
    dense_layers: tuple[int, ...]
    intermediate_size: int
    rms_norm_eps: float
    # KDA
    linear_num_heads: int
    linear_head_dim: int
    linear_conv_kernel_dim: int
    # MLA
    num_attention_heads: int
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    q_lora_rank: int | None
    # experts
    num_experts: int
    num_experts_per_token: int
    num_shared_experts: int
    moe_intermediate_size: int
    num_expert_group: int
    topk_group: int
    moe_renormalize: bool
    routed_scaling_factor: float

    max_position_embeddings: int | None = None
    """Longest context in tokens, where the checkpoint says it; nothing here depends on it."""
    latent_eps: float = 1e-6
    """Epsilon of the norm inside MLA: transformers keeps its class default here, not
    ``rms_norm_eps``."""

    @property
    def latent_dim(self) -> int:
        """Numbers cached for one token of one MLA layer: latent | rope part."""
        return self.kv_lora_rank + self.qk_rope_head_dim

    @property
    def kda_width(self) -> int:
        """Channels of q, of k and of v in a KDA layer: heads x head dimension."""
        return self.linear_num_heads * self.linear_head_dim

    @property
    def kda_layers(self) -> tuple[int, ...]:
        """0-based KDA layers."""
        full = set(self.full_attn_layers)
        return tuple(i for i in range(self.num_hidden_layers) if i not in full)

    @classmethod
    def from_hf(cls, raw: Mapping[str, Any]) -> KimiLinearConfig:
        """Read ``config.json`` in Moonshot's form (``linear_attn_config``) or transformers' own
        (``layer_types``, ``linear_num_heads``, ...).

        Raises:
            KdalabError: another model type, a missing field (named), or a switch of Kimi K3 that
                this network does not have.
        """
        if not isinstance(raw, Mapping):
            raise KdalabError(f"the config is a JSON {type(raw).__name__}; it must be an object")
        raw = raw.get("text_config", raw)
        if raw.get("model_type") != "kimi_linear":
            raise KdalabError(
                f"model_type is {raw.get('model_type')!r}; this network loads 'kimi_linear'"
            )
        for switch in ("gate_lower_bound", "attn_res_block_size", "routed_expert_hidden_size"):
            if raw.get(switch) or (raw.get("linear_attn_config") or {}).get(switch):
                raise KdalabError(f"the config sets {switch}, a Kimi K3 feature not supported here")
        if raw.get("hidden_act", "silu") != "silu":
            raise KdalabError(f"hidden_act {raw['hidden_act']!r} is not supported; only 'silu'")
        if raw.get("mla_use_nope") is False:
            raise KdalabError("mla_use_nope is false: rotated keys are not supported here")
        router = raw.get("moe_router_activation_func", "sigmoid")
        if router != "sigmoid":
            raise KdalabError(f"moe_router_activation_func {router!r} is not supported here")
        if raw.get("moe_layer_freq", 1) != 1:
            raise KdalabError("moe_layer_freq must be 1: experts in every layer but the first")
        for switch in ("attention_bias", "tie_word_embeddings"):
            if raw.get(switch):
                raise KdalabError(f"the config sets {switch}, which is not supported here")
        linear = dict(raw.get("linear_attn_config") or {})
        get = _Reader({**raw, **{f"linear_attn_config.{k}": v for k, v in linear.items()}})
        n_layers = get("num_hidden_layers")
        return cls(
            vocab_size=get("vocab_size"),
            hidden_size=get("hidden_size"),
            num_hidden_layers=n_layers,
            full_attn_layers=_full_layers(raw, linear, n_layers),
            dense_layers=_dense_layers(raw, n_layers),
            intermediate_size=get("intermediate_size"),
            rms_norm_eps=get("rms_norm_eps"),
            linear_num_heads=get("linear_attn_config.num_heads", "linear_num_heads"),
            linear_head_dim=get("linear_attn_config.head_dim", "linear_head_dim"),
            linear_conv_kernel_dim=get(
                "linear_attn_config.short_conv_kernel_size", "linear_conv_kernel_dim"
            ),
            num_attention_heads=get("num_attention_heads"),
            kv_lora_rank=get("kv_lora_rank"),
            qk_nope_head_dim=get("qk_nope_head_dim"),
            qk_rope_head_dim=get("qk_rope_head_dim"),
            v_head_dim=get("v_head_dim"),
            q_lora_rank=raw.get("q_lora_rank"),
            num_experts=get("num_experts", "num_local_experts", "n_routed_experts"),
            num_experts_per_token=get("num_experts_per_token", "num_experts_per_tok"),
            num_shared_experts=get("num_shared_experts", "n_shared_experts"),
            moe_intermediate_size=get("moe_intermediate_size"),
            num_expert_group=get("num_expert_group", "n_group"),
            topk_group=get("topk_group"),
            moe_renormalize=bool(get("moe_renormalize", "norm_topk_prob")),
            routed_scaling_factor=float(get("routed_scaling_factor")),
            max_position_embeddings=raw.get("max_position_embeddings")
            or raw.get("model_max_length"),
        )

    def to_hf(self) -> dict[str, Any]:
        """The same as a ``config.json`` in Moonshot's form; transformers reads it too."""
        first_expert_layer = len(self.dense_layers)
        if self.dense_layers != tuple(range(first_expert_layer)):
            raise KdalabError("only the first layers can be dense in a saved config")
        length = self.max_position_embeddings
        return {
            **({} if length is None else {"model_max_length": length}),
            "architectures": ["KimiLinearForCausalLM"],
            "model_type": "kimi_linear",
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "num_hidden_layers": self.num_hidden_layers,
            "intermediate_size": self.intermediate_size,
            "rms_norm_eps": self.rms_norm_eps,
            "hidden_act": "silu",
            "linear_attn_config": {
                "num_heads": self.linear_num_heads,
                "head_dim": self.linear_head_dim,
                "short_conv_kernel_size": self.linear_conv_kernel_dim,
                "full_attn_layers": [i + 1 for i in self.full_attn_layers],
                "kda_layers": [i + 1 for i in self.kda_layers],
            },
            "num_attention_heads": self.num_attention_heads,
            "num_key_value_heads": self.num_attention_heads,
            "kv_lora_rank": self.kv_lora_rank,
            "q_lora_rank": self.q_lora_rank,
            "qk_nope_head_dim": self.qk_nope_head_dim,
            "qk_rope_head_dim": self.qk_rope_head_dim,
            "v_head_dim": self.v_head_dim,
            "mla_use_nope": True,
            "first_k_dense_replace": first_expert_layer,
            "num_experts": self.num_experts,
            "num_experts_per_token": self.num_experts_per_token,
            "num_shared_experts": self.num_shared_experts,
            "moe_intermediate_size": self.moe_intermediate_size,
            "num_expert_group": self.num_expert_group,
            "topk_group": self.topk_group,
            "moe_renormalize": self.moe_renormalize,
            "routed_scaling_factor": self.routed_scaling_factor,
            "tie_word_embeddings": False,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
        }


class _Reader:
    """Looks a field up under any of its names, and says which is missing."""

    def __init__(self, raw: Mapping[str, Any]) -> None:
        self.raw = raw

    def __call__(self, *names: str) -> Any:
        for name in names:
            if self.raw.get(name) is not None:
                return self.raw[name]
        raise KdalabError(f"the config has no field {' or '.join(names)}")


def _full_layers(
    raw: Mapping[str, Any], linear: Mapping[str, Any], n_layers: int
) -> tuple[int, ...]:
    if "full_attn_layers" in linear and "kda_layers" in linear:
        full = sorted(i - 1 for i in linear["full_attn_layers"])
        kda = sorted(i - 1 for i in linear["kda_layers"])
        if sorted(full + kda) != list(range(n_layers)):
            raise KdalabError(
                f"linear_attn_config's layer lists must name each of 1..{n_layers} once"
            )
        return tuple(full)
    types = raw.get("layer_types")
    if types is None:
        raise KdalabError(
            "the config has no field linear_attn_config.full_attn_layers/kda_layers or layer_types"
        )
    if len(types) != n_layers:
        raise KdalabError(f"layer_types names {len(types)} layers; num_hidden_layers is {n_layers}")
    return tuple(i for i, kind in enumerate(types) if kind == "full_attention")


def _dense_layers(raw: Mapping[str, Any], n_layers: int) -> tuple[int, ...]:
    types = raw.get("mlp_layer_types")
    if types is not None:
        if len(types) != n_layers:
            raise KdalabError(
                f"mlp_layer_types names {len(types)} layers; num_hidden_layers is {n_layers}"
            )
        return tuple(i for i, kind in enumerate(types) if kind == "dense")
    return tuple(range(min(n_layers, raw.get("first_k_dense_replace", 1))))
