"""What happens among blocks, beside the events that every engine has.

Where the meaning is that of the radix engine the event is the same, by name and by type: only its
sentence speaks of blocks. Groups are numbers of the cache's groups.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kdalab.engine import events as ev
from kdalab.engine.events import Event


@dataclass(frozen=True, slots=True)
class Matched(ev.Matched):
    """The cache was asked. ``path`` is empty: there is no tree."""

    def sentence(self) -> str:
        if self.token_match == 0:
            return f"{self.request}: no part of this prompt is cached."
        return f"{self.request}: hashes are known for the first {self.token_match:,} tokens."


@dataclass(frozen=True, slots=True)
class Admitted(ev.Admitted):
    """The request holds the blocks of its hit. ``active_slot`` and ``node`` are -1: there are
    none; ``shared_pages`` are the whole KV blocks of the first attention group.

    ``kv`` are the whole KV blocks of each attention group, ``borrowed`` the partly filled one
    after them (-1: none), ``states`` the state block of each state group (-1: from zeros).
    """

    kv: tuple[tuple[int, ...], ...] = ()
    borrowed: tuple[int, ...] = ()
    states: tuple[int, ...] = ()

    def sentence(self) -> str:
        if not self.restore:
            return f"{self.request} starts from zeros."
        count = sum(map(len, self.kv)) + sum(b >= 0 for b in (*self.borrowed, *self.states))
        return f"{self.request} holds the {count} blocks of its hit and starts at {self.restore:,}."


@dataclass(frozen=True, slots=True)
class Finished(ev.Finished):
    """The request ended. ``freed_pages`` are all blocks that it held; cached ones keep their
    names and wait for the next hit. ``active_slot`` is -1."""


@dataclass(frozen=True, slots=True)
class Deferred(Event):
    """A block of the hit is only being computed in this step: the request waits for the next."""

    restore: int

    def sentence(self) -> str:
        return (
            f"{self.request} would start at {self.restore:,}, whose block is being computed in "
            "this step: it waits for the next."
        )


@dataclass(frozen=True, slots=True)
class BlocksAllocated(Event):
    """Blocks for the request's next tokens, ``purpose`` "kv" or "state"."""

    group: int
    group_name: str
    blocks: tuple[int, ...]
    purpose: str

    def sentence(self) -> str:
        what = "latent KV" if self.purpose == "kv" else "states"
        many = "blocks" if len(self.blocks) > 1 else "block"
        names = ", ".join(map(str, self.blocks))
        return f"{self.request} takes {many} {names} of group {self.group_name} for {what}."


@dataclass(frozen=True, slots=True)
class NamesEvicted(Event):
    """A cached block was taken for something else; what it was known as is gone."""

    group: int
    block: int
    boundaries: tuple[int, ...]

    tone: ClassVar[str] = "evict"

    def sentence(self) -> str:
        at = ", ".join(f"{b:,}" for b in self.boundaries)
        return f"Block {self.block}, cached for {at} tokens, is taken for {self.request}."


@dataclass(frozen=True, slots=True)
class CopyQueued(Event):
    """A block is copied before the forward. ``kind`` says for whom:

    * "entry": the request owns the block and goes on in it; the *cache entry* moves to the copy
      (the reverse of copy on write).
    * "private": the block is another's; the request goes on in its own copy.
    * "tail": the first ``tokens`` of a partly filled KV block, for the request to append to.
    """

    group: int
    source: int
    target: int
    tokens: int
    kind: str
    bytes: int

    tone: ClassVar[str] = "copy"

    def sentence(self) -> str:
        if self.kind == "entry":
            return (
                f"{self.request} keeps block {self.source} to go on in; its cache entry moves to "
                f"block {self.target}."
            )
        if self.kind == "private":
            return (
                f"The cached state in block {self.source} is copied into {self.request}'s own "
                f"block {self.target}."
            )
        return (
            f"The first {self.tokens:,} tokens of KV block {self.source} are copied into "
            f"{self.request}'s own block {self.target}."
        )


