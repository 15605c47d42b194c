"""A pool that gives up the block of least worth next, not the oldest: Marconi's order for blocks.

vLLM has one queue for all free blocks; this order is not in it. The paper (arXiv 2411.19379) scores
nodes of a tree: S = recency + alpha x FLOPs saved per byte, both min-max normalised over the
candidates, and the lowest goes. In a pool of blocks that becomes:

* **Candidates** are the free cached blocks, save KV blocks whose text goes on in another cached
  one: a lookup reads KV from the left, so a hole makes all that lies behind it worthless. States
  may go anywhere, also at a fork, which in the paper cannot go as a tree needs it to hang on.
* **Recency** is 1 / (now - last use), counted in requests: the clock moves when a request's first
  step gets its blocks, and what is given back until the next one begins has one age. So it does
  not matter in how many steps a request ran, nor how often it was turned away before it began.
  ``now`` is one beyond the youngest candidate. Equals go in the queue's order.
* **FLOPs per byte**: see ``block_worth``. A block whose companions are gone is worth 0, so what is
  left of an entry follows soon after its first block.
* Blocks that hold nothing go before all others. With no candidate (each free block is followed by
  one in use) the oldest goes.

With alpha 0 that is least recent use, holes aside. Retention is another question: it decides which
states get a name at all, and every one of its forms goes with this order.

Cost: an eviction looks at every candidate, a few array operations over the pool, where the queue
takes one step. Without this order nothing of it is paid.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from kdalab.cache.block_hash import HashChain
from kdalab.cache.block_pool import Block, BlockPool, Key
from kdalab.cache.block_worth import Worths
from kdalab.cache.groups import Group, GroupKind
from kdalab.cache.marconi import MarconiOrder
from kdalab.errors import InvariantError, OutOfSlotsError


class OrderedPool(BlockPool):
    """Blocks as in ``BlockPool``, given out by ``order``.

    Args:
        n_blocks: blocks, the null block included.
        groups: that draw from the pool.
        unit: tokens of one hash.
        order: its FLOPs, its alpha (read at every choice, so it may change), and as
            ``page_bytes`` the bytes of one block.
    """

    def __init__(
        self, n_blocks: int, groups: tuple[Group, ...], unit: int, order: MarconiOrder
    ) -> None:
        super().__init__(n_blocks, len(groups))
        self.order = order
        kv = {i: g.block_tokens for i, g in enumerate(groups) if g.kind is GroupKind.FULL}
        states = tuple(i for i in range(len(groups)) if i not in kv)
        self.worths = Worths(self.tables, kv, states, unit, order.flops, order.page_bytes)
        self.clock = self.turn = 0
        self.used, self.turns = (np.zeros(n_blocks, dtype=np.int64) for _ in range(2))
        self.efficiency = np.zeros(n_blocks)
        self.candidate = np.zeros(n_blocks, dtype=bool)
        self.group_of = np.zeros(n_blocks, dtype=np.int16)
        self._chain: HashChain | None = None

    def follow(self, chain: HashChain) -> None:
        self._chain = chain

    # -- blocks ------------------------------------------------------------------------------

    def begin(self) -> None:
        """A request's first step gets its blocks: what comes back from now on is younger than all
        that came back before."""
        self.clock += 1

    def take(self, count: int, group: int) -> list[Block]:
        if not 0 <= count <= self.n_free:
            raise OutOfSlotsError(f"{count:,} blocks wanted, {self.n_free:,} are free")
        taken = []
        for _ in range(count):
            block = self._queue.after
            if block.keys:
                block = self.least() or block
                self._lose(block)
            else:
                self.n_empty -= 1
            block.before.after, block.after.before = block.after, block.before
            self.n_free -= 1
            block.ref, block.group, block.length = 1, group, 0
            taken.append(block)
        return taken

    def hold(self, blocks: Iterable[Block]) -> None:
        blocks = tuple(blocks)
        super().hold(blocks)
        for block in blocks:
            self.candidate[block.id] = False

    def drop(self, blocks: Iterable[Block]) -> None:
        for block in blocks:
            super().drop((block,))
            if block.ref or not block.keys:
                continue
            self.turn += 1
            at = block.id
            self.used[at], self.turns[at], self.group_of[at] = self.clock, self.turn, block.group
            self._consider(block)

    def least(self, groups: frozenset[int] | None = None) -> Block | None:
        """The candidate of lowest score, among those of ``groups``; None without one."""
        for block in self.worths.stale:
            if self.candidate[block.id]:
                self.efficiency[block.id] = self.worths.efficiency(block)
        self.worths.stale.clear()
        ids = np.flatnonzero(self.candidate)
        if groups is not None:
            ids = ids[np.isin(self.group_of[ids], sorted(groups))]
        if not ids.size:
            return None
        used = self.used[ids]
        recency = _normalised(1 / (used.max() + 1 - used))
        total = recency + self.order.alpha * _normalised(self.efficiency[ids])
        lowest = ids[total == total.min()]
        return self.blocks[int(lowest[self.turns[lowest].argmin()])]

    def victims(self, wanted: Callable[[int], bool]) -> Iterator[Block]:
        while groups := frozenset(g for g in range(len(self.tables)) if wanted(g)):
            block = self.least(groups)
            if block is None:
                block = next(super().victims(wanted), None)
            if block is None:
                return
            yield block

    def _consider(self, block: Block) -> None:
        """Is this block, free and cached, a candidate?"""
        is_kv = block.group in self.worths.kv_blocks
        self.candidate[block.id] = not is_kv or self.worths.is_tail(block)
        self.worths.stale.add(block)

    # -- keys --------------------------------------------------------------------------------

    def name(self, block: Block, key: Key, is_state: bool) -> bool:
        known = key in block.keys
        if not super().name(block, key, is_state):
            return False
        if known:
            return True
        assert self._chain is not None
        if is_state:
            self.worths.add_state(key, self._chain)
            return True
        self.worths.add_kv(block, key, self._chain)
        span = self.worths.spans[block.id]
        before = self.tables[block.group].get(span.begins) if span.start else None
        if before is not None:
            self.candidate[before.id] = False
        return True

    def rename(self, source: Block, target: Block) -> None:
        super().rename(source, target)
        self.worths.stale.add(target)

    def forget(self, block: Block, beyond: int = 0) -> tuple[Key, ...]:
        gone = super().forget(block, beyond)
        if not gone:
            return gone
        if not block.keys:
            self.candidate[block.id] = False
        if block.group in self.worths.kv_blocks:
            before = self.worths.drop_kv(block, gone)
            if before is not None and not before.ref:
                self._consider(before)
        else:
            for key in gone:
                self.worths.drop_state(key)
        return gone

    # -- proof -------------------------------------------------------------------------------

    def check(self) -> None:
        """Also: candidates, the tree of entries and every weight are what a recount gives."""
        super().check()
        worths = self.worths
        begun = Counter(
            (self.blocks[i].group, s.begins) for i, s in worths.spans.items() if s.start
        )
        _require(begun == worths.begun, "KV blocks are counted where they begin")
        covers: dict[int, dict[bytes, set[Block]]] = {g: {} for g in worths.kv_blocks}
        for block in self.blocks:
            is_kv = block.group in worths.kv_blocks
            _require(
                (block.id in worths.spans) == bool(block.keys and is_kv), "cached KV has a span"
            )
            free = bool(block.keys and not block.ref)
            may_go = free and (not is_kv or worths.is_tail(block))
            _require(bool(self.candidate[block.id]) == may_go, "a candidate is free, and a tail")
            if is_kv and block.keys:
                span, top = worths.spans[block.id], max(k.boundary for k in block.keys)
                for name in span.hashes[span.start // worths.unit : top // worths.unit]:
                    covers[block.group].setdefault(name, set()).add(block)
        _require(covers == worths.covers, "KV blocks cover what their names reach")
        named = {name for g in worths.states for name in self.tables[g]}
        _require(named == worths.entries.keys(), "an entry wherever a state has a name")
        for entry in worths.entries.values():
            _require(entry.parent is worths.above(entry), "an entry hangs on the one before it")
            _require(entry.live == worths.restorable(entry), "an entry is live or it is not")
            assert entry.parent is not None
            _require(entry.parent.children.get(entry.hash) is entry, "a parent knows its children")
        for block in self.blocks:
            if self.candidate[block.id] and block not in worths.stale:
                weight = worths.efficiency(block)
                _require(self.efficiency[block.id] == weight, "a weight is up to date")


def _normalised(values: np.ndarray) -> np.ndarray:
    low, high = values.min(), values.max()
    return (values - low) / (high - low) if high > low else np.zeros(len(values))


def _require(holds: bool, rule: str) -> None:
    if not holds:
        raise InvariantError(rule)
