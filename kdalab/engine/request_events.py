"""What happens to a request: it arrives, is matched, computed, decoded, and ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kdalab.engine.event import Event


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
class Decoded(Event):
    """One token was generated; it stands at ``position``."""

    token: int
    position: int

    tone: ClassVar[str] = "compute"

    def sentence(self) -> str:
        return f"{self.request} generates token {self.position:,} (id {self.token})."


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
class DraftsDropped(Event):
    """The drafter failed, or some of what it proposed cannot be used; the request goes on."""

    reason: str

    def sentence(self) -> str:
        return f"{self.request} does without some drafts: {self.reason}."


@dataclass(frozen=True, slots=True)
class PagesTaken(Event):
    """The request took latent pages for tokens that it is about to generate."""

    pages: tuple[int, ...]

    def sentence(self) -> str:
        return f"{self.request} takes {len(self.pages)} more latent pages."


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
class Cancelled(Event):
    """The request was cancelled while it waited; it held nothing."""

    tone: ClassVar[str] = "finish"

    def sentence(self) -> str:
        return f"{self.request} is cancelled before it started."


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
class FaultInjected(Event):
    """An invariant was switched off on purpose, here."""

    fault: str
    what: str

    tone: ClassVar[str] = "evict"

    def sentence(self) -> str:
        return f"On purpose: {self.what}"
