"""A schedule played through the cache's own code, within the budget at every moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kdalab.cache import Bytes, Evicted, Lookup, PrefixKey, RadixStateCache, Retention
from kdalab.cache.retention import Aged, N
from kdalab.lab.oracle import Schedule
from kdalab.lab.trace import Requests
from kdalab.memory.counting import CountingPool
from kdalab.spec import ModelSpec, state_sizes
from kdalab.spec.checkpoint import Checkpoint


@dataclass(slots=True)
class OracleResult:
    """What the schedule restored (tokens), and the most bytes it held at once. ``refused`` counts
    checkpoints for which there was no room while a request held its own path."""

    hit_tokens: int = 0
    input_tokens: int = 0
    known_tokens: int = 0
    peak_bytes: int = 0
    refused: int = 0


@dataclass(slots=True)
class _Named:
    """An eviction order that gives up the states it was told to, and nothing else."""

    nodes: set[int] = field(default_factory=set)

    def leaf(self, nodes: Mapping[int, N]) -> N | None:
        return None

    def state(self, nodes: Mapping[int, N]) -> N | None:
        while self.nodes:
            node = nodes.get(self.nodes.pop())
            if node is not None:
                return node
        return None

    def leaf_first(self, leaf: Aged, state: Aged) -> bool:
        return False


def play_schedule(
    trace: Requests, spec: ModelSpec, schedule: Schedule, budget: int, check_every: int = 0
) -> OracleResult:
    """Play ``schedule`` over ``trace``.

    Each request restores what is there, then gives up the states on its path that are not to be
    held, then leaves those that are, if it computes past them. The pool refuses what goes over
    the budget.

    Args:
        check_every: prove the cache's invariants after every so many requests; 0 for never.
    """
    sizes, block = state_sizes(spec), trace.block_tokens
    page, state = sizes.latent_bytes(block), sizes.checkpoint_bytes
    order = _Named()
    cache = RadixStateCache(block, block, page, state, Retention(order))
    pool = CountingPool(page, state, budget)
    result = OracleResult()

    def forget(gone: Evicted) -> None:
        pool.give(len(gone.pages), len(gone.states))

    for r, request in enumerate(trace):
        n = request.input_tokens
        key = PrefixKey.from_blocks(request.blocks, block, n)
        found = cache.lookup(key)
        result.input_tokens += n
        result.hit_tokens += found.restore
        result.known_tokens += found.token_match
        lease = cache.acquire(found)
        cache.unlock_state(lease)
        keep = schedule.keep.get(r, set())
        order.nodes = _to_drop(cache, found, keep, block)
        if order.nodes:
            forget(cache.evict(Bytes(state=len(order.nodes) * state)))
        for depth in sorted(d for d in keep if d * block > found.restore):
            count = depth - lease.boundary // block
            if pool.missing(count, 1):
                result.refused += 1
                break
            pages, states = pool.take(count, 1)
            done = cache.commit(lease, key, pages, Checkpoint(states.start, depth * block))
            pool.give(len(done.duplicate_pages), int(done.state_existed))
            lease = done.lease
        forget(cache.release(lease))
        if check_every and r % check_every == 0:
            cache.check()
    result.peak_bytes = pool.peak_bytes
    return result


def _to_drop(cache: RadixStateCache, found: Lookup, keep: set[int], block: int) -> set[int]:
    """Nodes on the request's path whose state is not to be held any longer."""
    nodes = (cache.nodes[i] for i in found.path)
    return {
        n.id
        for n in nodes
        if n.state is not None and n.end <= found.token_match and n.end // block not in keep
    }
