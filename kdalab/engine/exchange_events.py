"""What passes between instances: events of ``kdalab.engine.events``. Sizes in bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kdalab.cache.protocol import Change
from kdalab.engine.events import Event


@dataclass(frozen=True, slots=True)
class Sent(Event):
    """A copy of a whole state left for another instance; nothing here has changed."""

    target: str
    boundary: int
    kv_bytes: int
    state_bytes: int

    tone: ClassVar[str] = "copy"

    def sentence(self) -> str:
        whose = f"{self.request}'s" if self.request else "The cached"
        to = f" to {self.target}" if self.target else ""
        return (
            f"{whose} state after {self.boundary:,} tokens is sent{to}: {self.kv_bytes:,} bytes "
            f"of latent KV, {self.state_bytes:,} of recurrent and conv state."
        )


@dataclass(frozen=True, slots=True)
class Received(Event):
    """A request came together with its state; ``generated`` are the tokens it brought."""

    source: str
    boundary: int
    generated: tuple[int, ...]
    bytes: int

    tone: ClassVar[str] = "copy"

    def sentence(self) -> str:
        return (
            f"{self.request} comes from {self.source or 'elsewhere'} with its state after "
            f"{self.boundary:,} tokens."
        )


@dataclass(frozen=True, slots=True)
class Installed(Event):
    """The state that a request brought was written into its private slot and pages."""

    active_slot: int
    boundary: int
    bytes: int

    tone: ClassVar[str] = "copy"

    def sentence(self) -> str:
        return (
            f"The state after {self.boundary:,} tokens is written into {self.request}'s private "
            f"slot {self.active_slot}; none of its prompt is computed here."
        )


@dataclass(frozen=True, slots=True)
class Fetched(Event):
    """A prefix of another instance entered this cache. What the tree knew already went back:
    ``duplicate_pages``, and the state when ``state_existed``."""

    source: str
    node: int
    boundary: int
    checkpoint_slot: int
    changes: tuple[Change, ...]
    duplicate_pages: tuple[int, ...]
    state_existed: bool
    bytes: int

    tone: ClassVar[str] = "restore"

    def sentence(self) -> str:
        whom = f" for {self.request}" if self.request else ""
        return (
            f"The first {self.boundary:,} tokens are fetched from {self.source or 'elsewhere'}"
            f"{whom} and enter the tree at node {self.node}."
        )


@dataclass(frozen=True, slots=True)
class FetchFailed(Event):
    """Another instance could restore farther, but nothing was taken; nothing has changed."""

    source: str
    boundary: int
    reason: str

    def sentence(self) -> str:
        return (
            f"{self.request}: the state after {self.boundary:,} tokens is not taken from "
            f"{self.source}: {self.reason}."
        )


@dataclass(frozen=True, slots=True)
class Expected(Event):
    """A request whose prefill runs elsewhere got a slot, private pages, and locks on the latent
    KV that the tree has of its prompt (``held`` tokens). The rest and the state are to come."""

    source: str
    active_slot: int
    node: int
    held: int
    shared_pages: tuple[int, ...]
    private_pages: tuple[int, ...]
    spare_slots: tuple[int, ...] = ()

    def sentence(self) -> str:
        return (
            f"{self.request} takes active slot {self.active_slot} and {len(self.private_pages)} "
            f"latent pages before its state comes from {self.source or 'elsewhere'}; latent KV of "
            f"{self.held:,} tokens is here already."
        )


@dataclass(frozen=True, slots=True)
class PiecesLanded(Event):
    """Latent KV of tokens [start, end) was written into the pages of a request that expects it;
    ``front`` tokens are here without a gap."""

    start: int
    end: int
    front: int

    tone: ClassVar[str] = "copy"

    def sentence(self) -> str:
        return f"Latent KV of {self.request}'s tokens {self.start:,} to {self.end:,} has arrived."


@dataclass(frozen=True, slots=True)
class StateLanded(Event):
    """Recurrent and conv state after the whole prompt are in the request's slot: all of one
    boundary is here, and it decodes. ``held`` tokens of latent KV had not to travel."""

    source: str
    active_slot: int
    boundary: int
    held: int
    bytes: int

    tone: ClassVar[str] = "copy"

    def sentence(self) -> str:
        return (
            f"The state after {self.boundary:,} tokens of {self.request} has arrived from "
            f"{self.source or 'elsewhere'} and is whole: it decodes from slot {self.active_slot}."
        )
