"""How many bytes each kind of state takes: per layer, per token, per checkpoint, per rank."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import Any

from kdalab.errors import KdalabError
from kdalab.spec.dtypes import itemsize
from kdalab.spec.kinds import StateKind
from kdalab.spec.model_spec import GroupedAttention, ModelSpec

#: An INT8 checkpoint keeps one fp32 scale per layer, value head and key channel.
SCALE_BYTES = 4

#: More tensor-parallel ranks than any deployment has; no size above it is tried or offered.
MAX_TP = 4096


@dataclass(frozen=True, slots=True)
class StateSizes:
    """Bytes of every kind of state of one model, on one rank of ``tp_size``.

    ``tp_size = 1`` is the whole model. All figures are exact integers; a checkpoint is the
    recurrent and the conv state of every linear layer at one boundary.
    """

    model: str
    tp_size: int
    state_dtype: str
    conv_dtype: str
    kv_dtype: str
    num_linear_layers: int
    num_full_layers: int
    recurrent_bytes_per_layer: int
    conv_bytes_per_layer: int
    int8_bytes_per_layer: int
    int8_scale_bytes_per_layer: int
    latent_bytes_per_token_per_layer: int

    @property
    def recurrent_bytes(self) -> int:
        """Recurrent state of all linear layers, in bytes."""
        return self.recurrent_bytes_per_layer * self.num_linear_layers

    @property
    def conv_bytes(self) -> int:
        """Conv state of all linear layers, in bytes."""
        return self.conv_bytes_per_layer * self.num_linear_layers

    @property
    def latent_bytes_per_token(self) -> int:
        """KV of one token in all full layers, in bytes (latent for MLA, K and V for GQA)."""
        return self.latent_bytes_per_token_per_layer * self.num_full_layers

    @property
    def checkpoint_bytes(self) -> int:
        """One checkpoint in the state's own dtypes, in bytes. Also one active state."""
        return self.recurrent_bytes + self.conv_bytes

    @property
    def checkpoint_int8_bytes(self) -> int:
        """One checkpoint with INT8 recurrent state, its fp32 scales and the conv state as is."""
        per_layer = self.int8_bytes_per_layer + self.int8_scale_bytes_per_layer
        return per_layer * self.num_linear_layers + self.conv_bytes

    @property
    def checkpoint_equals_tokens(self) -> int:
        """Tokens whose KV takes as many bytes as one checkpoint, to the nearest token.

        0 when the model has no full layers, for then no context is long enough.
        """
        return _nearest(self.checkpoint_bytes, self.latent_bytes_per_token)

    @property
    def checkpoint_int8_equals_tokens(self) -> int:
        """As :attr:`checkpoint_equals_tokens`, for an INT8 checkpoint."""
        return _nearest(self.checkpoint_int8_bytes, self.latent_bytes_per_token)

    def latent_bytes(self, tokens: int) -> int:
        """KV of a context of ``tokens`` tokens, in bytes.

        Raises:
            KdalabError: ``tokens`` is negative.
        """
        if tokens < 0:
            raise KdalabError(f"{tokens:,} tokens of context; use 0 or more")
        return self.latent_bytes_per_token * tokens

    def checkpoint_store_bytes(self, context: int, interval: int, *, int8: bool = False) -> int:
        """All checkpoints of one request of ``context`` tokens, one every ``interval``, in bytes.

        Raises:
            KdalabError: as :func:`checkpoints_over`.
        """
        one = self.checkpoint_int8_bytes if int8 else self.checkpoint_bytes
        return checkpoints_over(context, interval) * one

    def bytes_of(self, kind: StateKind, tokens: int = 1) -> int:
        """Bytes of one kind of state at a boundary of ``tokens`` tokens.

        Raises:
            KdalabError: an embedding, whose size belongs to the encoder and not to this model.
        """
        if kind is StateKind.MLA_KV:
            return self.latent_bytes(tokens)
        if kind is StateKind.KDA_RECURRENT:
            return self.recurrent_bytes
        if kind is StateKind.KDA_CONV:
            return self.conv_bytes
        raise KdalabError("an embedding's size comes from the encoder; the language model has none")

    def to_dict(self) -> dict[str, Any]:
        """All figures with stable keys, for ``kdalab size --json``."""
        return {
            "tp_size": self.tp_size,
            "state_dtype": self.state_dtype,
            "conv_dtype": self.conv_dtype,
            "kv_dtype": self.kv_dtype,
            "recurrent_bytes_per_layer": self.recurrent_bytes_per_layer,
            "recurrent_bytes": self.recurrent_bytes,
            "conv_bytes_per_layer": self.conv_bytes_per_layer,
            "conv_bytes": self.conv_bytes,
            "latent_bytes_per_token_per_layer": self.latent_bytes_per_token_per_layer,
            "latent_bytes_per_token": self.latent_bytes_per_token,
            "checkpoint_bytes": self.checkpoint_bytes,
            "checkpoint_int8_bytes": self.checkpoint_int8_bytes,
            "checkpoint_equals_tokens": self.checkpoint_equals_tokens,
            "checkpoint_int8_equals_tokens": self.checkpoint_int8_equals_tokens,
        }


