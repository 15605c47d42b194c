"""Blocks under chained hashes, for attention and for states alike: vLLM's way.

A step has three moments. ``allocate`` gives a request the blocks that its next tokens need;
``advance`` says that they are computed (or will be, in the forward about to run) and caches what
is worth it; ``step_done`` says that the forward has run. What a step cached cannot be read in
that step, and what it frees is given to nobody before its end.

    lease = cache.acquire(cache.lookup(key))
    while lease.boundary < n:
        end = cache.chunk_end(lease, budget)
        step = cache.allocate(lease, end)          # None: not enough free blocks
        ...run step.copies, then the forward...
        lease = cache.advance(lease, end)
        cache.step_done()
    cache.release(lease)

A state block remembers how many tokens its state has seen, and gets its name from that: so an
entry whose key has another length than its state cannot be made, however a chunk was cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kdalab.cache import block_check, block_steps
from kdalab.cache.block_hash import HashChain
from kdalab.cache.block_lookup import BlockLookup, CacheMode, Reader
from kdalab.cache.block_pool import Block, BlockPool, Lost
from kdalab.cache.block_retention import BlockRetention
from kdalab.cache.block_rows import Copy, Request, StateRow, Step
from kdalab.cache.block_split import Stops
from kdalab.cache.groups import BlockSizes, Group, GroupKind, block_sizes
from kdalab.cache.keys import PrefixKey
from kdalab.cache.protocol import Bytes, Committed, Evicted, Lease, Lookup
from kdalab.cache.retention import Lru
from kdalab.errors import KdalabError
from kdalab.spec.checkpoint import Checkpoint


@dataclass(frozen=True, slots=True)
class BlockConfig:
    """How a block cache is set up.

    Args:
        groups: with one block size for all state groups.
        n_blocks: blocks of the pool; block 0 is the null block.
        unit: ``prefix_match_unit`` in tokens; None for the gcd of the groups' blocks.
        mode: where states are kept.
        retention: which of them stay, and in which order blocks go when others need the room.
        speculative: a draft model reads the last unit of a match, so that it is computed again.
        kernel_grid: grid (tokens, from a chunk's start) on which the kernel can store a state in
            the middle of a chunk; 0 when it cannot.
        block_bytes: bytes of one block, all layers of a group.

    Raises:
        KdalabError: sizes that do not go together; the message says which.
    """

    groups: tuple[Group, ...]
    n_blocks: int
    unit: int | None = None
    mode: CacheMode = CacheMode.ALIGN
    retention: BlockRetention = field(default_factory=BlockRetention)
    speculative: bool = False
    kernel_grid: int = 0
    block_bytes: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "mode", CacheMode(self.mode))
        blocks = {g.block_tokens for g in self.groups if g.kind is GroupKind.STATE}
        if len(blocks) > 1:
            raise KdalabError(f"state groups of blocks {sorted(blocks)}; use one size for all")
        sizes = block_sizes(self.groups, self.unit)
        if sizes.unit != block_sizes(self.groups).unit and self.mode is not CacheMode.ALIGN:
            raise KdalabError(
                f"prefix_match_unit {self.unit:,} needs cache mode align: only there do states "
                f"stand inside a block; mode {self.mode} has hits on whole blocks"
            )
        if self.kernel_grid and (self.mode is not CacheMode.ALIGN or self.kernel_grid < 0):
            raise KdalabError("a kernel's grid is 0 or more tokens, and above 0 needs mode align")
        self.retention.check(sizes.scheduler, bool(blocks))

    @property
    def sizes(self) -> BlockSizes:
        """The three block sizes."""
        return block_sizes(self.groups, self.unit)

    def pool(self) -> BlockPool:
        """An empty pool of these blocks, in the retention's order."""
        order = self.retention.order
        if isinstance(order, Lru):
            return BlockPool(self.n_blocks, len(self.groups))
        # Here, since the queue of every other pool needs none of it.
        from kdalab.cache.block_order import OrderedPool

        return OrderedPool(self.n_blocks, self.groups, self.sizes.unit, self.retention.ordered())

    @property
    def state_block(self) -> int:
        """Tokens of a state group's block; the scheduler's block where there is no such group."""
        blocks = [g.block_tokens for g in self.groups if g.kind is GroupKind.STATE]
        return blocks[0] if blocks else self.sizes.scheduler


class BlockStateCache:
    """One pool of blocks, several groups, one table of hashes a group."""

    def __init__(self, config: BlockConfig) -> None:
        self.config, self.sizes, self.mode = config, config.sizes, config.mode
        self.groups, self.retention = config.groups, config.retention
        # Asked for at every step, and worked out each time where they stand.
        self.state_block, self.block_tokens = config.state_block, self.sizes.group
        self.kv_groups = [i for i, g in enumerate(self.groups) if g.kind is GroupKind.FULL]
        self.state_groups = [i for i, g in enumerate(self.groups) if g.kind is GroupKind.STATE]
        self.pool = config.pool()
        drop = self.sizes.unit if config.speculative else 0
        self.reader = Reader(self.groups, self.sizes, self.mode, self.pool, drop)
        self.requests: dict[int, Request] = {}
        self.leases: dict[int, Lease] = {}
        self.copies: list[Copy] = []
        self.copy_refs: list[Block] = []
        self.later: list[Block] = []  # references to be dropped once the open step's forward ran
        self.step_open = False
        self.stepped: set[int] = set()  # leases with a part in the open step
        self._next_lease = 1

    # -- reading -----------------------------------------------------------------------------

    def chain(self, key: PrefixKey | HashChain) -> HashChain:
        """The key's hashes; a chain is taken as it is.

        Raises:
            KdalabError: its unit is not this cache's.
        """
        if isinstance(key, PrefixKey):
            return HashChain(key, self.sizes.unit)
        if key.unit != self.sizes.unit:
            raise KdalabError(
                f"hashes of {key.unit} tokens each; this cache's unit is {self.sizes.unit}"
            )
        return key

    def lookup(self, key: PrefixKey | HashChain) -> BlockLookup:
        """What the groups know of this prompt, and where they agree. Changes nothing."""
        return self.reader.lookup(self.chain(key))

    def acquire(self, lookup: Lookup, unwritten: bool = False) -> Lease:
        """Reference every block of the hit, so that no allocation can take one of them.

        Args:
            unwritten: also blocks that are being computed in this step; for a fault alone.

        Raises:
            KdalabError: the hit has gone since the lookup, or is being computed in this step.
                Nothing is held.
        """
        if not isinstance(lookup, BlockLookup) or not isinstance(lookup.handle, HashChain):
            raise KdalabError("this lookup is another cache's")
        if lookup.version != self.pool.version:
            again = self.reader.lookup(lookup.handle)
            if (again.restore, again.found) != (lookup.restore, lookup.found):
                raise KdalabError("the cache has changed since this lookup; look up again")
        fresh = self.pool.fresh and any(b.fresh for blocks in lookup.found for b in blocks)
        if fresh and not unwritten:
            raise KdalabError("a block of the hit is being computed in this step; wait for its end")
        at = lookup.restore
        kv: dict[int, list[Block]] = {}
        borrowed: dict[int, Block] = {}
        states: dict[int, StateRow] = {}
        for i, blocks in enumerate(lookup.found):
            self.pool.hold(blocks)
            if i in self.state_groups:
                states[i] = StateRow(blocks[0] if blocks else None)
                continue
            kv[i] = list(blocks)
            if at % self.block_tokens[i]:
                borrowed[i] = kv[i].pop()
        stops = self.stops(lookup.n_tokens, lookup.branching)
        request = Request(lookup.handle.copy(), stops, at, kv, states, borrowed)
        lease_id = self._next_lease
        self._next_lease += 1
        self.requests[lease_id] = request
        pages = tuple([b.id for b in kv[self.kv_groups[0]]]) if self.kv_groups else ()
        return self._lease(lease_id, pages)

    def stops(self, n_tokens: int, junction: int | None) -> Stops:
        """Where a prompt's chunks stop, and the boundaries whose states retention keeps."""
        block, unit = self.state_block, self.sizes.unit
        drop = unit if self.config.speculative else 0
        if self.mode is not CacheMode.ALIGN:
            tail = (n_tokens - 1) // self.sizes.scheduler * self.sizes.scheduler
            mark = (junction or 0) // self.sizes.scheduler * self.sizes.scheduler
            return Stops(n_tokens, block, unit, tail, mark, kv_tail=tail)
        reach = (n_tokens - 1) // unit * unit
        tail, mark = max(0, reach - drop), (junction or 0) // block * block
        last = n_tokens // block * block
        if self.config.speculative:
            last = max(0, last - block)
        if last and not self.retention.keeps(last, frozenset((tail, mark))):
            last = 0  # a stop there would cost a forward and leave nothing
        return Stops(
            n_tokens,
            block,
            unit,
            tail=tail,
            junction=mark,
            last=last,
            kv_tail=reach,
            interval=self.retention.interval or 0,
            kernel=self.config.kernel_grid,
        )

    def chunk_end(self, lease: Lease, budget: int) -> int:
        """Where this request's next prefill chunk of at most ``budget`` tokens should end."""
        if budget < 1:
            raise KdalabError(f"a chunk of {budget} tokens; use 1 or more")
        request = self._request(lease)
        if self.mode is CacheMode.ALIGN:
            return request.stops.chunk_end(request.computed, budget)
        return min(request.computed + budget, request.stops.n_tokens)

    def table(self, lease: Lease, group: int) -> list[int]:
        """The request's block table of one group, by position."""
        return self._request(lease).table(group, self.block_tokens[group])

    # -- a step ------------------------------------------------------------------------------

    def allocate(self, lease: Lease, end: int, drafts: int = 0) -> Step | None:
        """Blocks for tokens up to ``end``, and for ``drafts`` more that may be rejected.

        None when too few are free; nothing has changed then.

        Raises:
            KdalabError: ``end`` is not beyond what is computed, or the last step is still open.
        """
        request = self._request(lease)
        if request.open is not None:
            raise KdalabError(f"{lease}: its last step has not been advanced yet")
        if end <= request.computed or drafts < 0:
            raise KdalabError(
                f"{lease}: a step to {end:,} with {drafts} drafts; {request.computed:,} tokens are "
                "computed, so it must end beyond them"
            )
        step = block_steps.allocate(self, request, end, drafts)
        if step is not None:
            self.stepped.add(lease.id)
        return step

    def advance(self, lease: Lease, end: int, key: PrefixKey | None = None) -> Lease:
        """Tokens up to ``end`` count as computed; caches the blocks that this completes.

        With drafts, ``end`` lies between the step's own end and its last draft. ``key`` names the
        tokens where they go beyond what the lease knows (decode).

        Raises:
            KdalabError: no such step was allocated, or ``key`` does not continue the lease's.
                Nothing has changed.
        """
        request = self._request(lease)
        step = request.open
        if step is None or not step.end <= end <= step.end + step.drafts:
            allowed = "none" if step is None else f"{step.end:,} to {step.end + step.drafts:,}"
            raise KdalabError(f"{lease} advances to {end:,}; allocated: {allowed}")
        if key is not None:
            request.chain.extend(key)
        self.step_open = True
        block_steps.advance(self, request, end)
        pages = tuple(lease.pages)
        if self.kv_groups:
            pages += step.kv_blocks[self.kv_groups[0]]
        return self._lease(lease.id, pages)

    def commit(
        self, lease: Lease, key: PrefixKey, pages: Sequence[int], checkpoint: Checkpoint
    ) -> Committed:
        """``advance`` as every cache has it: the caller states what it wrote where, and is held
        to it. ``pages`` are the KV blocks of the step (first group), ``checkpoint`` the block
        that holds the first state group's state.

        Raises:
            KdalabError: as ``advance``; or blocks or boundary are not those of the step.
        """
        request = self._request(lease)
        step = request.open
        first = self.kv_groups[0] if self.kv_groups else None
        if step is not None and first is not None and tuple(pages) != step.kv_blocks[first]:
            raise KdalabError(f"{lease}: these are not the KV blocks that the step was given")
        writes = step.states[0].writes if step is not None and step.states else None
        if writes is not None and writes.get(checkpoint.boundary) != checkpoint.slot:
            raise KdalabError(
                f"{lease}: block {checkpoint.slot} was not given for the state at "
                f"{checkpoint.boundary:,}; the step writes {writes}"
            )
        moved = self.advance(lease, checkpoint.boundary, key)
        return Committed(moved, (), False, ())

    def step_done(self) -> None:
        """The forward has run: queued copies are made, what was cached can be read, and what was
        given back can be taken."""
        self.copies.clear()
        self.pool.drop(self.copy_refs)
        self.copy_refs.clear()
        self.pool.settle()
        self.pool.drop(self.later)
        self.later.clear()
        self.stepped.clear()
        self.step_open = False

    def withdraw(self, lease: Lease) -> list[Lost]:
        """This request's forward has failed after ``advance``: what it named in the open step is
        taken back, before anybody could read it. What it had named earlier stays.

        Raises:
            KdalabError: the lease has no part in an open step.
        """
        request = self._request(lease)
        if not self.step_open or lease.id not in self.stepped:
            raise KdalabError(f"{lease} has no part in an open step")
        return block_steps.withdraw(self, request)

    def unlock_state(self, lease: Lease) -> None:
        """Nothing to do: a hit's blocks are given back by the first step that has read them."""
        self._request(lease)

    def lock_state(self, lease: Lease) -> None:
        """Nothing to do: a lease holds what it reads until it has read it."""
        self._request(lease)

    def release(self, lease: Lease, used: bool = True) -> Evicted:
        """Give every block back, exactly once, tails first; cached ones wait for their next hit."""
        request = self._request(lease)
        del self.requests[lease.id], self.leases[lease.id]
        if lease.id in self.stepped:
            self._give_back(request.blocks())
        else:  # no forward under way reads or writes them
            self.pool.drop(request.blocks())
        return Evicted(0, 0, (), (), ())

    def evict(self, need: Bytes) -> Evicted:
        """Take the names off the free blocks that would go next, by bytes of each kind. They stay
        free."""
        gone: list[Lost] = []
        kv = state = 0
        size, of_states = self.config.block_bytes, frozenset(self.state_groups)

        def wanted(group: int) -> bool:
            short = state < need.state if group in of_states else kv < need.kv
            return short or kv + state < need.either

        for block in self.pool.victims(wanted):
            is_state = block.group in of_states
            kv, state = kv + size * (not is_state), state + size * is_state
            gone += self.pool.evict((block,))
            if kv >= need.kv and state >= need.state and kv + state >= need.either:
                break
        states = tuple(g.block for g in gone if g.group in self.state_groups)
        pages = tuple(g.block for g in gone if g.group not in self.state_groups)
        return Evicted(kv, state, pages, states, ())

    def check(self) -> None:
        """Prove every invariant; see ``block_check``."""
        block_check.check(self)

    # -- inside ------------------------------------------------------------------------------

    def _give_back(self, blocks: Sequence[Block]) -> None:
        """Drop references; in an open step only when its forward has run, which may still read
        or write them."""
        if self.step_open or self.copies:
            self.later += blocks
        else:
            self.pool.drop(blocks)

    def _lease(self, lease_id: int, pages: tuple[int, ...]) -> Lease:
        request = self.requests[lease_id]
        state = None
        if self.state_groups:
            running = request.states[self.state_groups[0]].running
            if running is not None:
                state = Checkpoint(running.id, request.computed)
        lease = Lease(lease_id, 0, request.computed, pages, state, request.chain.key)
        self.leases[lease_id] = lease
        return lease

    def _request(self, lease: Lease) -> Request:
        if self.leases.get(lease.id) is not lease:
            raise KdalabError(f"lease {lease.id} is not held: released already, or moved by a step")
        return self.requests[lease.id]
