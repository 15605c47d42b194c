"""Bookkeeping of the radix cache in microseconds: lookup, insertion, locks, eviction.

No tensor moves here: numbers stand for pages and slots. The prompt that is measured lies in nodes
of 1,024 tokens with a checkpoint each; beside it stands a forest of prompts of one page a node,
so that the tree has as many nodes as asked.

Targets are SGLang 0.5.23's two tree cores, measured on a 2-core AMD EPYC with the same page and
the same tokens a node: its Python core is the limit, its Rust core the goal. They hold for that
machine; what was measured here is printed beside them.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from kdalab.cache import Bytes, Checkpoint, Lookup, PrefixKey, RadixStateCache
from kdalab.errors import KdalabError

PAGE, NODE = 64, 1024
DEFAULT_NODES = (1_000, 10_000, 100_000)
DEFAULT_TOKENS = (1_000, 10_000, 100_000, 1_000_000)
MAX_NODES, MAX_TOKENS = 1_000_000, 4_000_000

EVICT_LIMIT_US = 100.0
# (operation, prompt tokens) -> (limit, goal), microseconds.
TARGETS: dict[tuple[str, int], tuple[float, float]] = {
    ("lookup", 1_000): (21, 5),
    ("lookup", 10_000): (115, 19),
    ("lookup", 100_000): (1_200, 170),
    ("insert", 1_000): (53, 16),
    ("insert", 10_000): (216, 44),
    ("insert", 100_000): (3_200, 415),
    ("lock + unlock", 100_000): (400, 50),
}


@dataclass(frozen=True, slots=True)
class CacheRow:
    """One measurement: median and slowest of ``calls``, microseconds.

    ``nodes`` are those of the tree, ``tokens`` those of the prompt (0 where none takes part);
    ``limit_us`` and ``goal_us`` are None where nothing was promised.
    """

    operation: str
    nodes: int
    tokens: int
    median_us: float
    slowest_us: float
    calls: int
    limit_us: float | None
    goal_us: float | None

    @property
    def verdict(self) -> str:
        """How the median stands to limit and goal, in a word."""
        if self.limit_us is None:
            return ""
        if self.goal_us is not None and self.median_us <= self.goal_us:
            return "goal"
        return "limit" if self.median_us <= self.limit_us else "missed"


def bench_cache(
    nodes: Sequence[int] = DEFAULT_NODES,
    tokens: Sequence[int] = DEFAULT_TOKENS,
    repeats: int = 50,
) -> Iterator[CacheRow]:
    """Measure every prompt length in a tree of every size, one row at a time.

    Args:
        nodes: nodes of the tree, the measured prompt's not counted.
        tokens: lengths of the prompt that is looked up and extended.
        repeats: calls a median is taken over.

    Raises:
        KdalabError: a size below one or so large that it would not fit memory.
    """
    _check("nodes", nodes, 1, MAX_NODES)
    _check("tokens", tokens, PAGE, MAX_TOKENS)
    _check("repeats", [repeats], 1, 10_000)
    for count in nodes:
        for length in tokens:
            cache = _forest(count)
            yield from _prompt_rows(cache, count, length, repeats)
        cache = _forest(count)
        yield from _evict_rows(cache, count, min(repeats, count))


def _check(name: str, values: Sequence[int], least: int, most: int) -> None:
    wrong = [v for v in values if not least <= v <= most]
    if wrong:
        raise KdalabError(f"{name} {wrong[0]:,}; use {least:,} to {most:,}")


def _prompt_rows(
    cache: RadixStateCache, nodes: int, length: int, repeats: int
) -> Iterator[CacheRow]:
    ids = np.random.default_rng(1).integers(0, 100_000, length + PAGE, dtype=np.int32)
    whole = length // PAGE * PAGE
    _enter(cache, ids[:whole], NODE)
    # One token beyond, so that the last checkpoint can be restored.
    key = PrefixKey.from_tokens(ids[: whole + 1], PAGE)
    found = cache.lookup(key)
    assert found.restore == whole, "the prompt that is measured is cached"
    yield _row("lookup", nodes, length, _timed(lambda _: cache.lookup(key), repeats))
    yield _row("lock + unlock", nodes, length, _timed(lambda _: _lock(cache, found), repeats))
    keys = []
    for n in range(repeats):
        ids[whole : whole + PAGE] = 100_000 + n
        keys.append(PrefixKey.from_tokens(ids[: whole + PAGE], PAGE))
    insert = _timed(lambda n: _insert(cache, keys[n], n, whole + PAGE), repeats)
    yield _row("insert", nodes, length, insert)
    made = _timed(lambda _: PrefixKey.from_tokens(ids, PAGE), repeats)
    yield _row("key from an int32 array", nodes, length, made)


def _lock(cache: RadixStateCache, found: Lookup) -> None:
    cache.release(cache.acquire(found))


def _insert(cache: RadixStateCache, key: PrefixKey, n: int, end: int) -> None:
    """All that a request's insertion costs: lookup, lock, commit of one page more, unlock."""
    lease = cache.acquire(cache.lookup(key))
    number = 10**9 + n
    done = cache.commit(lease, key, (number,), Checkpoint(number, end))
    cache.release(done.lease)


def _evict_rows(cache: RadixStateCache, nodes: int, calls: int) -> Iterator[CacheRow]:
    for name, need in (("evict a page", Bytes(kv=1)), ("evict a state", Bytes(state=1))):
        if cache.cached_states < calls:
            cache = _forest(nodes)
        yield _row(name, nodes, 0, _timed(partial(_evict, cache, need), calls))


def _evict(cache: RadixStateCache, need: Bytes, _: int) -> None:
    cache.evict(need)


def _timed(call: Callable[[int], object], repeats: int) -> list[float]:
    """Microseconds of each call."""
    out = []
    for n in range(repeats):
        begin = time.perf_counter()
        call(n)
        out.append((time.perf_counter() - begin) * 1e6)
    return out


def _row(name: str, nodes: int, tokens: int, times: Sequence[float]) -> CacheRow:
    limit, goal = TARGETS.get((name, tokens), (None, None))
    if name.startswith("evict"):
        limit = EVICT_LIMIT_US
    return CacheRow(
        name, nodes, tokens, statistics.median(times), max(times), len(times), limit, goal
    )


def _forest(nodes: int) -> RadixStateCache:
    """A tree of ``nodes`` nodes of one page, in prompts of ten nodes, a checkpoint on each."""
    cache = RadixStateCache(PAGE, PAGE)
    dice = np.random.default_rng(0)
    left = nodes
    while left:
        deep = min(10, left)
        _enter(cache, dice.integers(0, 100_000, deep * PAGE, dtype=np.int32), PAGE)
        left -= deep
    return cache


def _enter(cache: RadixStateCache, ids: np.ndarray, step: int) -> None:
    """Commit a prompt with a checkpoint every ``step`` tokens and at its end."""
    key = PrefixKey.from_tokens(ids, PAGE)
    lease = cache.acquire(cache.lookup(key))
    ends = [*range(step, len(ids), step), len(ids)]
    for end in ends:
        first, last = cache.cached_pages, cache.cached_pages + (end - lease.boundary) // PAGE
        state = Checkpoint(cache.cached_states, end)
        lease = cache.commit(lease, key, range(first, last), state).lease
    cache.release(lease)
