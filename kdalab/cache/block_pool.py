"""The pool of blocks: reference counts, one table of hashes a group, and the queue of free blocks.

Free and cached are no opposites here. A block that nobody references stands in the free queue,
and keeps its keys until its turn comes: then it is given to somebody else and what it held is
gone. The queue is in order of eviction; entering, leaving from the middle (a hit) and taking from
the front cost the same whatever its length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from kdalab.errors import InvariantError, KdalabError, OutOfSlotsError, shown

if TYPE_CHECKING:
    from kdalab.cache.block_hash import HashChain

NULL = 0  # the block that stands for "nothing here" in a table; never given out
MOST_BLOCKS = 2**24  # of one pool: about 3 GB of Python objects


class Key(NamedTuple):
    """A name of what a block holds: the hash of a prefix, and that prefix's length in tokens."""

    hash: bytes
    boundary: int


class Lost(NamedTuple):
    """A cached block was taken for something else: what it was, and under which keys."""

    block: int
    group: int
    keys: tuple[Key, ...]


class Block:
    """One block.

    ``length`` counts the tokens that its contents stand for: for a state, exactly those it has
    seen; for attention, those from the start of the sequence to the last one written.
    A block of KV, which is only ever appended to, may have several keys; a state has one boundary
    and at most one key. ``fresh``: cached in the present step, whose forward has yet to fill it.
    """

    __slots__ = ("after", "before", "fresh", "group", "id", "keys", "length", "ref")

    def __init__(self, block_id: int) -> None:
        self.id = block_id
        self.ref = 0
        self.group = -1
        self.length = 0
        self.keys: tuple[Key, ...] = ()
        self.fresh = False
        self.before: Block = self
        self.after: Block = self

    def __repr__(self) -> str:
        at = ", ".join(f"{k.boundary:,}" for k in self.keys) or "none"
        return (
            f"<block {self.id}: group {self.group}, {self.length:,} tokens, keys {at}, "
            f"{self.ref} refs>"
        )


