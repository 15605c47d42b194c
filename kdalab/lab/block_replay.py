"""A trace through the block cache, with no memory behind it: vLLM's way on the same requests.

Requests run one after the other, each prefilled in chunks that end where the cache wants them.
Output tokens have no ids in such a trace and are not cached.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from kdalab.cache import (
    BlockConfig,
    BlockLayout,
    BlockLookup,
    BlockRetention,
    BlockStateCache,
    CacheMode,
    Copy,
    GroupKind,
    Lease,
    PrefixKey,
    Step,
    group_layers,
    layer_specs,
    packed_layout,
    padded_layout,
)
from kdalab.cache.block_pool import BlockPool
from kdalab.errors import KdalabError
from kdalab.lab.replay import without_garbage_collection
from kdalab.lab.trace import Requests
from kdalab.spec import ModelSpec
from kdalab.units import format_bytes

CHUNK_TOKENS = 8192
"""Tokens that a step computes at most: vLLM's ``max_num_batched_tokens`` for serving."""

LAYOUTS = ("padded", "packed")

ASSUMPTIONS = (
    "hits are whole units of {unit} tokens",
    "blocks of {block} tokens, a multiple of the trace's own",
    "output tokens have no ids in this trace and are not cached",
    "requests run one after the other",
)


def model_layout(
    spec: ModelSpec,
    unit: int,
    block: int | None = None,
    layout: str = "padded",
    tp_size: int = 1,
) -> BlockLayout:
    """Groups of ``spec``'s layers and how they share a block's bytes, on one rank.

    Args:
        unit: tokens; blocks are multiples of it.
        block: tokens of a block; None for the smallest whose attention page holds a state.
        layout: "padded" (one page size for all) or "packed".

    Raises:
        KdalabError: another layout; a block off the unit, or too small for the padded layout.
    """
    if layout not in LAYOUTS:
        raise KdalabError(f"layout {layout!r}; use one of {', '.join(LAYOUTS)}")
    if block is not None and (block < 1 or block % unit):
        raise KdalabError(f"blocks of {block:,} tokens; use a multiple of {unit:,}")
    specs = layer_specs(spec, tp_size=tp_size, align=unit, block=block)
    return (padded_layout if layout == "padded" else packed_layout)(group_layers(specs))


