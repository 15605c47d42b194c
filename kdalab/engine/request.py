"""One request's life inside the engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from kdalab.cache import Lease, Lookup, PrefixKey
from kdalab.spec.checkpoint import Checkpoint

if TYPE_CHECKING:
    import torch

    from kdalab.engine.arrivals import Arrival
    from kdalab.engine.media import Media
    from kdalab.engine.receiving import Landing
    from kdalab.engine.shared_state import StandIn


class Phase(StrEnum):
    """Where a request is."""

    WAITING = "waiting"
    RECEIVING = "receiving"
    PREFILL = "prefill"
    DECODE = "decode"
    FINISHED = "finished"
    CANCELLED = "cancelled"


class Start(StrEnum):
    """What a private slot still waits for before its first forward."""

    CLEAR = "clear"
    COPY = "copy"


@dataclass(slots=True)
class Request:
    """What the engine keeps for one request.

    ``pages`` is the page table from token 0 on: first those it shares with the cache (as many as
    its lease holds), then its own. ``computed`` counts the tokens that its state has seen.

    Slots: ``active_slot`` is where the next forward writes. ``source_slot`` is where it reads
    instead, once, when the state was left behind at a boundary (-1: it reads what it writes).
    ``spare_slots`` are waiting to become the active one, and ``kept_slot`` holds the state of
    ``kept_boundary`` tokens, to be donated when the request ends (-1: none).
    ``start`` is the deferred beginning: a copy of the leased checkpoint, or zeros. ``load`` is the
    transfer from the host that it has waited for (0: it has not asked for one). ``fetched``: other
    instances have been asked. ``arrival`` is the state that it brought, until it is admitted.
    ``landing``: its prefill runs elsewhere, and what has arrived so far.
    ``media``: images in the prompt. ``spoiled``: a fault has given it somebody else's state, so it
    leaves nothing in the cache.
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
    source_slot: int = -1
    spare_slots: list[int] = field(default_factory=list)
    kept_slot: int = -1
    kept_boundary: int = 0
    start: Start | None = None
    load: int = 0
    fetched: bool = False
    arrival: Arrival | None = None
    landing: Landing | None = None
    media: Media | None = None
    pages: list[int] = field(default_factory=list)
    boundaries: tuple[int, ...] = ()
    computed: int = 0
    generated: list[int] = field(default_factory=list)
    finish_reason: str = ""
    logits: list[torch.Tensor] = field(default_factory=list)
    stale_state: tuple[torch.Tensor, torch.Tensor] | None = None
    stand_in: StandIn | None = None
    spoiled: bool = False

    @property
    def n_tokens(self) -> int:
        """Tokens of the prompt."""
        return len(self.tokens)

    @property
    def n_known(self) -> int:
        """Tokens of the prompt and of what was generated."""
        return len(self.tokens) + len(self.generated)

    @property
    def known(self) -> tuple[int, ...]:
        """The prompt and what was generated."""
        return (*self.tokens, *self.generated)

    def token_at(self, position: int) -> int:
        """The known token at ``position``."""
        n = len(self.tokens)
        return self.tokens[position] if position < n else self.generated[position - n]

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
        return self.phase in (Phase.RECEIVING, Phase.PREFILL, Phase.DECODE)

    @property
    def slots(self) -> tuple[int, ...]:
        """All state slots it owns: the active one, the spares, the kept one."""
        held = (self.active_slot, *self.spare_slots, self.kept_slot)
        return tuple(slot for slot in held if slot >= 0)

    @property
    def leased_checkpoint(self) -> Checkpoint | None:
        """The checkpoint it was restored from, while it still holds that lease."""
        return self.lease.state if self.lease is not None else None
