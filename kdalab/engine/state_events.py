"""What happens to states and pages: copied, frozen, donated, entered into the tree, given up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kdalab.cache.protocol import Change, Dropped
from kdalab.engine.event import Event


@dataclass(frozen=True, slots=True)
class CopiedOnWrite(Event):
    """A shared checkpoint is copied into the request's private slot.

    The copy is made with the request's first forward; the checkpoint stays locked until then.
    """

    checkpoint_slot: int
    active_slot: int
    boundary: int
    bytes: int

    tone: ClassVar[str] = "copy"

    def sentence(self) -> str:
        return (
            f"The checkpoint in slot {self.checkpoint_slot} (after {self.boundary:,} tokens) is "
            f"copied into {self.request}'s private slot {self.active_slot}."
        )


@dataclass(frozen=True, slots=True)
class Cleared(Event):
    """No checkpoint: the request starts from the zero state."""

    active_slot: int

    def sentence(self) -> str:
        return f"{self.request} starts from the zero state in slot {self.active_slot}."


@dataclass(frozen=True, slots=True)
class Snapshotted(Event):
    """The private state was frozen into a checkpoint slot."""

    active_slot: int
    checkpoint_slot: int
    boundary: int
    bytes: int
    error: float = 0.0  # largest |difference| that quantising made; 0 for a plain copy

    tone: ClassVar[str] = "snapshot"

    def sentence(self) -> str:
        text = (
            f"{self.request}'s state after {self.boundary:,} tokens is frozen into checkpoint "
            f"slot {self.checkpoint_slot}"
        )
        return f"{text}, off by at most {self.error:.1e}." if self.error else f"{text}."


@dataclass(frozen=True, slots=True)
class Donated(Event):
    """A slot became a checkpoint where it is: no copy. The request goes on in ``active_slot``."""

    slot: int
    active_slot: int
    boundary: int

    tone: ClassVar[str] = "snapshot"

    def sentence(self) -> str:
        return (
            f"{self.request} gives slot {self.slot}, its state after {self.boundary:,} tokens, to "
            "the cache; nothing is copied."
        )


@dataclass(frozen=True, slots=True)
class SpareTaken(Event):
    """The request took one more slot, to go on in after the next boundary."""

    slot: int

    def sentence(self) -> str:
        return f"{self.request} takes slot {self.slot} as its spare."


@dataclass(frozen=True, slots=True)
class Tracked(Event):
    """Decoding passed a boundary: the state there is kept, and ``active_slot`` is written next.

    ``freed_slot`` held the state kept before and went back to the pool (-1: it became a spare).
    """

    kept_slot: int
    active_slot: int
    boundary: int
    freed_slot: int

    tone: ClassVar[str] = "snapshot"

    def sentence(self) -> str:
        return (
            f"{self.request} keeps its state after {self.boundary:,} tokens in slot "
            f"{self.kept_slot} and goes on in slot {self.active_slot}."
        )


@dataclass(frozen=True, slots=True)
class SnapshotSkipped(Event):
    """This boundary gets no checkpoint: no slot could be had, or taking it failed (``reason``)."""

    boundary: int
    reason: str = ""

    def sentence(self) -> str:
        if self.reason:
            return f"{self.request} leaves no checkpoint at {self.boundary:,}: {self.reason}."
        return f"{self.request}: every checkpoint is in use; none is taken at {self.boundary:,}."


@dataclass(frozen=True, slots=True)
class Inserted(Event):
    """A checkpoint and its latent pages entered the tree; the request's locks moved there.

    ``pages`` is the request's share of the tree from token 0 on, after the move;
    ``duplicate_pages`` were known already and went back to the pool, as did the checkpoint's
    slot when ``state_existed``.
    """

    node: int
    boundary: int
    checkpoint_slot: int
    pages: tuple[int, ...]
    duplicate_pages: tuple[int, ...]
    state_existed: bool
    changes: tuple[Change, ...]

    tone: ClassVar[str] = "snapshot"

    def sentence(self) -> str:
        kinds = {type(c).__name__ for c in self.changes}
        if self.state_existed:
            text = "is already in the tree; the second copy is given back"
        elif "Revived" in kinds and "Split" not in kinds:
            text = "gives a tombstone its state back"
        elif "Split" in kinds:
            text = "splits an edge of the tree; the state below stays with the lower node"
        else:
            text = "enters the tree as a new leaf"
        return f"{self.request}'s prefix of {self.boundary:,} tokens {text}."


@dataclass(frozen=True, slots=True)
class Evicted(Event):
    """Unlocked nodes or states were given up to make room for ``request``.

    ``kv_bytes`` and ``state_bytes`` are the device's, ``host_bytes`` those of copies on the host.
    """

    reason: str
    kv_bytes: int
    state_bytes: int
    dropped: tuple[Dropped, ...]
    host_bytes: int = 0

    tone: ClassVar[str] = "evict"

    def sentence(self) -> str:
        nodes = [f"node {d.node}" for d in self.dropped if d.removed]
        states = [_lost(d) for d in self.dropped if not d.removed]
        return f"Evicted {', '.join(states + nodes)} ({self.reason})."


def _lost(dropped: Dropped) -> str:
    """What a node that stays has lost."""
    what = []
    if dropped.pages:
        what.append("the latent KV" if dropped.state is None else "the latent KV and the state")
    elif dropped.state is not None:
        what.append("the state")
    if dropped.host_pages or dropped.host_state is not None:
        what.append("the host's copy")
    return f"{' and '.join(what)} of node {dropped.node}"


@dataclass(frozen=True, slots=True)
class Moved(Event):
    """A unified buffer moved one slot into a hole; its number stays, its place changes."""

    pool: str
    slot: int
    source: int
    target: int
    bytes: int

    tone: ClassVar[str] = "copy"

    def sentence(self) -> str:
        return f"Slot {self.slot} of the {self.pool} moves from row {self.source} to {self.target}."