def state_sizes(spec: ModelSpec, *, tp_size: int = 1) -> StateSizes:
    """Bytes of every kind of state of ``spec`` on one of ``tp_size`` tensor-parallel ranks.

    Linear attention's heads are split over the ranks, so its states shrink by ``tp_size``. MLA's
    latent vector is shared by all heads and therefore replicated on every rank. GQA's KV heads are
    split, and replicated once there are more ranks than KV heads.

    Raises:
        KdalabError: ``tp_size`` does not divide the heads; the message shows the arithmetic.
    """
    _check_tp(spec, tp_size)
    linear, kv = spec.linear, spec.full.kv_elements
    if isinstance(spec.full, GroupedAttention):
        heads = max(spec.full.num_kv_heads // tp_size, 1)
        kv = 2 * heads * spec.full.head_dim
    return StateSizes(
        model=spec.name,
        tp_size=tp_size,
        state_dtype=spec.state_dtype,
        conv_dtype=spec.conv_dtype,
        kv_dtype=spec.kv_dtype,
        num_linear_layers=spec.num_linear_layers,
        num_full_layers=spec.num_full_layers,
        recurrent_bytes_per_layer=linear.recurrent_elements // tp_size * itemsize(spec.state_dtype),
        conv_bytes_per_layer=linear.conv_elements // tp_size * itemsize(spec.conv_dtype),
        int8_bytes_per_layer=linear.recurrent_elements // tp_size * itemsize("int8"),
        int8_scale_bytes_per_layer=linear.scale_elements // tp_size * SCALE_BYTES,
        latent_bytes_per_token_per_layer=kv * itemsize(spec.kv_dtype),
    )


def checkpoints_over(context: int, interval: int) -> int:
    """Boundaries ``interval, 2 * interval, ...`` that lie within ``context`` tokens.

    Raises:
        KdalabError: the interval is not positive or the context is negative.
    """
    if interval < 1:
        raise KdalabError(f"checkpoint interval of {interval:,} tokens; use 1 or more")
    if context < 0:
        raise KdalabError(f"context of {context:,} tokens; use 0 or more")
    return context // interval


def _nearest(numerator: int, denominator: int) -> int:
    """Integer division to the nearest, halves up; 0 when there is nothing to divide by."""
    return (2 * numerator + denominator) // (2 * denominator) if denominator else 0


def _check_tp(spec: ModelSpec, tp_size: int) -> None:
    if isinstance(tp_size, bool) or not isinstance(tp_size, int) or tp_size < 1:
        raise KdalabError(f"tensor parallel size {tp_size!r}; use an integer >= 1")
    if tp_size > MAX_TP:
        raise KdalabError(
            f"tensor parallel size over {MAX_TP:,}; use an integer from 1 to {MAX_TP:,}"
        )
    heads = {
        f"{spec.linear_name} key heads": spec.linear.num_k_heads,
        f"{spec.linear_name} value heads": spec.linear.num_v_heads,
        f"{spec.full_name} query heads": spec.full.num_heads,
    }
    if spec.linear.num_k_heads == spec.linear.num_v_heads:
        heads = {
            f"{spec.linear_name} heads": spec.linear.num_v_heads,
            f"{spec.full_name} heads": spec.full.num_heads,
        }
    for what, count in heads.items():
        if count % tp_size:
            common = gcd(*heads.values())
            allowed = [n for n in range(1, min(common, MAX_TP) + 1) if common % n == 0]
            raise KdalabError(
                f"{spec.name} has {count} {what}: {count} / {tp_size} = "
                f"{count / tp_size:.2f} per rank is not a whole number; "
                f"tensor parallel sizes that work: {', '.join(map(str, allowed))}"
            )
    if isinstance(spec.full, GroupedAttention):
        kv = spec.full.num_kv_heads
        if kv % tp_size and tp_size % kv:
            raise KdalabError(
                f"{spec.name} has {kv} KV heads: {tp_size} ranks can neither split nor "
                f"replicate them evenly ({kv} / {tp_size} and {tp_size} / {kv} both leave a rest)"
            )
