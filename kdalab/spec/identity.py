"""Which states may be combined: everything that must be equal first."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

from kdalab.errors import KdalabError
from kdalab.spec.dtypes import canonical_dtype
from kdalab.spec.model_spec import ModelSpec

#: Recurrent state stored ``[.., v, k]`` (SGLang, vLLM, FlashKDA) or ``[.., k, v]`` (FLA's default).
RECURRENT_LAYOUTS = ("v_first", "k_first")
#: Conv state stored ``[channel, W - 1]`` or ``[W - 1, channel]``.
CONV_LAYOUTS = ("channel_first", "time_first")


MAX_RANKS = 1 << 20
"""More than any model runs on, and few enough for every format that keeps them."""


class IdentityMismatchError(KdalabError):
    """Two states of different identity were about to be combined."""


@dataclass(frozen=True, slots=True)
class ParallelLayout:
    """How the model is cut over ranks, and which part this state belongs to."""

    tp_size: int = 1
    tp_rank: int = 0
    pp_size: int = 1
    pp_rank: int = 0

    def __post_init__(self) -> None:
        for axis, size, rank in (
            ("tp", self.tp_size, self.tp_rank),
            ("pp", self.pp_size, self.pp_rank),
        ):
            for name, value in (("size", size), ("rank", rank)):
                if type(value) is not int or value >= MAX_RANKS + (name == "size"):
                    raise KdalabError(
                        f"{axis}_{name} is {repr(value)[:40]}; use a whole number, for up to "
                        f"{MAX_RANKS:,} ranks"
                    )
            if size < 1 or not 0 <= rank < size:
                raise KdalabError(
                    f"{axis}_rank {rank} of {axis}_size {size}; ranks run from 0 to size - 1"
                )


@dataclass(frozen=True, slots=True)
class StateIdentity:
    """Everything that must be equal before two states may be combined.

    ``model_version`` names the exact weights (a revision or a hash of them), ``tokenizer`` is a
    fingerprint of the vocabulary and its rules. ``extra`` holds further distinguishing pairs, such
    as a LoRA adapter or a cache salt; their order does not matter.

    A layout mix-up of a square state cannot be seen in its shape, which is why the layout is part
    of the identity and not of the tensor.

    Raises:
        KdalabError: an unknown dtype or layout, or an empty model version.
    """

    model: str
    model_version: str
    tokenizer: str
    state_dtype: str = "fp32"
    conv_dtype: str = "bf16"
    kv_dtype: str = "bf16"
    recurrent_layout: str = "v_first"
    conv_layout: str = "channel_first"
    parallel: ParallelLayout = field(default_factory=ParallelLayout)
    extra: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        for name in ("model", "model_version", "tokenizer"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value:
                raise KdalabError(f"StateIdentity.{name} is {value!r}; it must be a non-empty text")
        for name in ("state_dtype", "conv_dtype", "kv_dtype"):
            object.__setattr__(self, name, canonical_dtype(getattr(self, name)))
        for name, allowed in (
            ("recurrent_layout", RECURRENT_LAYOUTS),
            ("conv_layout", CONV_LAYOUTS),
        ):
            if getattr(self, name) not in allowed:
                raise KdalabError(
                    f"StateIdentity.{name} is {getattr(self, name)!r}; use {' or '.join(allowed)}"
                )
        object.__setattr__(self, "extra", tuple(sorted((str(k), str(v)) for k, v in self.extra)))

    @classmethod
    def of(
        cls,
        spec: ModelSpec,
        *,
        model_version: str,
        tokenizer: str,
        parallel: ParallelLayout | None = None,
        recurrent_layout: str = "v_first",
        conv_layout: str = "channel_first",
        extra: tuple[tuple[str, str], ...] = (),
    ) -> StateIdentity:
        """The identity of states that ``spec`` produces."""
        return cls(
            model=spec.name,
            model_version=model_version,
            tokenizer=tokenizer,
            state_dtype=spec.state_dtype,
            conv_dtype=spec.conv_dtype,
            kv_dtype=spec.kv_dtype,
            recurrent_layout=recurrent_layout,
            conv_layout=conv_layout,
            parallel=parallel or ParallelLayout(),
            extra=extra,
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain data with flat keys (``parallel.tp_size`` ...), the form that is hashed."""
        return {
            "model": self.model,
            "model_version": self.model_version,
            "tokenizer": self.tokenizer,
            "state_dtype": self.state_dtype,
            "conv_dtype": self.conv_dtype,
            "kv_dtype": self.kv_dtype,
            "recurrent_layout": self.recurrent_layout,
            "conv_layout": self.conv_layout,
            "parallel.tp_size": self.parallel.tp_size,
            "parallel.tp_rank": self.parallel.tp_rank,
            "parallel.pp_size": self.parallel.pp_size,
            "parallel.pp_rank": self.parallel.pp_rank,
            "extra": [list(pair) for pair in self.extra],
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> StateIdentity:
        """The inverse of :meth:`to_dict`.

        Raises:
            KdalabError: a key is missing or unknown, or a value is not allowed.
        """
        expected = set(_FIELDS)
        if not isinstance(data, dict) or set(data) != expected:
            got = set(data) if isinstance(data, dict) else set()
            raise KdalabError(
                f"identity: missing {sorted(expected - got)}, unknown {sorted(got - expected)}"
            )
        extra = _pairs(data["extra"])
        try:
            parallel = ParallelLayout(
                **{k.removeprefix("parallel."): data[k] for k in _PARALLEL_FIELDS}
            )
        except KdalabError as error:
            raise KdalabError(f"identity: {error}") from None
        wrong = [k for k in _TEXTS if not isinstance(data[k], str)]
        if wrong:
            raise KdalabError(f"identity: {wrong[0]} is {repr(data[wrong[0]])[:40]}; it is a text")
        plain = {k: data[k] for k in _FIELDS if k not in _PARALLEL_FIELDS and k != "extra"}
        return cls(**plain, parallel=parallel, extra=extra)

    def digest(self) -> str:
        """Hex SHA-256 of the canonical JSON form: equal on every machine and in every process."""
        text = json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def difference(self, other: StateIdentity) -> tuple[str, ...]:
        """Names of the fields that differ, in the order of the class; empty when equal."""
        mine, theirs = self.to_dict(), other.to_dict()
        return tuple(name for name in mine if mine[name] != theirs[name])

    def require_equal(self, other: StateIdentity) -> None:
        """Do nothing when equal.

        Raises:
            IdentityMismatchError: names each differing field with both values.
        """
        mine, theirs = self.to_dict(), other.to_dict()
        names = self.difference(other)
        if names:
            parts = "; ".join(f"{n}: {mine[n]!r} and {theirs[n]!r}" for n in names)
            raise IdentityMismatchError(
                f"states of different identity cannot be combined ({parts})"
            )


_PARALLEL_FIELDS = ("parallel.tp_size", "parallel.tp_rank", "parallel.pp_size", "parallel.pp_rank")
_FIELDS = tuple(StateIdentity("-", "-", "-").to_dict())
_TEXTS = tuple(k for k in _FIELDS if k not in _PARALLEL_FIELDS and k != "extra")


def _pairs(value: object) -> tuple[tuple[str, str], ...]:
    """``extra`` as plain data has it: a list of pairs of texts."""
    if not isinstance(value, (list, tuple)) or not all(
        isinstance(pair, (list, tuple)) and len(pair) == 2 and all(isinstance(x, str) for x in pair)
        for pair in value
    ):
        raise KdalabError(f"identity: extra is {repr(value)[:60]}; it is a list of pairs of texts")
    return tuple((key, text) for key, text in value)
