"""A trace through the engine's own cache code, with pools that only count.

Requests run one after the other, in the order of arrival, at the granularity of the trace's
blocks. Each looks up its prompt, locks what it can restore, leaves checkpoints where the
placement wants them, and lets go.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from kdalab.cache import Bytes, Evicted, Lease, Placement, PrefixKey, RadixStateCache
from kdalab.errors import KdalabError
from kdalab.lab.trace import Trace, TraceRequest
from kdalab.memory.counting import CountingPool
from kdalab.spec import ModelSpec, state_sizes
from kdalab.spec.checkpoint import Checkpoint
from kdalab.units import format_bytes


@dataclass(slots=True)
class ReplayResult:
    """What a replay found. Lengths in tokens, sizes in bytes."""

    trace: str
    model: str
    placement: str
    budget_bytes: int | None
    page_bytes: int
    checkpoint_bytes: int
    requests: int = 0
    input_tokens: int = 0
    hit_tokens: int = 0
    known_tokens: int = 0
    replayed_tokens: int = 0
    reads: int = 0
    states_written: int = 0
    states_read: int = 0
    skipped_commits: int = 0
    evictions: int = 0
    evicted_kv_bytes: int = 0
    evicted_state_bytes: int = 0
    kv_bytes: int = 0
    state_bytes: int = 0
    peak_bytes: int = 0
    skipped_lines: int = 0
    seconds: float = 0.0
    skipped_examples: list[str] = field(default_factory=list)

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

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        rates = {
            "token_hit_rate": self.token_hit_rate,
            "kv_only_hit_rate": self.kv_only_hit_rate,
            "new_tokens": self.new_tokens,
            "states_read_share": self.states_read / self.states_written
            if self.states_written
            else 0.0,
        }
        return {**asdict(self), **rates}


def replay(
    trace: Trace,
    spec: ModelSpec,
    placement: Placement,
    budget: int | None = None,
    on_request: Callable[[int], None] | None = None,
    check_every: int = 0,
) -> ReplayResult:
    """Replay ``trace`` with the sizes of ``spec``.

    Args:
        placement: where checkpoints are taken; its grid is the trace's block.
        budget: bytes for latent KV and checkpoints together; None for unlimited.
        on_request: told the number of requests done, now and then.
        check_every: prove the cache's invariants and that pool and cache agree after every so
            many requests; 0 for never.

    Raises:
        KdalabError: the budget is smaller than what one request needs (named).
    """
    block = trace.block_tokens
    sizes = state_sizes(spec)
    page_bytes = sizes.latent_bytes(block)
    placement.boundaries(block, 0, None, block)  # refuses an interval off the grid, before work
    if budget is not None:
        check_budget(trace.requests, budget, page_bytes, sizes.checkpoint_bytes, block)
    run = _Replayer(
        RadixStateCache(block, block, page_bytes, sizes.checkpoint_bytes),
        CountingPool(page_bytes, sizes.checkpoint_bytes, budget),
        placement,
        ReplayResult(
            trace.name, spec.name, str(placement), budget, page_bytes, sizes.checkpoint_bytes
        ),
    )
    begin = time.perf_counter()
    for done, request in enumerate(trace.requests, 1):
        run.request(request)
        if check_every and done % check_every == 0:
            run.check()
        if on_request is not None and done % 256 == 0:
            on_request(done)
    return run.finish(trace, time.perf_counter() - begin)


def check_budget(
    requests: Sequence[TraceRequest],
    budget: int,
    page_bytes: int,
    checkpoint_bytes: int,
    block: int,
) -> None:
    """Refuse a budget in which one request could not keep its own prompt and a checkpoint."""
    largest = max(requests, key=lambda r: r.input_tokens)
    need = largest.input_tokens // block * page_bytes + checkpoint_bytes
    if need > budget:
        raise KdalabError(
            f"the request on line {largest.line:,} ({largest.input_tokens:,} tokens) alone needs "
            f"{format_bytes(need)} of latent KV and one checkpoint; the budget is "
            f"{format_bytes(budget)}. The smallest budget that works: {need:,} bytes"
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
        cache, result = self.cache, self.result
        n = request.input_tokens
        key = PrefixKey.from_blocks(request.blocks, cache.page_tokens, n)
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
        for boundary in self.placement.boundaries(n, found.restore, found.branching, cache.grid):
            moved = self.commit(lease, key, boundary)
            if moved is None:
                break  # the next boundary would need even more
            lease = moved
        self.forget(cache.release(lease))

    def commit(self, lease: Lease, key: PrefixKey, boundary: int) -> Lease | None:
        """Leave a checkpoint at ``boundary``, making room first; None when there is no room."""
        pool, cache = self.pool, self.cache
        count = (boundary - lease.boundary) // cache.page_tokens
        short = pool.missing(count, 1)
        if short:
            evicted = cache.evict(Bytes(either=short))
            self.result.evictions += len(evicted.dropped)
            self.result.evicted_kv_bytes += evicted.kv_bytes
            self.result.evicted_state_bytes += evicted.state_bytes
            self.forget(evicted)
            if pool.missing(count, 1):
                self.result.skipped_commits += 1
                return None
        pages, states = pool.take(count, 1)
        done = cache.commit(lease, key, pages, Checkpoint(states[0], boundary))
        pool.give(len(done.duplicate_pages), int(done.state_existed))
        self.result.states_written += not done.state_existed
        return done.lease

    def forget(self, evicted: Evicted) -> None:
        self.pool.give(len(evicted.pages), len(evicted.states))

    def check(self) -> None:
        """Invariants of the cache, and conservation between cache and pool."""
        self.cache.check()
        if (self.pool.pages, self.pool.states) != (
            self.cache.cached_pages,
            self.cache.cached_states,
        ):
            raise AssertionError("pages and checkpoints taken = pages and checkpoints cached")
        if self.pool.budget is not None and self.pool.used > self.pool.budget:
            raise AssertionError("bytes in use stay within the budget")

    def finish(self, trace: Trace, seconds: float) -> ReplayResult:
        result, pool = self.result, self.pool
        result.states_read = len(self.read)
        result.kv_bytes, result.state_bytes = pool.kv_bytes, pool.state_bytes
        result.peak_bytes = pool.peak_bytes
        result.skipped_lines = trace.n_skipped
        result.skipped_examples = [str(s) for s in trace.skipped]
        result.seconds = seconds
        return result