@dataclass(frozen=True, slots=True)
class StatesWritten(Event):
    """The step of tokens [start, end) leaves states: ``writes`` are (group, boundary, block)."""

    start: int
    end: int
    writes: tuple[tuple[int, int, int], ...]

    tone: ClassVar[str] = "snapshot"

    def sentence(self) -> str:
        inside = sorted({n for _, n, _ in self.writes if n != self.end})
        blocks = ", ".join(str(b) for _, n, b in self.writes if n == self.end)
        text = f"{self.request}'s state after {self.end:,} tokens stands in blocks {blocks}"
        if inside:
            at = ", ".join(f"{n:,}" for n in inside)
            text += f"; the kernel also stores the one at {at}, inside the chunk"
        return f"{text}."


@dataclass(frozen=True, slots=True)
class StateCached(Event):
    """A state block got its name: the hash of the prefix of just the tokens that it has seen."""

    group: int
    block: int
    boundary: int

    tone: ClassVar[str] = "snapshot"

    def sentence(self) -> str:
        return (
            f"Block {self.block} is cached as the state of {self.request}'s first "
            f"{self.boundary:,} tokens."
        )


@dataclass(frozen=True, slots=True)
class KVCached(Event):
    """KV blocks got names: (block, boundary) each. A partly filled one can be named as well."""

    group: int
    names: tuple[tuple[int, int], ...]

    tone: ClassVar[str] = "snapshot"

    def sentence(self) -> str:
        last = max(boundary for _, boundary in self.names)
        return f"{self.request}'s latent KV is cached up to {last:,} tokens."


@dataclass(frozen=True, slots=True)
class Installed(Event):
    """The state that a request brought was written into its blocks: latent KV beyond its hit, and
    recurrent and conv state after ``boundary`` tokens. ``bytes`` came in all."""

    source: str
    boundary: int
    bytes: int

    tone: ClassVar[str] = "copy"

    def sentence(self) -> str:
        return (
            f"{self.request}'s state after {self.boundary:,} tokens comes from "
            f"{self.source or 'elsewhere'} and is written into its blocks; none of it is computed "
            "here."
        )


@dataclass(frozen=True, slots=True)
class Nulled(Event):
    """State blocks left the request's table, which has the null block there now: (group, boundary,
    block) each. They are free when the step has ended, and those with a name stay cached."""

    blocks: tuple[tuple[int, int, int], ...]

    def sentence(self) -> str:
        at = ", ".join(f"{b} (after {n:,} tokens)" for _, n, b in self.blocks)
        return f"{self.request} lets go of state blocks {at}."


@dataclass(frozen=True, slots=True)
class NamesWithdrawn(Event):
    """The forward failed: names that this step gave are taken back. (group, block, boundary)."""

    names: tuple[tuple[int, int, int], ...]

    tone: ClassVar[str] = "evict"

    def sentence(self) -> str:
        return f"{len(self.names)} names that {self.request} gave in this step are taken back."


@dataclass(frozen=True, slots=True)
class Preempted(Event):
    """Blocks ran out: the request gave all of them back and waits, first in the queue."""

    reason: str
    freed_blocks: tuple[int, ...]
    generated: int

    tone: ClassVar[str] = "evict"

    def sentence(self) -> str:
        return (
            f"{self.request} is preempted ({self.reason}) with {self.generated} generated tokens; "
            "it will go on from what is cached."
        )


@dataclass(frozen=True, slots=True)
class Scheduled(Event):
    """The step's batch: (request, start, end, drafts) each, its queued copies already made."""

    rows: tuple[tuple[str, int, int, int], ...]

    def sentence(self) -> str:
        text = ", ".join(
            f"{name} [{start:,}, {end:,})" + (f" + {drafts} drafts" if drafts else "")
            for name, start, end, drafts in self.rows
        )
        return f"One forward computes {text}."


@dataclass(frozen=True, slots=True)
class StepEnded(Event):
    """The forward has run: what was cached in this step can be read from now on, and what was let
    go is free."""

    def sentence(self) -> str:
        return "The step ends: what it cached can be read."
