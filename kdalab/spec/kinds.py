"""The four kinds of state a request can own, and what makes them different for a cache."""

from __future__ import annotations

from enum import StrEnum


class StateKind(StrEnum):
    """What a cached object is.

    * ``MLA_KV``: latent (or grouped) keys and values of the attention layers. Append-only and
      addressable by token: the state at boundary n is a prefix of the state at any m >= n.
    * ``KDA_RECURRENT``: the matrix state ``S[layer, head, k, v]``, a summary of the whole prefix.
    * ``KDA_CONV``: the last ``W - 1`` inputs of the short convolutions, a summary of those inputs.
    * ``EMBEDDING``: an encoder's output (encode-prefill-decode serving).

    The two summaries are valid at exactly one boundary each and cannot be trimmed back.
    """

    MLA_KV = "mla_kv"
    KDA_RECURRENT = "kda_recurrent"
    KDA_CONV = "kda_conv"
    EMBEDDING = "embedding"

    @property
    def is_summary(self) -> bool:
        """True for a state that is valid at exactly one boundary."""
        return self in CHECKPOINT_KINDS

    @property
    def is_append_only(self) -> bool:
        """True for a state whose shorter prefixes can be read from the longer one."""
        return self is StateKind.MLA_KV

    @property
    def label(self) -> str:
        """The words used on pages, in figures and in messages."""
        return _LABELS[self]


#: What a checkpoint consists of. The two travel together: no function moves one of them alone.
CHECKPOINT_KINDS: tuple[StateKind, StateKind] = (StateKind.KDA_RECURRENT, StateKind.KDA_CONV)

_LABELS: dict[StateKind, str] = {
    StateKind.MLA_KV: "latent KV",
    StateKind.KDA_RECURRENT: "recurrent state",
    StateKind.KDA_CONV: "conv state",
    StateKind.EMBEDDING: "embedding",
}
