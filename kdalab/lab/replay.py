"""A trace through the engine's own cache code, with pools that only count.

Requests run one after the other, in the order of arrival, at the granularity of the trace's
blocks. Each looks up its prompt, locks what it can restore, leaves checkpoints where the
placement wants them, and lets go.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from kdalab.cache import (
    Bytes,
    Evicted,
    Lease,
    Lookup,
    Placement,
    PrefillFlops,
    PrefixKey,
    RadixStateCache,
    Retention,
)
from kdalab.errors import InvariantError, KdalabError
from kdalab.lab.trace import Requests, TraceRequest
from kdalab.memory.counting import CountingPool
from kdalab.spec import ModelSpec, state_sizes
from kdalab.spec.checkpoint import Checkpoint
from kdalab.units import format_bytes

ASSUMPTIONS = (
    "hits are whole blocks of {block} tokens",
    "output tokens have no ids in this trace and are not cached",
    "requests run one after the other",
)


@dataclass(slots=True)
class ReplayResult:
    """What a replay found. Lengths in tokens, sizes in bytes.

    What is written is new to the cache: ``pages_written`` x ``page_bytes`` - ``evicted_kv_bytes``
    = ``kv_bytes``, and so for states. ``known_tokens`` are those whose latent KV was in the
    cache, ``hit_tokens`` those that were restored, ``replayed_tokens`` the known ones computed
    again. ``reads`` counts restores, ``states_read_at_least_once`` the states they read.
    """

    trace: str
    model: str
    placement: str
    budget_bytes: int | None
    block_tokens: int
    page_bytes: int
    checkpoint_bytes: int
    requests: int = 0
    input_tokens: int = 0
    hit_tokens: int = 0
    known_tokens: int = 0
    replayed_tokens: int = 0
    reads: int = 0
    pages_written: int = 0
    states_written: int = 0
    states_read_at_least_once: int = 0
    skipped_commits: int = 0
    evicted_pages: int = 0
    evicted_states: int = 0
    evicted_kv_bytes: int = 0
    evicted_state_bytes: int = 0
    kv_bytes: int = 0
    state_bytes: int = 0
    peak_bytes: int = 0
    skipped_lines: int = 0
    skipped_examples: list[str] = field(default_factory=list)
    seconds: float = 0.0
    retention: str = "lru"

    @property
    def token_hit_rate(self) -> float:
        """Share of prompt tokens that were restored, 0 to 1."""
        return self.hit_tokens / self.input_tokens if self.input_tokens else 0.0

    @property
    def kv_only_hit_rate(self) -> float:
        """Share of prompt tokens whose latent KV was known: what a tool reports that leaves the
        recurrent state out of the account."""
        return self.known_tokens / self.input_tokens if self.input_tokens else 0.0

    @property
    def new_tokens(self) -> int:
        """Prompt tokens that had to be computed for the first time."""
        return self.input_tokens - self.hit_tokens - self.replayed_tokens

    @property
    def states_read_share(self) -> float:
        """Share of the states written that were ever read, 0 to 1."""
        return self.states_read_at_least_once / self.states_written if self.states_written else 0.0

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What the figures rest on, in words."""
        return tuple(text.format(block=self.block_tokens) for text in ASSUMPTIONS)

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON: the fields under their names, and what follows from them."""
        return {
            **asdict(self),
            "token_hit_rate": self.token_hit_rate,
            "kv_only_hit_rate": self.kv_only_hit_rate,
            "new_tokens": self.new_tokens,
            "states_read_share": self.states_read_share,
            "assumptions": list(self.assumptions),
        }


def replay(
    trace: Requests,
    spec: ModelSpec,
    placement: Placement,
    budget: int | None = None,
    on_request: Callable[[int], None] | None = None,
    check_every: int = 0,
    retention: Retention | None = None,
) -> ReplayResult:
    """Replay ``trace`` with the sizes of ``spec``.

    Args:
        trace: read once, and once more before that if there is a budget to check.
        placement: where checkpoints are taken; its grid is the trace's block.
        budget: bytes for latent KV and checkpoints together; None for unlimited. A request's own
            pages count from the moment it commits them, so the cache keeps within it at all times.
        on_request: told the number of requests done, now and then.
        check_every: prove the cache's invariants and that pool and cache agree after every so
            many requests; 0 for never.
        retention: what is kept and what goes first; by default LRU.

    Raises:
        KdalabError: the budget is smaller than what one request needs (named); an interval off
            the grid; a trace that cannot be read.
        InvariantError: a check failed.
    """
    begin = time.perf_counter()
    block = trace.block_tokens
    sizes = state_sizes(spec)
    page_bytes = sizes.latent_bytes(block)
    placement.boundaries(block, 0, None, block)  # refuses an interval off the grid, before work
    if budget is not None:
        check_budget(trace, budget, page_bytes, sizes.checkpoint_bytes)
    retention = (retention or Retention()).bound(
        PrefillFlops.of(spec), page_bytes, sizes.checkpoint_bytes
    )
    run = _Replayer(
        RadixStateCache(block, block, page_bytes, sizes.checkpoint_bytes, retention),
        CountingPool(page_bytes, sizes.checkpoint_bytes, budget),
        placement,
        ReplayResult(
            trace.name,
            spec.name,
            str(placement),
            budget,
            block,
            page_bytes,
            sizes.checkpoint_bytes,
            retention=str(retention),
        ),
    )
    with without_garbage_collection():
        for done, request in enumerate(trace, 1):
            run.request(request)
            if check_every and done % check_every == 0:
                run.check()
            if on_request is not None and done % 256 == 0:
                on_request(done)
    result = run.finish()
    result.skipped_lines = trace.n_skipped
    result.skipped_examples = [str(s) for s in trace.skipped]
    result.seconds = time.perf_counter() - begin
    return result


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """The tree has no garbage in cycles: what is evicted goes by its reference count.
    The collector would walk all of it again and again, a third of the time of a replay."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def check_budget(trace: Requests, budget: int, page_bytes: int, checkpoint_bytes: int) -> None:
    """Refuse a budget in which one request could not keep its own prompt and a checkpoint.

    With more than that no commit is ever refused: a request locks no more than its own pages,
    and no state once it has been copied.

    Raises:
        KdalabError: the largest request does not fit; names it, its need and the smallest budget.
    """
    largest = max(trace, key=lambda r: r.input_tokens)
    need = largest.input_tokens // trace.block_tokens * page_bytes + checkpoint_bytes
    if need > budget:
        raise KdalabError(
            f"the request on line {largest.line:,} ({largest.input_tokens:,} tokens) alone needs "
            f"{format_bytes(need)}: the latent KV of its whole blocks and one checkpoint. The "
            f"budget is {format_bytes(budget)}. The smallest budget that works: {need:,} bytes"
        )


