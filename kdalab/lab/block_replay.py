"""A trace through the block cache, with no memory behind it: vLLM's way on the same requests.

Requests run one after the other, each prefilled in chunks that end where the cache wants them.
Output tokens have no ids in such a trace and are not cached.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

from kdalab.cache import BlockConfig, BlockStateCache, PrefixKey
from kdalab.errors import KdalabError
from kdalab.lab.trace import Requests


@dataclass(slots=True)
class BlockReplayResult:
    """What a replay found. Lengths in tokens.

    ``known_tokens`` are those whose KV was cached, ``replayed_tokens`` the known ones computed
    again; ``states_written`` counts state blocks that got a name, ``reads`` the restores.
    """

    trace: str
    requests: int = 0
    input_tokens: int = 0
    hit_tokens: int = 0
    known_tokens: int = 0
    replayed_tokens: int = 0
    reads: int = 0
    steps: int = 0
    states_written: int = 0
    copies: int = 0
    evicted_kv_blocks: int = 0
    evicted_state_blocks: int = 0
    peak_blocks: int = 0
    seconds: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self)


def replay_blocks(
    trace: Requests, config: BlockConfig, chunk: int = 8192, check_every: int = 0
) -> BlockReplayResult:
    """Replay ``trace``; its own block must divide the hash unit.

    Args:
        chunk: tokens a step computes at most.
        check_every: prove the cache's invariants after every so many requests; 0 for never.

    Raises:
        KdalabError: the pool cannot hold one request (named); a unit off the trace's blocks.
        InvariantError: a check failed.
    """
    begin = time.perf_counter()
    cache, result = BlockStateCache(config), BlockReplayResult(trace.name)
    states = cache.state_groups
    for request in trace:
        key = PrefixKey.from_blocks(request.blocks, trace.block_tokens, request.input_tokens)
        found = cache.lookup(key)
        result.requests += 1
        result.input_tokens += found.n_tokens
        result.hit_tokens += found.restore
        result.known_tokens += found.token_match
        result.replayed_tokens += found.replay
        result.reads += found.restore > 0
        lease = cache.acquire(found)
        named = sum(len(cache.pool.tables[i]) for i in states)
        lost = 0
        while lease.boundary < found.n_tokens:
            end = cache.chunk_end(lease, chunk)
            step = cache.allocate(lease, end)
            if step is None:
                cache.release(lease)
                raise KdalabError(
                    f"the request on line {request.line:,} ({found.n_tokens:,} tokens) does not "
                    f"fit {config.n_blocks:,} blocks; use more blocks, or larger ones"
                )
            for block in step.lost:
                is_state = block.group in states
                lost += is_state
                result.evicted_state_blocks += is_state
                result.evicted_kv_blocks += not is_state
            result.copies += len(step.copies)
            lease = cache.advance(lease, end)
            cache.step_done()
            result.steps += 1
        result.states_written += sum(len(cache.pool.tables[i]) for i in states) - named + lost
        result.peak_blocks = max(result.peak_blocks, len(cache.pool.blocks) - 1 - cache.pool.n_free)
        cache.release(lease)
        if check_every and result.requests % check_every == 0:
            cache.check()
    result.seconds = time.perf_counter() - begin
    return result