class BlockPool:
    """``n_blocks`` blocks for ``n_groups`` groups; block 0 is the null block.

    Args:
        n_blocks: blocks, the null block included.
        n_groups: groups that draw from the pool.

    Raises:
        KdalabError: fewer than two blocks, or more than ``MOST_BLOCKS``; none is made.
    """

    def __init__(self, n_blocks: int, n_groups: int) -> None:
        if n_blocks < 2:
            raise KdalabError(f"a pool of {n_blocks} blocks; take 2 or more: block 0 stands idle")
        if n_blocks > MOST_BLOCKS:
            raise KdalabError(
                f"a pool of {shown(n_blocks)} blocks; take at most {MOST_BLOCKS:,}: each is an "
                "object of its own. Give less memory, or take larger blocks"
            )
        self.blocks = [Block(i) for i in range(n_blocks)]
        self.tables: tuple[dict[bytes, Block], ...] = tuple({} for _ in range(n_groups))
        self.named = [0] * n_groups  # cached blocks of each group
        self.fresh: list[Block] = []
        self.lost: list[Lost] = []
        self.version = 0  # changes whenever a key goes: does a lookup still hold?
        self.n_free = self.n_empty = n_blocks - 1  # empty: free, and without a key
        self._queue = Block(-1)  # the ring's sentinel: after it the oldest, before it the youngest
        for block in self.blocks[1:]:
            self._link(block, self._queue.before)

    @property
    def n_held(self) -> int:
        """Blocks that hold something: referenced, or free and still cached."""
        return len(self.blocks) - 1 - self.n_empty

    # -- blocks ------------------------------------------------------------------------------

    def begin(self) -> None:
        """A request's first step gets its blocks. The queue needs no clock."""

    def take(self, count: int, group: int) -> list[Block]:
        """The next ``count`` free blocks, for ``group``; what they held is lost.

        Raises:
            OutOfSlotsError: fewer are free. Nothing was taken.
        """
        if not 0 <= count <= self.n_free:
            raise OutOfSlotsError(f"{count:,} blocks wanted, {self.n_free:,} are free")
        taken, queue = [], self._queue
        block = queue.after
        for _ in range(count):
            if block.keys:
                self._lose(block)
            else:
                self.n_empty -= 1
            block.ref, block.group, block.length = 1, group, 0
            taken.append(block)
            block = block.after
        # One cut in the ring for all of them.
        queue.after, block.before = block, queue
        self.n_free -= count
        return taken

    def hold(self, blocks: Iterable[Block]) -> None:
        """One more reference to each; what was free leaves the queue and cannot be evicted."""
        for block in blocks:
            if not block.ref:
                block.before.after, block.after.before = block.after, block.before
                self.n_free -= 1
                self.n_empty -= not block.keys
            block.ref += 1

    def drop(self, blocks: Iterable[Block]) -> None:
        """One reference less to each, in this order of eviction; a block without a key holds
        nothing worth keeping and goes to the front of the queue."""
        queue = self._queue
        for block in blocks:
            block.ref = left = block.ref - 1
            if left > 0:
                continue
            if left < 0:
                raise InvariantError(f"{block} was given back more often than taken")
            if block.keys:
                # As `_link` at the end, without the call: a long prompt gives thousands back.
                last = queue.before
                block.before, block.after = last, queue
                last.after = queue.before = block
            else:
                self._link(block, queue)
                self.n_empty += 1
            self.n_free += 1

    def free_blocks(self) -> list[Block]:
        """The queue, next to be taken first."""
        found, block = [], self._queue.after
        while block is not self._queue:
            found.append(block)
            block = block.after
        return found

    def hurry(self, block: Block) -> None:
        """Put a free block at the front of the queue: it goes next."""
        if block.ref:
            raise InvariantError(f"{block} is in use and stands in no queue")
        block.before.after, block.after.before = block.after, block.before
        self._link(block, self._queue)

    def victims(self, wanted: Callable[[int], bool]) -> Iterator[Block]:
        """The free cached blocks in the order in which they go, of groups that are ``wanted`` at
        that moment. Each must be evicted before the next is asked for."""
        for block in self.free_blocks():
            if block.keys and wanted(block.group):
                yield block

    def _link(self, block: Block, before: Block) -> None:
        after = before.after
        block.before, block.after = before, after
        before.after = after.before = block

    # -- keys --------------------------------------------------------------------------------

    def follow(self, chain: HashChain) -> None:
        """The names that come next are of this text. The queue has no use for that."""

    def name(self, block: Block, key: Key, is_state: bool) -> bool:
        """Cache ``block`` under ``key``; False when another block is known by it already.

        Raises:
            InvariantError: the block holds a state of another length, or KV of fewer tokens.
        """
        if key.boundary > block.length or (is_state and key.boundary != block.length):
            raise InvariantError(
                f"key length equals state length: {block} under a key of {key.boundary:,} tokens"
            )
        group, keys = block.group, block.keys
        if self.tables[group].setdefault(key.hash, block) is not block:
            return False
        if key not in keys:
            self.named[group] += not keys
            block.keys = (*keys, key)
            if not block.fresh:
                block.fresh = True
                self.fresh.append(block)
        return True

    def rename(self, source: Block, target: Block) -> None:
        """The keys of ``source`` now mean ``target``, which holds (or will, after a queued copy)
        the same. Not a loss: the entry lives on in another block."""
        table = self.tables[source.group]
        for key in source.keys:
            table[key.hash] = target
        target.keys, source.keys = source.keys, ()
        target.length = source.length
        target.fresh = True
        self.fresh.append(target)
        self.version += 1

    def forget(self, block: Block, beyond: int = 0) -> tuple[Key, ...]:
        """Take the keys off a block that stand for more than ``beyond`` tokens; returns them."""
        table, gone = self.tables[block.group], block.keys
        left: tuple[Key, ...] = ()
        if beyond:
            left = tuple([k for k in gone if k.boundary <= beyond])
            gone = tuple([k for k in gone if k.boundary > beyond])
        for key in gone:
            del table[key.hash]
        self.named[block.group] -= bool(gone) and not left
        block.keys = left
        self.version += 1
        return gone

    def _lose(self, block: Block) -> None:
        self.lost.append(Lost(block.id, block.group, block.keys))
        self.forget(block)

    def evict(self, blocks: Sequence[Block]) -> list[Lost]:
        """Take the keys off free blocks, which then are the next to be taken."""
        gone = []
        for block in blocks:
            gone.append(Lost(block.id, block.group, block.keys))
            self.forget(block)
            self.n_empty += 1
            self.hurry(block)
        return gone

    def settle(self) -> None:
        """The step's forward is done: what it cached can be read."""
        for block in self.fresh:
            block.fresh = False
        self.fresh.clear()

    def check(self) -> None:
        """Queue, counts and tables agree; raises ``InvariantError`` naming the broken rule."""
        queue = self.free_blocks()
        if len(queue) != self.n_free or len({b.id for b in queue}) != self.n_free:
            raise InvariantError(f"the queue holds {len(queue)} blocks, {self.n_free} are counted")
        if {b.id for b in queue} != {b.id for b in self.blocks[1:] if not b.ref}:
            raise InvariantError("the queue holds just the blocks without references")
        if self.n_empty != sum(not b.keys for b in queue):
            raise InvariantError(f"{self.n_empty} free blocks without a key are counted")
        named, cached = 0, [0] * len(self.tables)
        for block in self.blocks:
            cached[block.group] += bool(block.keys)
            for key in block.keys:
                named += 1
                if self.tables[block.group].get(key.hash) is not block:
                    raise InvariantError(f"{block} is not what its key of {key.boundary:,} names")
                if key.boundary > block.length:
                    raise InvariantError(f"{block} has a key of {key.boundary:,} tokens")
        if named != sum(map(len, self.tables)):
            raise InvariantError("a table names a block that does not know of it")
        if cached != self.named:
            raise InvariantError(f"cached blocks by group: {cached}; counted: {self.named}")
        if self.blocks[NULL].ref or self.blocks[NULL].keys:
            raise InvariantError("the null block belongs to nobody")
