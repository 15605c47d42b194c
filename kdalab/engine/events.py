"""What happened, one frozen record an act. The log is the single source of every picture.

All values are plain (numbers, strings, tuples), so that a log can be kept, sent, filtered and
folded without the engine. Lengths and positions are in tokens, sizes in bytes.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from kdalab.cache.protocol import Change, Dropped


@dataclass(frozen=True, slots=True)
class Event:
    """Base of all events; ``request`` is the request it concerns, "" for none."""

    request: str

    tone: ClassVar[str] = "plain"
    """How a page marks it: plain, restore, copy, compute, snapshot, evict, finish."""

    def sentence(self) -> str:
        """One plain sentence for the step bar and the log."""
        raise NotImplementedError

    @property
    def name(self) -> str:
        """The event's name, as in the design."""
        return type(self).__name__

    def as_dict(self) -> dict[str, Any]:
        """Name, sentence and fields, ready for JSON."""
        return {"event": self.name, "sentence": self.sentence(), **asdict(self)}


@dataclass(frozen=True, slots=True)
class Submitted(Event):
    """A request joined the queue."""

    n_tokens: int
    max_new_tokens: int
    tokens: tuple[int, ...]

    def sentence(self) -> str:
        return f"{self.request} arrives with a prompt of {self.n_tokens:,} tokens."


@dataclass(frozen=True, slots=True)
class Matched(Event):
    """The cache was asked; ``why`` are the lines of ``Lookup.why``."""

    token_match: int
    restore: int
    replay: int
    branching: int | None
    kv_reach: int
    state_reach: int
    path: tuple[int, ...]
    binding: str
    why: tuple[str, ...]

    tone: ClassVar[str] = "restore"

    def sentence(self) -> str:
        if self.token_match == 0:
            return f"{self.request}: no part of this prompt is cached."
        return f"{self.request}: the tree knows the first {self.token_match:,} tokens."


@dataclass(frozen=True, slots=True)
class FellBack(Event):
    """The restore point lies before the token match."""

    token_match: int
    restore: int
    binding: str

    tone: ClassVar[str] = "restore"

    def sentence(self) -> str:
        return (
            f"{self.request} falls back from token {self.token_match:,} to the restore point "
            f"{self.restore:,} ({self.binding})."
        )


@dataclass(frozen=True, slots=True)
class Admitted(Event):
    """The request got an active slot, private pages, and locks on what it shares."""

    active_slot: int
    node: int
    restore: int
    shared_pages: tuple[int, ...]
    private_pages: tuple[int, ...]
    spare_slots: tuple[int, ...] = ()

    def sentence(self) -> str:
        spare = f" and {len(self.spare_slots)} spare" if self.spare_slots else ""
        return (
            f"{self.request} gets active slot {self.active_slot}{spare}, reads "
            f"{len(self.shared_pages)} shared latent pages and owns {len(self.private_pages)}."
        )


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
class Replayed(Event):
    """Known tokens were computed again, to bring the state forward from the restore point."""

    start: int
    end: int

    tone: ClassVar[str] = "compute"

    def sentence(self) -> str:
        return (
            f"{self.request} replays tokens {self.start:,} to {self.end:,}: known text, computed "
            "again because no state was kept there."
        )


@dataclass(frozen=True, slots=True)
class Computed(Event):
    """Tokens that the cache has never seen were prefilled."""

    start: int
    end: int

    tone: ClassVar[str] = "compute"

    def sentence(self) -> str:
        return f"{self.request} computes its new tokens {self.start:,} to {self.end:,}."


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
    """No checkpoint slot could be freed: this boundary gets none."""

    boundary: int

    def sentence(self) -> str:
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
class Decoded(Event):
    """One token was generated; it stands at ``position``."""

    token: int
    position: int

    tone: ClassVar[str] = "compute"

    def sentence(self) -> str:
        return f"{self.request} generates token {self.position:,} (id {self.token})."


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
class Finished(Event):
    """The request ended; its locks, private pages and active slot went back."""

    reason: str
    active_slot: int
    freed_pages: tuple[int, ...]
    generated: int
    freed_slots: tuple[int, ...] = ()

    tone: ClassVar[str] = "finish"

    def sentence(self) -> str:
        return f"{self.request} ends ({self.reason}) after {self.generated} generated tokens."


@dataclass(frozen=True, slots=True)
class Retracted(Event):
    """Memory ran out: the request gave back all it held and waits again, first in the queue."""

    reason: str
    active_slot: int
    freed_pages: tuple[int, ...]
    generated: int
    freed_slots: tuple[int, ...] = ()

    tone: ClassVar[str] = "evict"

    def sentence(self) -> str:
        return (
            f"{self.request} is retracted ({self.reason}) with {self.generated} generated tokens; "
            "it will go on from the cache."
        )


@dataclass(frozen=True, slots=True)
class PagesTaken(Event):
    """The request took latent pages for tokens that it is about to generate."""

    pages: tuple[int, ...]

    def sentence(self) -> str:
        return f"{self.request} takes {len(self.pages)} more latent pages."


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


@dataclass(frozen=True, slots=True)
class Verified(Event):
    """Drafted tokens were checked in one step; the first ``accepted`` of them were right."""

    position: int
    drafted: tuple[int, ...]
    accepted: int

    tone: ClassVar[str] = "compute"

    def sentence(self) -> str:
        return (
            f"{self.request}: {self.accepted} of {len(self.drafted)} drafted tokens after "
            f"{self.position:,} are what the model itself would have chosen."
        )


@dataclass(frozen=True, slots=True)
class Dispatched(Event):
    """From here on a phase (extend, decode, verify) runs this op on this backend."""

    phase: str
    op: str
    backend: str
    why: str

    def sentence(self) -> str:
        return f"Phase {self.phase} runs {self.op} on {self.backend}: {self.why}."


@dataclass(frozen=True, slots=True)
class Cancelled(Event):
    """The request was cancelled while it waited; it held nothing."""

    tone: ClassVar[str] = "finish"

    def sentence(self) -> str:
        return f"{self.request} is cancelled before it started."


@dataclass(frozen=True, slots=True)
class FaultInjected(Event):
    """An invariant was switched off on purpose, here."""

    fault: str
    what: str

    tone: ClassVar[str] = "evict"

    def sentence(self) -> str:
        return f"On purpose: {self.what}"
