"""The small records that exercises hand over; ``dataclasses.replace`` makes new ones."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Edge:
    """A node of the radix tree, as much of it as a split looks at.

    ``start`` is the first token's position; ``tokens`` are those of the edge, and ``pages`` one
    latent page for each equal run of them. ``state`` is the checkpoint slot at the edge's end, None
    for a tombstone. ``children`` are the first tokens of the edges below. Locks count readers.
    """

    start: int
    tokens: tuple[int, ...]
    pages: tuple[int, ...]
    state: int | None = None
    kv_lock: int = 0
    state_lock: int = 0
    children: tuple[int, ...] = ()

    @property
    def end(self) -> int:
        """The boundary at the edge's end."""
        return self.start + len(self.tokens)


@dataclass(frozen=True, slots=True)
class PathNode:
    """One node of the path that a prompt takes down the tree.

    ``end`` is its boundary; of its edge's tokens the prompt agrees with the first ``matched``.
    """

    end: int
    matched: int
    has_state: bool


@dataclass(frozen=True, slots=True)
class Held:
    """A node of the radix tree, as much of it as an eviction looks at.

    ``parent`` is another node's ``id``, 0 for the root, which is not listed. ``kv_used`` and
    ``state_used`` say when KV and state were last used: larger is later, and no two are equal. A
    node's KV is always used later than that of the nodes below it.
    """

    id: int
    parent: int
    pages: int
    has_state: bool
    kv_lock: int = 0
    state_lock: int = 0
    kv_used: int = 0
    state_used: int = 0
