"""Typed reading of a Hugging Face config: missing fields are collected and named all at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from kdalab.errors import KdalabError
from kdalab.spec.model_spec import MAX_LAYERS, FeedForward, LayerType

_LAYER_WORDS: dict[str, LayerType] = {
    "linear_attention": LayerType.LINEAR,
    "full_attention": LayerType.FULL,
    "indexed_attention": LayerType.FULL,  # glm5_next: MLA behind a sparse-attention indexer
}


class Fields:
    """Reads dotted keys from a config and remembers which were missing.

    A missing integer reads as its least allowed value, so that all fields can be asked for before
    :meth:`raise_if_missing` names the missing ones together.
    """

    def __init__(self, config: dict[str, Any], name: str) -> None:
        self.config = config
        self.name = name
        self._missing: list[str] = []

    def value(self, *keys: str) -> Any:
        """The first of several spellings that is present and not null, else None."""
        for key in keys:
            node: Any = self.config
            for part in key.split("."):
                node = node.get(part) if isinstance(node, dict) else None
            if node is not None:
                return node
        return None

    def integer(self, *keys: str, least: int = 1) -> int:
        """A required integer; several keys are several spellings of one field.

        Raises:
            KdalabError: present, but not an integer of at least ``least``.
        """
        found = self.value(*keys)
        if found is None:
            self._missing.append(" or ".join(keys))
            return least
        return self._checked(keys[0], found, least)

    def optional_integer(self, *keys: str, default: int | None = None) -> int | None:
        """An integer that may be absent or null.

        Raises:
            KdalabError: present, but not an integer of at least 0.
        """
        found = self.value(*keys)
        return default if found is None else self._checked(keys[0], found, 0)

    def raise_if_missing(self) -> None:
        """Name every required field that was asked for and not there.

        Raises:
            KdalabError: at least one was missing.
        """
        if self._missing:
            raise KdalabError(f"{self.name}: the config lacks {', '.join(self._missing)}")

    def _checked(self, key: str, value: Any, least: int) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise KdalabError(
                f"{self.name}: {key} is {value!r}; it must be an integer of {least} or more"
            )
        return value


def layer_types(reader: Fields, num_layers: int) -> tuple[LayerType, ...]:
    """The mixer of every layer, from whichever of the three published forms the config uses.

    ``linear_attn_config.{kda_layers, full_attn_layers}`` (1-based, must partition 1..L), else
    ``layer_types`` (a word per layer), else ``full_attention_interval``.

    Raises:
        KdalabError: none of the three is there, or the lists do not fit the number of layers.
    """
    if num_layers > MAX_LAYERS:
        raise KdalabError(f"{reader.name}: {num_layers:,} layers; at most {MAX_LAYERS:,} are read")
    full = reader.value("linear_attn_config.full_attn_layers")
    linear = reader.value("linear_attn_config.kda_layers")
    words = reader.value("layer_types")
    interval = reader.optional_integer("full_attention_interval")
    if full is not None and linear is not None:
        return _from_lists(reader.name, num_layers, linear, full)
    if words is not None:
        return _from_words(reader.name, num_layers, words)
    if interval:
        return tuple(
            LayerType.FULL if (i + 1) % interval == 0 else LayerType.LINEAR
            for i in range(num_layers)
        )
    raise KdalabError(
        f"{reader.name}: the config does not say which layers are which; it needs "
        "linear_attn_config.kda_layers and full_attn_layers, or layer_types, "
        "or full_attention_interval"
    )


def _from_lists(
    name: str, num_layers: int, linear: Sequence[int], full: Sequence[int]
) -> tuple[LayerType, ...]:
    for key, layers in (("kda_layers", linear), ("full_attn_layers", full)):
        if not isinstance(layers, list) or any(
            isinstance(i, bool) or not isinstance(i, int) for i in layers
        ):
            raise KdalabError(f"{name}: linear_attn_config.{key} must be a list of integers")
    both = sorted([*linear, *full])
    if both != list(range(1, num_layers + 1)):
        wanted = set(range(1, num_layers + 1))
        twice = sorted(i for i, count in Counter(both).items() if count > 1)
        raise KdalabError(
            f"{name}: kda_layers and full_attn_layers must share out the layers 1..{num_layers}; "
            f"in neither: {sorted(wanted - set(both))[:8]}, in both or twice: {twice[:8]}, "
            f"out of range: {sorted(set(both) - wanted)[:8]}"
        )
    at_full = set(full)
    return tuple(
        LayerType.FULL if i in at_full else LayerType.LINEAR for i in range(1, num_layers + 1)
    )


def _from_words(name: str, num_layers: int, words: Any) -> tuple[LayerType, ...]:
    if not isinstance(words, list) or len(words) != num_layers:
        count = len(words) if isinstance(words, list) else type(words).__name__
        raise KdalabError(f"{name}: layer_types has {count} for {num_layers} layers")
    unknown = sorted({str(w) for w in words if not isinstance(w, str) or w not in _LAYER_WORDS})
    if unknown:
        raise KdalabError(
            f"{name}: layer_types has {', '.join(unknown)}; known: {', '.join(_LAYER_WORDS)}"
        )
    return tuple(_LAYER_WORDS[w] for w in words)


def feed_forward(reader: Fields, num_layers: int) -> FeedForward | None:
    """The feed-forward sizes, or None when the config does not give them: no state needs them.

    Raises:
        KdalabError: a size is there but is not an integer.
    """
    dense = reader.optional_integer("intermediate_size", "moe_intermediate_size")
    if not dense:
        return None
    experts = reader.optional_integer("num_experts", "n_routed_experts", "num_local_experts") or 0
    width = reader.optional_integer("moe_intermediate_size") or 0
    shared = reader.optional_integer("shared_expert_intermediate_size")
    if shared is None:
        shared = width * (reader.optional_integer("num_shared_experts", "n_shared_experts") or 0)
    mlp_types = reader.value("mlp_layer_types")
    first_dense = reader.optional_integer("first_k_dense_replace", default=None)
    if first_dense is None:
        first_dense = mlp_types.count("dense") if isinstance(mlp_types, list) else 0
    per_token = reader.optional_integer("num_experts_per_token", "num_experts_per_tok") or 0
    return FeedForward(
        intermediate_size=dense,
        num_experts=experts,
        experts_per_token=per_token,
        moe_intermediate_size=width,
        shared_intermediate_size=shared,
        first_dense_layers=min(first_dense, num_layers),
        routed_hidden_size=reader.optional_integer("routed_expert_hidden_size"),
    )
