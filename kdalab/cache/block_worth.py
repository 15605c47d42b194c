"""What a cached block is worth: FLOPs that its hits save, over the bytes that its loss sets free.

A lookup restores at a boundary where *every* group has something: a state in each state group, and
KV from the first token on. So no single block saves anything; what they make up together does.

* **An entry** is one prefix at whose end states stand. It can be restored while every state group
  has its block and some block of every attention group covers its last token. A hit saves the
  FLOPs since the previous entry on its path that can be restored.
* **Bytes**: the entry's states; for the last one on its path also the KV since that previous
  entry, which leads nowhere without it (the paper's leaf; an entry with others beyond it gives up
  its states only, as the KV is their way).
* **A KV block** is worth the entries that stand on it, all of which go with it: FLOPs from before
  the first to the last, over the bytes of their states and of that KV.
* An entry that lacks one block, and KV on which no entry stands, save nothing: 0.

Where no group has states each KV block is an entry of its own.

Which entry is previous is kept as a tree. An entry that comes or goes, or that can be restored
from now on or no longer, marks its blocks and those of its children as stale, and only stale
candidates are weighed again. An entry keeps its prompt's list of hashes (shared by all entries of
that request) to tell whether another one lies on its path. Of the KV below an entry only the last
block is asked for: the pool gives blocks up from the end of a text, so what is below stands too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from kdalab.cache.flops import PrefillFlops

if TYPE_CHECKING:
    from kdalab.cache.block_hash import HashChain
    from kdalab.cache.block_pool import Block, Key


class Entry:
    """A prefix with states at its end; ``parent`` is the deepest such prefix of it, ``live`` tells
    whether it can be restored."""

    __slots__ = ("boundary", "children", "hash", "hashes", "live", "parent")

    def __init__(self, hash: bytes, boundary: int, hashes: list[bytes]) -> None:
        self.hash, self.boundary, self.hashes = hash, boundary, hashes
        self.parent: Entry | None = None
        self.children: dict[bytes, Entry] = {}
        self.live = False

    def __repr__(self) -> str:
        return f"<entry at {self.boundary:,}>"


class Span(NamedTuple):
    """Where a KV block begins, the hash of the tokens before it, and hashes of its own text."""

    start: int
    begins: bytes
    hashes: list[bytes]


class Worths:
    """The tree of entries over a pool's tables, and what each block is worth.

    Args:
        tables: of the pool, one a group: hash -> block.
        kv_blocks: attention group -> tokens of its block.
        state_groups: the others.
        unit: tokens of one hash.
        block_bytes: bytes of one block.
    """

    def __init__(
        self,
        tables: tuple[dict[bytes, Block], ...],
        kv_blocks: dict[int, int],
        state_groups: tuple[int, ...],
        unit: int,
        flops: PrefillFlops,
        block_bytes: int,
    ) -> None:
        self.tables, self.kv_blocks, self.states = tables, kv_blocks, state_groups
        self.unit, self.flops, self.block_bytes = unit, flops, block_bytes
        self.root = Entry(b"", 0, [])
        self.entries: dict[bytes, Entry] = {}
        self.spans: dict[int, Span] = {}
        self.covers: dict[int, dict[bytes, set[Block]]] = {g: {} for g in kv_blocks}
        self.begun: Counter[tuple[int, bytes]] = Counter()
        self.stale: set[Block] = set()

    # -- what comes and goes -----------------------------------------------------------------

    def add_state(self, key: Key, chain: HashChain) -> None:
        """A state got this name."""
        entry = self.entries.get(key.hash)
        if entry is None:
            entry = self.entries[key.hash] = Entry(key.hash, key.boundary, chain.hashes)
            parent = self.above(entry)
            at = key.boundary // self.unit - 1
            for child in [c for c in parent.children.values() if c.boundary > key.boundary]:
                if child.hashes[at] == key.hash:
                    self._hang(child, entry)
            self._hang(entry, parent)
            self.stale.update(self._states_of(parent))  # no longer the last on its path
        self._mark(entry)
        self._touch(entry)

    def drop_state(self, key: Key) -> None:
        """A state has lost this name."""
        entry = self.entries[key.hash]
        self._touch(entry)
        if any(key.hash in self.tables[g] for g in self.states):
            return
        assert entry.parent is not None
        self.stale.update(self._states_of(entry.parent))
        for child in list(entry.children.values()):
            self._hang(child, entry.parent)
        del entry.parent.children[key.hash], self.entries[key.hash]

    def add_kv(self, block: Block, key: Key, chain: HashChain) -> None:
        """A KV block got this name, perhaps one of several."""
        size, unit = self.kv_blocks[block.group], self.unit
        start = (key.boundary - 1) // size * size
        old = 0
        if block.id not in self.spans:
            begins = chain.at(start) if start else b""
            self.spans[block.id] = Span(start, begins, chain.hashes)
            if start:
                self.begun[block.group, begins] += 1
        else:
            old = max((k.boundary for k in block.keys if k != key), default=0)
        covers = self.covers[block.group]
        for index in range(max(start, old) // unit, key.boundary // unit):
            name = chain.hashes[index]
            covers.setdefault(name, set()).add(block)
            if name in self.entries:
                self._touch(self.entries[name])
        self.stale.add(block)

    def drop_kv(self, block: Block, gone: tuple[Key, ...]) -> Block | None:
        """A KV block has lost these names; returns the block before it if it was the last one to
        go on from there."""
        span, unit = self.spans[block.id], self.unit
        top = max((k.boundary for k in block.keys), default=span.start)
        covers = self.covers[block.group]
        for index in range(top // unit, max(k.boundary for k in gone) // unit):
            name = span.hashes[index]
            covers[name].discard(block)
            if not covers[name]:
                del covers[name]
            if name in self.entries:
                self._touch(self.entries[name])
        self.stale.add(block)
        if block.keys:
            return None
        del self.spans[block.id]
        if not span.start:
            return None
        place = (block.group, span.begins)
        self.begun[place] -= 1
        if self.begun[place]:
            return None
        del self.begun[place]
        return self.tables[block.group].get(span.begins)

    def _hang(self, entry: Entry, parent: Entry) -> None:
        if entry.parent is not None:
            del entry.parent.children[entry.hash]
        entry.parent, parent.children[entry.hash] = parent, entry

    def _touch(self, entry: Entry) -> None:
        """Where it can be restored and could not, or the reverse: its blocks must be weighed
        again, and those of the entries that fall back to it."""
        live = self.restorable(entry)
        if live == entry.live:
            return
        entry.live = live
        self._mark(entry)
        below = list(entry.children.values())
        while below:
            child = below.pop()
            self._mark(child)
            if not child.live:
                below += child.children.values()

    def _mark(self, entry: Entry) -> None:
        self.stale.update(self._states_of(entry))
        for covers in self.covers.values():
            self.stale.update(covers.get(entry.hash, ()))

    def _states_of(self, entry: Entry) -> Iterator[Block]:
        for group in self.states:
            block = self.tables[group].get(entry.hash)
            if block is not None:
                yield block

    # -- what it comes to --------------------------------------------------------------------

    def above(self, entry: Entry) -> Entry:
        """The deepest entry that is a proper prefix of this one."""
        entries, hashes = self.entries, entry.hashes
        for index in range(entry.boundary // self.unit - 2, -1, -1):
            found = entries.get(hashes[index])
            if found is not None:
                return found
        return self.root

    def restorable(self, entry: Entry) -> bool:
        """Has every state group a block here, and does KV of every attention group reach it?"""
        name = entry.hash
        return all(name in self.tables[g] for g in self.states) and all(
            name in covers for covers in self.covers.values()
        )

    def previous(self, entry: Entry) -> int:
        """The boundary that a lookup falls back to when this entry is gone; tokens."""
        up = entry.parent
        while up is not None and up.boundary and not up.live:
            up = up.parent
        return up.boundary if up is not None else 0

    def is_tail(self, block: Block) -> bool:
        """Does no cached KV block of its group go on where this one ends?"""
        return not any((block.group, k.hash) in self.begun for k in block.keys)

    def efficiency(self, block: Block) -> float:
        """FLOPs that hits on this cached block save, for each byte that goes with it."""
        if block.group not in self.kv_blocks:
            entry = self.entries[block.keys[0].hash]
            if not entry.live:
                return 0.0
            first = self.previous(entry)
            count = len(self.states)
            if not entry.children:
                count += self._kv_between(first, entry.boundary)
            return self._ratio(first, entry.boundary, count)
        span = self.spans[block.id]
        top = max(k.boundary for k in block.keys)
        if not self.states:
            return self._ratio(span.start, top, 1)
        standing = [e for e in self._standing(span, top) if e.live]
        if not standing:
            return 0.0
        first, last = self.previous(standing[0]), standing[-1].boundary
        count = len(self.states) * len(standing) + self._kv_between(first, last)
        return self._ratio(first, last, count)

    def _standing(self, span: Span, top: int) -> Iterator[Entry]:
        for index in range(span.start // self.unit, top // self.unit):
            entry = self.entries.get(span.hashes[index])
            if entry is not None:
                yield entry

    def _kv_between(self, start: int, end: int) -> int:
        """KV blocks of all attention groups that begin in [start, end)."""
        return sum(-(-end // size) - -(-start // size) for size in self.kv_blocks.values())

    def _ratio(self, start: int, end: int, blocks: int) -> float:
        return self.flops.between(start, end) / (blocks * self.block_bytes)
