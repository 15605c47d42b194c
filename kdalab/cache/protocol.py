"""What every cache of model state promises; ``RadixStateCache`` is the first to keep it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from kdalab.cache.keys import PrefixKey
from kdalab.spec import StateKind
from kdalab.spec.checkpoint import Checkpoint


class Bytes(NamedTuple):
    """A need in bytes: of latent KV, of checkpoints, and of either kind, whichever is older."""

    kv: int = 0
    state: int = 0
    either: int = 0


class Split(NamedTuple):
    """``node`` was cut: ``upper`` (no state) now holds its front and ``node`` keeps the rest."""

    node: int
    upper: int
    at: int


class Added(NamedTuple):
    """A leaf for tokens [start, end) was hung under ``parent``, with its state."""

    node: int
    parent: int
    start: int
    end: int
    pages: tuple[int, ...]
    state: int


class Revived(NamedTuple):
    """A node that had KV only (a tombstone) got a state again."""

    node: int
    state: int


class Refilled(NamedTuple):
    """A node whose latent KV was on the host only has pages on the device again: brought back,
    or computed anew by a request that passed through."""

    node: int
    pages: tuple[int, ...]


class BackedUp(NamedTuple):
    """A node got copies on the host: of its pages, of its state, or of both."""

    node: int
    pages: tuple[int, ...]
    state: int | None


class Dropped(NamedTuple):
    """A node lost something, or went as a whole (``removed``).

    Without ``removed`` and without pages a tombstone stays; with pages, the node lives on from
    its host copy. The ``host_`` fields are what it lost there.
    """

    node: int
    state: int | None
    pages: tuple[int, ...]
    removed: bool
    host_pages: tuple[int, ...] = ()
    host_state: int | None = None


Change = Split | Added | Revived | Refilled | BackedUp


@dataclass(frozen=True, slots=True)
class Lookup:
    """What the cache can do for one prompt. Pure data: looking up changes nothing.

    Lengths are in tokens. ``token_match`` is how far the text is known; ``restore`` is the
    largest boundary at which every kind of state is available and which leaves at least one
    token to compute. ``branching`` is the hint "produce a state here": a boundary worth a
    checkpoint because a second prompt has now been seen to share it (None if there is none
    beyond the deepest checkpoint). ``reach`` counts what is on the device; ``host_restore`` is
    the restore point once copies on the host are brought back (None: no further than
    ``restore``).
    """

    n_tokens: int
    token_match: int
    reach: dict[StateKind, int]
    restore: int
    branching: int | None
    path: tuple[int, ...]
    handle: Any = field(repr=False, compare=False, default=None)
    host_restore: int | None = None

    @property
    def replay(self) -> int:
        """Known tokens that must be computed again: from the restore point to the token match."""
        return max(0, self.token_match - self.restore)

    @property
    def new(self) -> int:
        """Tokens that the cache has never seen."""
        return self.n_tokens - max(self.token_match, self.restore)

    @property
    def binding(self) -> str:
        """The constraint that fixes the restore point, in a few words."""
        if self.token_match == 0:
            return "no cached prefix"
        if self.host_restore is not None:
            return f"the checkpoint at {self.host_restore:,} or its latent KV is on the host"
        if self.restore == self.token_match:
            return "none: every kind reaches the token match"
        state = self.reach[StateKind.KDA_RECURRENT]
        if state > self.restore:
            return "one token must be computed to get logits"
        if state == 0:
            return "no checkpoint on the path"
        return "recurrent and conv state: the deepest checkpoint on the path"

    @property
    def why(self) -> tuple[str, ...]:
        """The reason for the restore point, the binding constraint in its place, one line each."""
        lines = [f"text known to {self.token_match:,} of {self.n_tokens:,} tokens"]
        lines.append(f"latent KV to {self.reach[StateKind.MLA_KV]:,}")
        for kind, name in (
            (StateKind.KDA_RECURRENT, "recurrent state"),
            (StateKind.KDA_CONV, "conv state"),
        ):
            at = self.reach[kind]
            lines.append(f"{name} at {at:,}" if at else f"{name}: none on the path")
        if self.host_restore is not None:
            lines.append(f"with what the host holds: restore {self.host_restore:,}")
        lines.append(f"binding constraint: {self.binding}")
        lines.append(
            f"restore {self.restore:,}, replay {self.replay:,}, compute {self.new:,} new tokens"
        )
        if self.branching is not None:
            lines.append(f"shared by a second prompt: worth a checkpoint at {self.branching:,}")
        return tuple(lines)


class Lease(NamedTuple):
    """A request's hold on what it reads: locks on the path to ``node``, until released.

    ``pages`` are the latent pages of tokens [0, boundary), in order; they never change. ``state``
    is the checkpoint to copy from, or None when the request starts from nothing. ``key`` is the
    prompt that it was taken for, if known: a commit under that very key need not compare the
    prefix again.
    """

    id: int
    node: int
    boundary: int
    pages: Sequence[int]
    state: Checkpoint | None
    key: PrefixKey | None = None

    def __repr__(self) -> str:
        return f"<lease {self.id}: tokens [0, {self.boundary:,}) at node {self.node}>"


class Committed(NamedTuple):
    """What became of a commit.

    The lease moves to the new node. ``duplicate_pages`` were already known to the cache and
    stay with the caller, who frees them and reads ``lease.pages`` from now on;
    ``state_existed`` tells that the checkpoint was already there and its slot stays with the
    caller as well. ``dropped`` are states that a cap of states a path gave up for this one; the
    caller returns their slots.
    """

    lease: Lease
    duplicate_pages: tuple[int, ...]
    state_existed: bool
    changes: tuple[Change, ...]
    dropped: tuple[Dropped, ...] = ()


class Evicted(NamedTuple):
    """What was given up, node by node. The caller returns the slots to their pools.

    ``kv_bytes`` and ``state_bytes`` are those freed on the device, often more than was asked
    for: a leaf goes as a whole.
    """

    kv_bytes: int
    state_bytes: int
    pages: tuple[int, ...]
    states: tuple[int, ...]
    dropped: tuple[Dropped, ...]
    host_pages: tuple[int, ...] = ()
    host_states: tuple[int, ...] = ()


class StateCache(Protocol):
    """Decides; holds no tensor. Slots and pages are numbers that the caller's pools gave out.

    Lock before using what a lookup returned (``acquire``). Evicting nothing is always safe and
    is what happens when all is locked; more may be freed than was asked. No method leaves
    anything half done when it raises.
    """

    def lookup(self, key: PrefixKey) -> Lookup:
        """What is known of this prompt; changes nothing."""
        ...

    def acquire(self, lookup: Lookup) -> Lease:
        """Lock the path and the state that the lookup found; refresh their last use."""
        ...

    def unlock_state(self, lease: Lease) -> None:
        """The state has been copied into a private slot: its checkpoint may be evicted again."""
        ...

    def lock_state(self, lease: Lease) -> None:
        """Lock the state at the lease's node again: somebody is about to read it."""
        ...

    def commit(
        self, lease: Lease, key: PrefixKey, pages: Sequence[int], checkpoint: Checkpoint
    ) -> Committed:
        """Enter tokens [0, checkpoint.boundary) with their state; the lease moves there.

        ``pages`` hold tokens [lease.boundary, checkpoint.boundary). ``key`` must continue the
        lease's prefix.
        """
        ...

    def release(self, lease: Lease, used: bool = True) -> Evicted:
        """Give the lease's locks back, exactly once; returns what became useless with that.
        ``used`` False: its request has to wait, and will ask again."""
        ...

    def evict(self, need: Bytes) -> Evicted:
        """Free at least ``need`` if that is unlocked; otherwise as much as there is."""
        ...

    def check(self) -> None:
        """Prove every invariant; raises ``InvariantError`` naming the broken one."""
        ...
