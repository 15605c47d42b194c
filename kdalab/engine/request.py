"""One request's life inside the engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from kdalab.cache import Lease, Lookup, PrefixKey

if TYPE_CHECKING:
    import torch


class Phase(StrEnum):
    """Where a request is."""

    WAITING = "waiting"
    PREFILL = "prefill"
    DECODE = "decode"
    FINISHED = "finished"
    CANCELLED = "cancelled"


@dataclass(slots=True)
class Request:
    """What the engine keeps for one request.

    ``pages`` is the page table from token 0 on: first those it shares with the cache (as many as
    its lease holds), then its own. ``computed`` counts the tokens that the active state has seen.
    """

    name: str
    tokens: tuple[int, ...]
    max_new_tokens: int
    key: PrefixKey
    stop_tokens: frozenset[int] = frozenset()
    phase: Phase = Phase.WAITING
    lookup: Lookup | None = None
    lease: Lease | None = None
    active_slot: int = -1
    pages: list[int] = field(default_factory=list)
    boundaries: tuple[int, ...] = ()
    computed: int = 0
    generated: list[int] = field(default_factory=list)
    finish_reason: str = ""
    logits: list[torch.Tensor] = field(default_factory=list)
    stale_state: tuple[torch.Tensor, torch.Tensor] | None = None

    @property
    def n_tokens(self) -> int:
        """Tokens of the prompt."""
        return len(self.tokens)

    @property
    def n_shared(self) -> int:
        """Leading pages of the table that belong to the cache."""
        return len(self.lease.pages) if self.lease is not None else 0

    @property
    def token_match(self) -> int:
        """Tokens of the prompt that the cache knew when the request was admitted."""
        return self.lookup.token_match if self.lookup is not None else 0

    @property
    def restore(self) -> int:
        """Boundary that the request started from."""
        return self.lookup.restore if self.lookup is not None else 0

    @property
    def is_running(self) -> bool:
        """True while it holds slots."""
        return self.phase in (Phase.PREFILL, Phase.DECODE)