class _Replayer:
    """One replay under way."""

    def __init__(
        self,
        cache: RadixStateCache,
        pool: CountingPool,
        placement: Placement,
        result: ReplayResult,
    ) -> None:
        self.cache, self.pool, self.placement, self.result = cache, pool, placement, result
        self.read: set[int] = set()

    def request(self, request: TraceRequest) -> None:
        n = request.input_tokens
        self.serve(PrefixKey.from_blocks(request.blocks, self.cache.page_tokens, n))

    def serve(self, key: PrefixKey) -> Lookup:
        """One prompt; returns what its lookup found."""
        cache, result, n = self.cache, self.result, key.n_tokens
        found = cache.lookup(key)
        result.requests += 1
        result.input_tokens += n
        result.hit_tokens += found.restore
        result.known_tokens += found.token_match
        result.replayed_tokens += found.replay
        lease = cache.acquire(found)
        if lease.state is not None:
            result.reads += 1
            self.read.add(lease.state.slot)
            cache.unlock_state(lease)
        self.admit(lease, n)
        for boundary in self.placement.boundaries(n, found.restore, found.branching, cache.grid):
            moved = self.commit(lease, key, boundary)
            if moved is None:
                break  # the next boundary would need even more
            lease = moved
        self.forget(cache.release(lease))
        return found

    def admit(self, lease: Lease, n_tokens: int) -> None:
        """Room for what the request computes into. Not counted here: only what enters the cache
        is."""

    def commit(self, lease: Lease, key: PrefixKey, boundary: int) -> Lease | None:
        """Leave a checkpoint at ``boundary``, making room first; None when there is no room.

        Room is made for all that the request brings. What the cache turns out to have already
        goes back to the pool, as it does in an engine, whose request has computed into pages of
        its own before it learns of duplicates.
        """
        pool, cache, result = self.pool, self.cache, self.result
        count = (boundary - lease.boundary) // cache.page_tokens
        short = pool.missing(count, 1)
        if short:
            freed = cache.evict(Bytes(either=short))
            self.forget(freed)
            if freed.kv_bytes + freed.state_bytes < short:
                result.skipped_commits += 1
                return None
        pages, states = pool.take(count, 1)
        done = cache.commit(lease, key, pages, Checkpoint(states.start, boundary))
        known, existed = len(done.duplicate_pages), done.state_existed
        if known or existed:
            pool.give(known, int(existed))
        result.pages_written += count - known
        result.states_written += not existed
        if done.dropped:  # a cap of states a path
            pool.give(0, len(done.dropped))
            result.evicted_states += len(done.dropped)
            result.evicted_state_bytes += len(done.dropped) * cache.checkpoint_bytes
        return done.lease

    def forget(self, evicted: Evicted) -> None:
        """Back to the pool, and into the account, with what the cache gave up."""
        if not evicted.dropped:
            return
        result = self.result
        self.pool.give(len(evicted.pages), len(evicted.states))
        result.evicted_pages += len(evicted.pages)
        result.evicted_states += len(evicted.states)
        result.evicted_kv_bytes += evicted.kv_bytes
        result.evicted_state_bytes += evicted.state_bytes

    def check(self) -> None:
        """Invariants of the cache, and conservation between cache, pool and account.

        Raises:
            InvariantError: with the broken rule named.
        """
        self.cache.check()
        cache, pool, r = self.cache, self.pool, self.result
        cached = (cache.cached_pages, cache.cached_states)
        flows = (r.pages_written - r.evicted_pages, r.states_written - r.evicted_states)
        rules = {
            "pages and checkpoints taken = cached": (pool.pages, pool.states) == cached,
            "pages and checkpoints written - evicted = cached": flows == cached,
            "bytes evicted = what was evicted": (r.evicted_kv_bytes, r.evicted_state_bytes)
            == (r.evicted_pages * r.page_bytes, r.evicted_states * r.checkpoint_bytes),
            "bytes in use = bytes cached": pool.used == cache.kv_bytes + cache.state_bytes,
            "bytes in use <= budget": pool.budget is None or pool.peak_bytes <= pool.budget,
        }
        for rule, holds in rules.items():
            if not holds:
                raise InvariantError(f"{rule}: pool {pool.pages}, {pool.states}; cached {cached}")

    def finish(self) -> ReplayResult:
        result, pool = self.result, self.pool
        result.states_read_at_least_once = len(self.read)
        result.kv_bytes, result.state_bytes = pool.kv_bytes, pool.state_bytes
        result.peak_bytes = pool.peak_bytes
        return result
