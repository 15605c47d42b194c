"""Requests through ``RadixStateCache``, with room that is only counted.

``start`` does what an engine does until a request's prefill has ended; ``finish`` what it does
when its last output token is out. Between the two the request's path is locked and its own pages
and its active state take room, if the setup follows arrivals.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from kdalab.cache import (
    Bytes,
    Checkpoint,
    Evicted,
    HostTier,
    Lease,
    Lookup,
    Placement,
    PrefillFlops,
    PrefixKey,
    RadixStateCache,
    Retention,
    parse_placement,
)
from kdalab.cache.commit_run import commit_run, knows_more
from kdalab.cache.protocol import Dropped
from kdalab.errors import InvariantError, KdalabError
from kdalab.lab.account import Account, Usage
from kdalab.lab.policies import Guard, build_retention, load_policy
from kdalab.lab.request import TraceRequest
from kdalab.lab.room import NOTHING, Room
from kdalab.lab.setup import Setup
from kdalab.spec import state_sizes
from kdalab.units import format_apart


@dataclass(slots=True)
class Served:
    """A request that has been prefilled. Tokens, bytes."""

    request: TraceRequest
    restore: int
    known: int
    loaded_bytes: int = 0
    lease: Lease | None = field(default=None, repr=False)
    key: PrefixKey | None = field(default=None, repr=False)
    private_pages: int = 0


class RadixRun:
    """One cache under one setup.

    Args:
        setup: with cache="radix".
        block_tokens: the trace's block: page and grid of the cache.
        account: is filled on the way.
        alpha: of Marconi's order where the setup leaves it open.

    Raises:
        KdalabError: an interval off the grid; a policy that cannot be loaded.
    """

    def __init__(
        self, setup: Setup, block_tokens: int, account: Account, alpha: float | None = None
    ) -> None:
        sizes = state_sizes(setup.spec)
        page, native = sizes.latent_bytes(block_tokens), sizes.checkpoint_bytes
        state = sizes.checkpoint_int8_bytes if setup.int8 else native
        self.setup, self.account, self.state_bytes = setup, account, state
        self.flops = PrefillFlops.of(setup.spec)
        placement: Placement = parse_placement(setup.checkpoints)
        retention = build_retention(setup.retention, self.flops, page, state, alpha)
        self.guards: list[Guard] = []
        if setup.policy is not None:
            own, order = load_policy(setup.policy)
            if own is not None:
                placement = own
                self.guards.append(own)
            if order is not None:
                retention = Retention(order, retention.refresh, retention.max_states_per_path)
                self.guards.append(order)
        else:
            placement.boundaries(block_tokens, 0, None, block_tokens)  # refuses one off the grid
        self.placement = placement
        host = HostTier(setup.write_through) if setup.host else None
        self.cache = RadixStateCache(block_tokens, block_tokens, page, state, retention, host)
        self.room = Room(page, state, native, setup.memory, setup.split)
        plain = Retention() == retention and host is None and setup.split is None
        self.runs = plain and setup.policy is None
        self.host_room = Room(page, state, 0, setup.host or None)
        self.read: set[int] = set()
        account.page_bytes, account.checkpoint_bytes = page, state

    # -- a request ---------------------------------------------------------------------------

    def start(self, request: TraceRequest, alone: bool) -> Served | None:
        """Look up, lock, restore, compute and leave checkpoints. None: no room until a running
        request ends; nothing is held then.

        Raises:
            KdalabError: there would be no room even if nothing else ran (``alone``: nothing does).
        """
        cache, account = self.cache, self.account
        self._check_fits(request)
        for guard in self.guards:
            guard.request = request.line
        n = request.input_tokens
        key = PrefixKey.from_blocks(request.blocks, cache.page_tokens, n)
        found = cache.lookup(key)
        loaded = 0
        if cache.host is not None and found.host_restore is not None:
            found, loaded = self._load(key, found)
        lease = cache.acquire(found)
        read = lease.state
        if read is not None:
            cache.unlock_state(lease)
        private = 0
        if self.setup.arrivals:
            total = -(-(n + request.output_tokens) // cache.page_tokens)
            private = total - len(lease.pages)
            if not self._make(private, 0, 1):
                self._forget(cache.release(lease, used=False))
                if alone:
                    raise self._too_large(request, self.room.largest(total, 0, 1) or 0)
                return None
            self.room.hold(private, 1)
        if read is not None:
            self.read.add(read.slot)
            account.reads += 1
            account.state_bytes_read += self.state_bytes
        served = Served(request, found.restore, found.token_match, loaded, lease, key, private)
        wanted = self.placement.boundaries(n, found.restore, found.branching, cache.grid)
        for i, boundary in enumerate(wanted):
            if self._commit_rest(served, key, wanted[i:]):
                break
            if not self._commit(served, key, boundary):
                break  # the next boundary would need even more
        if cache.host is not None:
            self._back_up()
        return served

    def finish(self, served: Served) -> None:
        """The request is over: its output may enter the cache, and its locks go back."""
        request, page = served.request, self.cache.page_tokens
        assert served.lease is not None
        if self.setup.decoded and request.decoded:
            n = request.input_tokens + request.output_tokens
            whole = request.blocks[: request.input_tokens // page] + request.decoded
            key = PrefixKey.from_blocks(whole, page, n)
            boundary = n // page * page
            if boundary > served.lease.boundary:
                self._commit(served, key, boundary)
        self._forget(self.cache.release(served.lease))
        if self.setup.arrivals:
            self.room.hold(-served.private_pages, -1)
        if self.cache.host is not None:
            self._back_up()

    def usage(self) -> Usage:
        """Bytes in use now."""
        cache, host = self.cache, self.cache.host
        held = 0
        if host is not None:
            held = host.cached_pages * cache.page_bytes + host.cached_states * (
                cache.checkpoint_bytes
            )
        return Usage(cache.kv_bytes, cache.state_bytes, self.room.private_bytes, held)

    def close(self) -> None:
        """The last figures of the account."""
        account, usage = self.account, self.usage()
        account.states_read_at_least_once = len(self.read)
        account.kv_bytes, account.state_bytes, account.host_bytes = (
            usage.kv,
            usage.state,
            usage.host,
        )
        account.peak_bytes = self.room.peak_bytes

    def check(self) -> None:
        """Invariants of the cache, and conservation between cache, room and account.

        Raises:
            InvariantError: with the broken rule named.
        """
        self.cache.check()
        cache, room, a = self.cache, self.room, self.account
        rules = {
            "pages and checkpoints taken = cached": (room.pages, room.states)
            == (cache.cached_pages, cache.cached_states),
            "bytes in use <= memory": room.memory is None or room.peak_bytes <= room.memory,
            "states written - evicted = cached": cache.host is not None
            or a.states_written - a.evicted_states == cache.cached_states,
            "KV written - evicted = cached": cache.host is not None
            or a.pages_written * cache.page_bytes - a.evicted_kv_bytes == cache.kv_bytes,
            "private pages are those of running requests": self.setup.arrivals
            or (room.private_pages, room.active) == (0, 0),
        }
        for rule, holds in rules.items():
            if not holds:
                raise InvariantError(f"{rule}: room {room.pages}, {room.states}")

    # -- room --------------------------------------------------------------------------------

    def _make(self, pages: int, states: int, active: int = 0) -> bool:
        """Evict until so much more fits; False if that cannot be."""
        room = self.room
        short = room.short(pages, states, active)
        if short is NOTHING:
            return True
        self._forget(self.cache.evict(short))
        return room.short(pages, states, active) is NOTHING

    def _commit(self, served: Served, key: PrefixKey, boundary: int) -> bool:
        """Leave a checkpoint at ``boundary``; False when there is no room for it.

        Its pages were the request's own, so they change hands. What the cache turns out to know
        already goes back, as it does in an engine.
        """
        cache, room, account = self.cache, self.room, self.account
        lease = served.lease
        assert lease is not None
        count = (boundary - lease.boundary) // cache.page_tokens
        mine = min(count, served.private_pages)
        if mine:
            room.hold(-mine, 0)
        if not self._make(count, 1):
            room.hold(mine, 0)
            account.skipped_commits += 1
            return False
        pages, states = room.take(count, 1)
        done = cache.commit(lease, key, pages, Checkpoint(states.start, boundary))
        known, existed = len(done.duplicate_pages), done.state_existed
        if known or existed:
            room.give(known, int(existed))
        account.pages_written += count - known
        account.states_written += not existed
        if done.dropped:  # a cap of states a path
            room.give(0, len(done.dropped))
            account.evicted_states += len(done.dropped)
            account.evicted_state_bytes += len(done.dropped) * cache.checkpoint_bytes
        served.lease = done.lease
        served.private_pages -= mine
        return True

    def _commit_rest(self, served: Served, key: PrefixKey, ends: Sequence[int]) -> bool:
        """``_commit`` at all of ``ends`` in one go; False, and nothing done, where that could
        differ from one after the other.

        It could where the cache knows more of the prompt, or has work after each commit; where
        the order of eviction might choose one of these very checkpoints, as any but LRU may; and
        where what is evictable without them is not enough.
        """
        cache, room, lease = self.cache, self.room, served.lease
        if len(ends) < 2 or not self.runs or lease is None or knows_more(cache, lease, key):
            return False
        page, state = room.page_bytes, room.checkpoint_bytes
        count = (ends[-1] - lease.boundary) // cache.page_tokens
        mine = min(count, served.private_pages)
        need = (count - mine) * page + len(ends) * state
        used = room.kv_used + room.state_used
        dropped: Iterator[Dropped] = iter(())
        if room.memory is not None and (short := used + need - room.memory) > 0:
            if short > cache.evictable_pages * page + cache.evictable_states * state:
                return False
            evicted = cache.evict(Bytes(either=short))
            self._forget(evicted)
            dropped = iter(evicted.dropped)
        # The most that was in use on the way: evicting just before each commit, as one by one.
        at, private = lease.boundary, mine
        for end in ends:
            new = (end - at) // cache.page_tokens
            own = min(new, private)
            at, private = end, private - own
            used += (new - own) * page + state
            while room.memory is not None and used > room.memory:
                gone = next(dropped)
                used -= len(gone.pages) * page + (gone.state is not None) * state
            room.peak_bytes = max(room.peak_bytes, used)
        room.hold(-mine, 0)
        pages, states = room.take(count, len(ends))
        checkpoints = list(map(Checkpoint, states, ends))
        served.lease = commit_run(cache, lease, key, pages, checkpoints)
        served.private_pages -= mine
        self.account.pages_written += count
        self.account.states_written += len(ends)
        return True

    def _forget(self, evicted: Evicted) -> None:
        """Back to the room, and into the account, with what the cache gave up."""
        if not evicted.dropped:
            return
        account = self.account
        self.room.give(len(evicted.pages), len(evicted.states))
        account.evicted_states += len(evicted.states)
        account.evicted_kv_bytes += evicted.kv_bytes
        account.evicted_state_bytes += evicted.state_bytes
        if evicted.host_pages or evicted.host_states:
            self.host_room.give(len(evicted.host_pages), len(evicted.host_states))

    def _check_fits(self, request: TraceRequest) -> None:
        """Refuse a memory in which a request could not even keep its own prompt."""
        pages = request.input_tokens // self.cache.page_tokens
        need = self.room.largest(pages, 1, 0)
        if need is not None:
            raise self._too_large(request, need)

    def _too_large(self, request: TraceRequest, need: int) -> KdalabError:
        needed, there = format_apart(need, self.setup.memory or 0)
        what = "its active state" if self.setup.arrivals else "a checkpoint"
        return KdalabError(
            f"the request on line {request.line:,} ({request.input_tokens:,} tokens in, "
            f"{request.output_tokens:,} out) alone needs {needed} of memory: its "
            f"latent KV and {what}. There are {there}"
        )

    # -- the host ----------------------------------------------------------------------------

    def _load(self, key: PrefixKey, found: Lookup) -> tuple[Lookup, int]:
        """Bring back what the host knows further; the lookup after that, and bytes moved."""
        tier, cache = self.cache.host, self.cache
        assert tier is not None
        wish = tier.wanted_for(found)
        while wish is not None:
            if not self._make(wish.pages, int(wish.state)):
                return cache.lookup(key), 0
            again = tier.wanted_for(found)  # making room may have taken more of that very prefix
            if again == wish:
                break
            wish = again
        if wish is None:
            return cache.lookup(key), 0
        pages, states = self.room.take(wish.pages, int(wish.state))
        job = tier.start_load(found, pages, states.start if wish.state else None)
        self._forget(tier.ack(job.id).evicted)
        size = wish.pages * cache.page_bytes + wish.state * cache.checkpoint_bytes
        self.account.host_bytes_read += size
        self.account.host_hits += 1
        return cache.lookup(key), size

    def _back_up(self) -> None:
        """Copy every node that is due and fits."""
        tier, cache, room = self.cache.host, self.cache, self.host_room
        assert tier is not None
        tried: set[int] = set()
        while wish := next((w for w in tier.due() if w.node not in tried), None):
            tried.add(wish.node)
            tier.use(cache.nodes[wish.node])  # what the copy hangs below is not to go for it
            if room.largest(wish.boundary // cache.page_tokens, 1, 0) is not None:
                tier.dismiss(wish.node)
                continue
            short = room.short(wish.pages, int(wish.state))
            if short is not NOTHING:
                self._forget(
                    tier.evict(Bytes(either=sum(short)))._replace(kv_bytes=0, state_bytes=0)
                )
            if wish not in tier.due() or room.short(wish.pages, int(wish.state)) is not NOTHING:
                tier.dismiss(wish.node)
                continue
            pages, states = room.take(wish.pages, int(wish.state))
            job = tier.start_backup(wish.node, pages, states.start if wish.state else None)
            self._forget(tier.ack(job.id).evicted)
            self.account.host_bytes_written += wish.pages * cache.page_bytes + (
                wish.state * cache.checkpoint_bytes
            )
