"""One running request among blocks: a row of blocks for each group, and what a step needs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from kdalab.cache.block_hash import HashChain
from kdalab.cache.block_pool import NULL, Block, Lost
from kdalab.cache.block_split import Stops


class Copy(NamedTuple):
    """Copy block ``source`` to ``target`` for every layer of ``group``, before the forward and in
    the order queued: the first ``tokens`` of a KV block, a state as a whole."""

    group: int
    source: int
    target: int
    tokens: int


class StateWork(NamedTuple):
    """One state group in one step: the block to begin from (0: from zeros), and which block is to
    receive the state at which boundary. With drafts there is one for every token that may be
    the last one accepted."""

    group: int
    read: int
    writes: dict[int, int]


class Step(NamedTuple):
    """What the forward over tokens [start, end + drafts) needs.

    ``kv_blocks`` are the ids of new KV blocks, group by group; ``copies`` those that this
    allocation queued; ``lost`` the cached blocks that were given up for it.
    """

    start: int
    end: int
    drafts: int
    kv_blocks: dict[int, tuple[int, ...]]
    states: tuple[StateWork, ...]
    copies: tuple[Copy, ...]
    lost: tuple[Lost, ...] = ()


@dataclass(slots=True)
class StateRow:
    """A request's blocks of one state group.

    ``running`` holds the state of just the tokens computed; None at 0 tokens. ``owned``: it is
    this request's to write, and not a cached block that it hit. ``pending`` are the boundaries
    of an open step, each with the block that gets that state; ``kept`` are the earlier ones that
    mode ``all`` does not give back before the end.
    """

    running: Block | None = None
    owned: bool = False
    pending: dict[int, Block] = field(default_factory=dict)
    kept: list[Block] = field(default_factory=list)

    def blocks(self) -> list[Block]:
        """All that it references, each once, in order of eviction: the last boundary first."""
        found = [*self.kept]
        if self.running is not None:
            found.append(self.running)
        found += [b for b in self.pending.values() if b is not self.running]
        return found[::-1]


@dataclass(slots=True)
class Request:
    """Rows of one lease. ``kv[group]`` are its attention blocks in order; ``borrowed[group]`` is
    a partly filled block that was hit and belongs to others, to be copied before it is written.
    ``open`` is a step that was allocated and not advanced yet, ``last`` the one advanced last."""

    chain: HashChain
    stops: Stops
    computed: int
    kv: dict[int, list[Block]]
    states: dict[int, StateRow]
    borrowed: dict[int, Block]
    open: Step | None = None
    last: Step | None = None

    def table(self, group: int, block_tokens: int) -> list[int]:
        """The row by position, as kernels get it: entry p is the block of tokens
        [p x block, (p + 1) x block), the null block where no state is kept."""
        if group in self.kv:
            return [b.id for b in self.kv[group]]
        row = self.states[group]
        blocks = [b for b in row.blocks() if b.length]
        found = [NULL] * max([-(-b.length // block_tokens) for b in blocks], default=0)
        for block in blocks:
            found[(block.length - 1) // block_tokens] = block.id
        return found

    def blocks(self) -> list[Block]:
        """Every reference that the request holds, in order of eviction: tails before fronts."""
        found: list[Block] = []
        for row in self.states.values():
            found += row.blocks()
        found += self.borrowed.values()
        for kv in self.kv.values():
            found += reversed(kv)
        return found