def block_config(
    trace: Requests,
    layout: BlockLayout,
    budget: int | None,
    unit: int | None = None,
    mode: CacheMode = CacheMode.ALIGN,
    retention: BlockRetention | None = None,
) -> BlockConfig:
    """A cache of as many of ``layout``'s blocks as ``budget`` bytes hold, or as the trace could
    ever fill: what is beyond these changes nothing.

    Raises:
        KdalabError: the largest request does not fit; names it and the smallest budget.
    """
    block = layout.groups[0].block_tokens
    n_states = sum(g.kind is GroupKind.STATE for g in layout.groups)
    n_full = len(layout.groups) - n_states
    largest, total = None, 0
    for request in trace:
        blocks = -(-request.input_tokens // block)
        # A prompt's blocks, and a state for each of them, for the tail and the one that runs.
        total += blocks * n_full + (blocks + 3) * n_states
        if largest is None or request.input_tokens > largest.input_tokens:
            largest = request
    assert largest is not None  # a trace without requests has raised
    # Running state, the next one, one given back when the step ends; a copied KV block; the null.
    need = n_full * (-(-largest.input_tokens // block) + 1) + 3 * n_states + 1
    n_blocks = need + total
    if budget is not None:
        n_blocks = min(n_blocks, budget // layout.stride)
    if n_blocks < need:
        raise KdalabError(
            f"the request on line {largest.line:,} ({largest.input_tokens:,} tokens) alone needs "
            f"{need:,} blocks of {format_bytes(layout.stride)}; the budget of "
            f"{format_bytes(budget or 0)} has {n_blocks:,}. The smallest budget that works: "
            f"{need * layout.stride:,} bytes"
        )
    return BlockConfig(
        layout.groups,
        n_blocks,
        unit=unit,
        mode=mode,
        retention=retention or BlockRetention(),
        block_bytes=layout.stride,
    )


@dataclass(slots=True)
class BlockReplayResult:
    """What a replay found. Lengths in tokens, sizes in bytes.

    ``known_tokens`` are those whose KV was cached, ``replayed_tokens`` the known ones computed
    again; ``reads`` counts the restores. ``states_written`` counts state blocks that got a name:
    a checkpoint of the whole model is one in each state group. ``peak_blocks`` is the most that
    running requests held at once, ``peak_bytes`` all that held something, cached blocks too.

    Of the ``held_blocks`` at the end, ``padding_bytes`` belong to no layer's page and
    ``unfilled_bytes`` to attention pages that are not full. Bytes are 0 without a layout.
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
    model: str = ""
    layout: str = ""
    mode: str = ""
    retention: str = ""
    budget_bytes: int | None = None
    n_blocks: int = 0
    block_tokens: int = 0
    unit_tokens: int = 0
    state_groups: int = 0
    block_bytes: int = 0
    state_copies: int = 0
    copied_bytes: int = 0
    held_blocks: int = 0
    held_bytes: int = 0
    padding_bytes: int = 0
    unfilled_bytes: int = 0
    peak_bytes: int = 0
    skipped_lines: int = 0
    skipped_examples: list[str] = field(default_factory=list)

    @property
    def token_hit_rate(self) -> float:
        """Share of prompt tokens that were restored, 0 to 1."""
        return self.hit_tokens / self.input_tokens if self.input_tokens else 0.0

    @property
    def kv_only_hit_rate(self) -> float:
        """Share of prompt tokens whose KV was known, 0 to 1."""
        return self.known_tokens / self.input_tokens if self.input_tokens else 0.0

    @property
    def new_tokens(self) -> int:
        """Prompt tokens that had to be computed for the first time."""
        return self.input_tokens - self.hit_tokens - self.replayed_tokens

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What the figures rest on, in words."""
        sizes = {"unit": f"{self.unit_tokens:,}", "block": f"{self.block_tokens:,}"}
        return tuple(text.format(**sizes) for text in ASSUMPTIONS)

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON: the fields under their names, and what follows from them."""
        return {
            **asdict(self),
            "token_hit_rate": self.token_hit_rate,
            "kv_only_hit_rate": self.kv_only_hit_rate,
            "new_tokens": self.new_tokens,
            "assumptions": list(self.assumptions),
        }


class BlockReplayer:
    """One replay under way.

    Args:
        layout: what blocks weigh; None leaves bytes at 0.
        chunk: tokens a step computes at most.
    """

    def __init__(
        self,
        config: BlockConfig,
        result: BlockReplayResult,
        layout: BlockLayout | None = None,
        chunk: int = CHUNK_TOKENS,
    ) -> None:
        self.cache, self.result, self.layout, self.chunk = (
            BlockStateCache(config),
            result,
            layout,
            chunk,
        )
        result.mode, result.retention = str(config.mode), str(config.retention)
        result.n_blocks, result.unit_tokens = config.n_blocks, config.sizes.unit
        result.block_tokens = config.state_block
        result.state_groups = len(self.cache.state_groups)
        if layout is not None:
            result.layout, result.block_bytes = layout.name, layout.stride

    def serve(self, key: PrefixKey, name: str = "the request") -> BlockLookup:
        """One prompt from lookup to release; returns what its lookup found.

        Raises:
            KdalabError: the pool cannot hold it; it holds nothing any more.
        """
        cache, result = self.cache, self.result
        found = cache.lookup(key)
        result.requests += 1
        result.input_tokens += found.n_tokens
        result.hit_tokens += found.restore
        result.known_tokens += found.token_match
        result.replayed_tokens += found.replay
        result.reads += found.restore > 0
        lease = cache.acquire(found)
        tables = [cache.pool.tables[i] for i in cache.state_groups]
        named, lost = sum(map(len, tables)), result.evicted_state_blocks
        while lease.boundary < found.n_tokens:
            end = cache.chunk_end(lease, self.chunk)
            step = cache.allocate(lease, end)
            if step is None:
                cache.release(lease)
                raise KdalabError(
                    f"{name} ({found.n_tokens:,} tokens) does not fit "
                    f"{result.n_blocks:,} blocks; use more blocks, or larger ones"
                )
            lease = self._run(lease, step)
        lost = result.evicted_state_blocks - lost
        result.states_written += sum(map(len, tables)) - named + lost
        cache.release(lease)
        return found

    def _run(self, lease: Lease, step: Step) -> Lease:
        cache, result = self.cache, self.result
        for block in step.lost:
            is_state = block.group in cache.state_groups
            result.evicted_state_blocks += is_state
            result.evicted_kv_blocks += not is_state
        for copy in step.copies:
            result.copies += 1
            result.state_copies += copy.group in cache.state_groups
            result.copied_bytes += self._copied(copy)
        lease = cache.advance(lease, step.end)
        pool = cache.pool
        result.peak_blocks = max(result.peak_blocks, len(pool.blocks) - 1 - pool.n_free)
        result.peak_bytes = max(result.peak_bytes, pool.n_held * result.block_bytes)
        cache.step_done()
        result.steps += 1
        return lease

    def _copied(self, copy: Copy) -> int:
        """Real bytes of a copy, padding left out."""
        if self.layout is None:
            return 0
        group = self.layout.groups[copy.group]
        if group.kind is GroupKind.STATE:
            return len(group.layers) * group.spec.page_bytes
        return len(group.layers) * copy.tokens * group.spec.token_bytes

    def finish(self) -> BlockReplayResult:
        """The result, with what is held at the end."""
        held, result = held_blocks(self.cache.pool, self.layout), self.result
        result.held_blocks, result.held_bytes = held.blocks, held.nbytes
        result.padding_bytes, result.unfilled_bytes = held.padding, held.unfilled
        return result


class Held(NamedTuple):
    """Blocks that hold something, their bytes, and how many of these are of no use: padding, and
    attention pages not full. Bytes are 0 without a layout."""

    blocks: int
    nbytes: int = 0
    padding: int = 0
    unfilled: int = 0


def held_blocks(pool: BlockPool, layout: BlockLayout | None) -> Held:
    """What ``pool`` holds, referenced or cached."""
    held = [b for b in pool.blocks[1:] if b.ref or b.keys]
    if layout is None:
        return Held(len(held))
    lost = [layout.page_padding(i) + layout.place_padding(i) for i in range(len(layout.groups))]
    padding = unfilled = 0
    for block in held:
        group = layout.groups[block.group]
        padding += lost[block.group]
        if group.kind is GroupKind.FULL:
            short = -block.length % group.block_tokens
            unfilled += short * group.spec.token_bytes * len(group.layers)
    return Held(len(held), len(held) * layout.stride, padding, unfilled)


def replay_blocks(
    trace: Requests,
    config: BlockConfig,
    chunk: int = CHUNK_TOKENS,
    check_every: int = 0,
    layout: BlockLayout | None = None,
    on_request: Callable[[int], None] | None = None,
) -> BlockReplayResult:
    """Replay ``trace``; its own block must divide the hash unit.

    Args:
        chunk: tokens a step computes at most.
        check_every: prove the cache's invariants after every so many requests; 0 for never.
        layout: of the blocks, to count bytes; its groups are those of ``config``.
        on_request: told the number of requests done, now and then.

    Raises:
        KdalabError: the pool cannot hold one request (named); a unit off the trace's blocks.
        InvariantError: a check failed.
    """
    begin = time.perf_counter()
    run = BlockReplayer(config, BlockReplayResult(trace.name), layout, chunk)
    with without_garbage_collection():
        for done, request in enumerate(trace, 1):
            n = request.input_tokens
            key = PrefixKey.from_blocks(request.blocks, trace.block_tokens, n)
            run.serve(key, f"the request on line {request.line:,}")
            if check_every and done % check_every == 0:
                run.cache.check()
            if on_request is not None and done % 256 == 0:
                on_request(done)
    result = run.finish()
    result.skipped_lines = trace.n_skipped
    result.skipped_examples = [str(s) for s in trace.skipped]
    result.seconds = time.perf_counter() - begin
    return result
