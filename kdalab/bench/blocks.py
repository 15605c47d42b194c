"""The block cache beside vLLM 0.33's scheduler: hashing, lookup and allocation of long prompts.

vLLM's figures were measured on a 2-core AMD EPYC, minimum of two runs; ours are the minimum of
``repeats`` runs on this machine, named by ``timing.machine``. Same work: 100,000 tokens, one
attention group and three state groups, a cold prompt in 14 steps.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from kdalab.cache import (
    BlockConfig,
    BlockRetention,
    BlockStateCache,
    HashChain,
    Lease,
    PrefixKey,
    plain_groups,
)

TOKENS, STEPS, STATE_GROUPS = 100_000, 14, 3

#: (what, block, unit) -> milliseconds in vLLM 0.33; None where it was not measured.
VLLM_MS: dict[tuple[str, int, int], float] = {
    ("hash", 16, 16): 8.6,
    ("hash", 1536, 128): 2.5,
    ("lookup, all hits", 16, 16): 4.0,
    ("lookup, no hit", 16, 16): 0.01,
    ("lookup, all hits", 1536, 128): 0.06,
    ("allocate", 16, 16): 13.0,
    ("allocate", 1536, 128): 1.1,
    ("free", 16, 16): 1.0,
    ("free", 1536, 128): 0.03,
}


@dataclass(frozen=True, slots=True)
class BlockTiming:
    """One figure: milliseconds here and in vLLM (its faster hash, xxhash, for hashing)."""

    what: str
    block: int
    unit: int
    ms: float
    vllm_ms: float | None

    @property
    def verdict(self) -> str:
        """Whether it takes no longer than vLLM's: "meets" or "missed", "" where none is known."""
        if self.vllm_ms is None:
            return ""
        return "meets" if self.ms <= self.vllm_ms else "missed"


def _best(call: Callable[[], object], repeats: int) -> float:
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
    return best * 1e3


def block_timings(repeats: int = 7, n_tokens: int = TOKENS) -> list[BlockTiming]:
    """Time both shapes: blocks of 16 under hashes of 16, and of 1,536 under hashes of 128."""
    tokens = np.random.default_rng(0).integers(0, 160_000, n_tokens, dtype=np.int32)
    out = []
    for block, unit in ((16, 16), (1536, 128)):
        for what, ms in _shape(tokens, block, unit, repeats).items():
            out.append(BlockTiming(what, block, unit, ms, VLLM_MS.get((what, block, unit))))
    return out


def _shape(tokens: np.ndarray, block: int, unit: int, repeats: int) -> dict[str, float]:
    key = PrefixKey(tokens.tobytes()[: len(tokens) // unit * unit * 4], 4 * unit, unit, len(tokens))
    chain = HashChain(key, unit)
    times = {"hash": _best(lambda: HashChain(key, unit), repeats)}
    config = BlockConfig(
        plain_groups(block, block, STATE_GROUPS),
        n_blocks=2 * (len(tokens) // block) + 400,
        unit=unit,
        retention=BlockRetention(None),
    )
    allocate, free = [], []
    for _ in range(repeats):
        cache = BlockStateCache(config)
        times["lookup, no hit"] = _best(lambda c=cache: c.lookup(chain), repeats)  # type: ignore[misc]
        lease = cache.acquire(cache.lookup(chain))
        seconds, lease = _prefill(cache, lease, len(tokens))
        allocate.append(seconds)
        start = time.perf_counter()
        cache.release(lease)
        free.append(time.perf_counter() - start)
    times["lookup, all hits"] = _best(lambda: cache.lookup(chain), repeats)
    times["allocate"], times["free"] = min(allocate) * 1e3, min(free) * 1e3
    return times


def _prefill(cache: BlockStateCache, lease: Lease, n: int) -> tuple[float, Lease]:
    """Seconds to allocate and name the blocks of a whole prompt, step by step."""
    budget = -(-n // STEPS)
    start = time.perf_counter()
    while lease.boundary < n:
        end = cache.chunk_end(lease, budget)
        if cache.allocate(lease, end) is None:
            raise RuntimeError("the pool is large enough for one prompt")
        lease = cache.advance(lease, end)
        cache.step_done()
    return time.perf_counter() - start, lease
