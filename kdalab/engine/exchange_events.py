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
