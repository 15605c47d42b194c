"""What a hybrid model looks like to a cache: its layers, heads and element types."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Any

from kdalab.errors import KdalabError
from kdalab.spec.dtypes import canonical_dtype

#: More layers than any published model; keeps a malformed config from filling the memory.
MAX_LAYERS = 4096

#: No size of a model comes near this; above it figures would not fit a table or a float.
MAX_SIZE = 10**15


class LayerType(StrEnum):
    """Which token mixer a layer has."""

    LINEAR = "linear"
    FULL = "full"


def _require_positive(owner: object, *names: str) -> None:
    _require_int(owner, 1, *names)


def _require_int(owner: object, least: int, *names: str) -> None:
    for name in names:
        value = getattr(owner, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise KdalabError(
                f"{type(owner).__name__}.{name} is {value!r}; it must be an integer >= {least}"
            )
        if value > MAX_SIZE:
            raise KdalabError(
                f"{type(owner).__name__}.{name} is over {MAX_SIZE:,}; no model has that"
            )


@dataclass(frozen=True, slots=True)
class LinearAttention:
    """A KDA or GDN mixer. The state of one layer is ``S[value_head, k, v]``.

    ``variant`` is ``"kda"`` (a decay per key channel; Kimi Linear report, section 4) or ``"gdn"``
    (one decay per head; Gated DeltaNet). Both keep a state of the same shape. With fewer key heads
    than value heads (GVA), decay and state belong to the value heads.
    """

    variant: str
    num_k_heads: int
    num_v_heads: int
    head_k_dim: int
    head_v_dim: int
    conv_kernel: int = 4

    def __post_init__(self) -> None:
        if self.variant not in ("kda", "gdn"):
            raise KdalabError(f"LinearAttention.variant is {self.variant!r}; use 'kda' or 'gdn'")
        _require_positive(
            self, "num_k_heads", "num_v_heads", "head_k_dim", "head_v_dim", "conv_kernel"
        )
        if self.num_v_heads % self.num_k_heads:
            raise KdalabError(
                f"{self.num_v_heads} value heads are not a multiple of {self.num_k_heads} key heads"
            )

    @property
    def conv_channels(self) -> int:
        """Inputs of the short convolutions of one layer: q, k and v side by side."""
        return 2 * self.num_k_heads * self.head_k_dim + self.num_v_heads * self.head_v_dim

    @property
    def recurrent_elements(self) -> int:
        """Elements of ``S[value_head, k, v]`` of one layer."""
        return self.num_v_heads * self.head_k_dim * self.head_v_dim

    @property
    def conv_elements(self) -> int:
        """Elements of the conv state of one layer: the last ``W - 1`` inputs.

        This is what SGLang and vLLM keep; FLA's own modules keep ``W`` columns.
        """
        return self.conv_channels * (self.conv_kernel - 1)

    @property
    def scale_elements(self) -> int:
        """Scales of one layer in an INT8 checkpoint: one per value head and key channel."""
        return self.num_v_heads * self.head_k_dim


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """MLA: one latent vector and one shared rotary key per token and layer."""

    num_heads: int
    kv_lora_rank: int
    qk_rope_head_dim: int
    qk_nope_head_dim: int
    v_head_dim: int
    q_lora_rank: int | None = None

    def __post_init__(self) -> None:
        _require_positive(self, "num_heads", "kv_lora_rank", "qk_nope_head_dim", "v_head_dim")
        _require_int(self, 0, "qk_rope_head_dim")
        if self.q_lora_rank is not None:
            _require_positive(self, "q_lora_rank")

    @property
    def kv_elements(self) -> int:
        """Cached elements per token and layer."""
        return self.kv_lora_rank + self.qk_rope_head_dim


@dataclass(frozen=True, slots=True)
class GroupedAttention:
    """GQA: keys and values of ``num_kv_heads`` heads per token and layer."""

    num_heads: int
    num_kv_heads: int
    head_dim: int

    def __post_init__(self) -> None:
        _require_positive(self, "num_heads", "num_kv_heads", "head_dim")
        if self.num_heads % self.num_kv_heads:
            raise KdalabError(
                f"{self.num_heads} query heads are not a multiple of {self.num_kv_heads} KV heads"
            )

    @property
    def kv_elements(self) -> int:
        """Cached elements per token and layer, K and V together."""
        return 2 * self.num_kv_heads * self.head_dim


@dataclass(frozen=True, slots=True)
class FeedForward:
    """The feed-forward part, needed for FLOPs only: it keeps no state.

    ``first_dense_layers`` leading layers use the dense ``intermediate_size``; the others route to
    ``experts_per_token`` experts of width ``moe_intermediate_size`` plus a shared expert of width
    ``shared_intermediate_size``. ``num_experts = 0`` means that every layer is dense.
    ``routed_hidden_size`` is the width the routed experts work at (Kimi K3's latent MoE); None
    means the model's hidden size.
    """

    intermediate_size: int
    num_experts: int = 0
    experts_per_token: int = 0
    moe_intermediate_size: int = 0
    shared_intermediate_size: int = 0
    first_dense_layers: int = 0
    routed_hidden_size: int | None = None

    def __post_init__(self) -> None:
        _require_positive(self, "intermediate_size")
        _require_int(
            self,
            0,
            "num_experts",
            "experts_per_token",
            "moe_intermediate_size",
            "shared_intermediate_size",
            "first_dense_layers",
        )
        if self.routed_hidden_size is not None:
            _require_positive(self, "routed_hidden_size")
        if self.num_experts and not 0 < self.experts_per_token <= self.num_experts:
            raise KdalabError(
                f"{self.experts_per_token} experts per token out of {self.num_experts}: "
                "at least one is needed and no more than there are"
            )


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A hybrid of linear attention (KDA or GDN) and full attention (MLA or GQA).

    ``layer_types`` has one entry per decoder layer, first layer first. ``state_dtype`` is the
    recurrent state's element type, ``conv_dtype`` the conv state's, ``kv_dtype`` the latent KV's.
    ``source`` says where the numbers come from; ``notes`` says what they leave out.

    Raises:
        KdalabError: a size is not a positive integer, or a layer type without its description.
    """

    name: str
    hidden_size: int
    vocab_size: int
    max_context: int
    layer_types: tuple[LayerType, ...]
    linear: LinearAttention
    full: LatentAttention | GroupedAttention
    feed_forward: FeedForward | None = None
    state_dtype: str = "fp32"
    conv_dtype: str = "bf16"
    kv_dtype: str = "bf16"
    source: str = ""
    notes: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        _require_positive(self, "hidden_size", "vocab_size", "max_context")
        if not 1 <= len(self.layer_types) <= MAX_LAYERS:
            raise KdalabError(
                f"{self.name}: {len(self.layer_types)} layers; a model has 1 to {MAX_LAYERS:,}"
            )
        object.__setattr__(self, "layer_types", tuple(LayerType(t) for t in self.layer_types))
        for name in ("state_dtype", "conv_dtype", "kv_dtype"):
            object.__setattr__(self, name, canonical_dtype(getattr(self, name)))

    @property
    def num_layers(self) -> int:
        """Decoder layers, of both types."""
        return len(self.layer_types)

    @property
    def linear_layers(self) -> tuple[int, ...]:
        """0-based indices of the KDA (or GDN) layers."""
        return tuple(i for i, t in enumerate(self.layer_types) if t is LayerType.LINEAR)

    @property
    def full_layers(self) -> tuple[int, ...]:
        """0-based indices of the MLA (or GQA) layers."""
        return tuple(i for i, t in enumerate(self.layer_types) if t is LayerType.FULL)

    @property
    def num_linear_layers(self) -> int:
        """How many layers keep a recurrent and a conv state."""
        return sum(t is LayerType.LINEAR for t in self.layer_types)

    @property
    def num_full_layers(self) -> int:
        """How many layers keep KV per token."""
        return sum(t is LayerType.FULL for t in self.layer_types)

    @property
    def is_latent(self) -> bool:
        """True when the full layers are MLA, whose KV is one latent vector per token."""
        return isinstance(self.full, LatentAttention)

    @property
    def linear_name(self) -> str:
        """``"KDA"`` or ``"GDN"``."""
        return self.linear.variant.upper()

    @property
    def full_name(self) -> str:
        """``"MLA"`` or ``"GQA"``."""
        return "MLA" if self.is_latent else "GQA"

    def with_dtypes(
        self,
        *,
        state: str | None = None,
        conv: str | None = None,
        kv: str | None = None,
    ) -> ModelSpec:
        """A copy with other element types; None keeps the present one.

        Raises:
            KdalabError: a name is not a known dtype.
        """
        return replace(
            self,
            state_dtype=state or self.state_dtype,
            conv_dtype=conv or self.conv_dtype,
            kv_dtype=kv or self.kv_dtype,
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain data of every field, ready for JSON; layer types become a list of strings."""
        out: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self)}
        for name in ("linear", "full", "feed_forward"):
            part = out[name]
            if part is not None:
                out[name] = {f.name: getattr(part, f.name) for f in fields(part)}
        out["full"]["type"] = self.full_name.lower()
        out["layer_types"] = [t.value for t in self.layer_types]
        out["notes"] = list(self.notes)
        return out


def three_to_one(num_layers: int, *, last_is_full: bool = False) -> tuple[LayerType, ...]:
    """The published pattern: every 4th layer (1-based 4, 8, ...) is full attention, others linear.

    ``last_is_full`` makes the last layer full attention even off the pattern (Kimi Linear's layer
    27, Kimi K3's layer 93).
    """
    types = [LayerType.FULL if i % 4 == 3 else LayerType.LINEAR for i in range(num_layers)]
    if last_is_full and types:
        types[-1] = LayerType.FULL
    return tuple(types)
