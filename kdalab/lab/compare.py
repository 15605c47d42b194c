"""The same requests under the same bytes through both caches, with pools that only count.

Both ways pay for all that a request holds while it runs: its pages or blocks and its active state
come out of the budget on either side. Only what happens to cached states and KV differs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import NamedTuple

from kdalab.cache import (
    BlockConfig,
    BlockLayout,
    BlockRetention,
    Bytes,
    CacheMode,
    Lease,
    Lookup,
    Placement,
    PrefillFlops,
    PrefixKey,
    RadixStateCache,
    Retention,
)
from kdalab.errors import KdalabError
from kdalab.lab.block_replay import (
    BlockReplayer,
    BlockReplayResult,
    block_config,
    model_layout,
)
from kdalab.lab.cost import CostModel
from kdalab.lab.figures import Comparison, FirstToken, WayFigures
from kdalab.lab.replay import ReplayResult, _Replayer, without_garbage_collection
from kdalab.lab.trace import Requests
from kdalab.memory.counting import CountingPool
from kdalab.spec import ModelSpec, state_sizes
from kdalab.units import format_bytes

ASSUMPTIONS = (
    "hits are whole blocks of {block} tokens of the trace",
    "output tokens have no ids in this trace: decoding is not in these figures and nothing "
    "generated is cached",
    "requests run one after the other, and waiting is in no figure",
    "the budget covers the cache and the running request, on both sides",
    "{copies}",
)


class Ask(NamedTuple):
    """One request: its name in messages, and its key in pages of a given size (tokens)."""

    name: str
    key: Callable[[int], PrefixKey]


def asks_of(trace: Requests) -> Iterator[Ask]:
    """The requests of a trace."""
    for r in trace:
        key = PrefixKey.from_blocks(r.blocks, trace.block_tokens, r.input_tokens)
        yield Ask(f"the request on line {r.line:,}", partial(_same_key, key))


def _same_key(key: PrefixKey, _page: int) -> PrefixKey:
    return key


class RadixWay(_Replayer):
    """SGLang's way. A request's pages and its active state count from its admission on.

    Args:
        donate: a snapshot is the slot itself (``extra_buffer``), so only restores copy.
    """

    def __init__(
        self,
        cache: RadixStateCache,
        placement: Placement,
        budget: int | None = None,
        donate: bool = False,
    ) -> None:
        page, state = cache.page_bytes, cache.checkpoint_bytes
        pool = CountingPool(page, state, budget)
        result = ReplayResult("", "", str(placement), budget, cache.page_tokens, page, state)
        super().__init__(cache, pool, placement, result)
        self.budget, self.donate = budget, donate
        self.private = self.peak = self.snapshots = 0

    def serve_ask(self, ask: Ask) -> Lookup:
        """One request from lookup to release."""
        found = self.serve(ask.key(self.cache.page_tokens))
        self._set_private(0)
        return found

    def admit(self, lease: Lease, n_tokens: int) -> None:
        """Take bytes for what the request will compute into, evicting what they need."""
        pages = -(-(n_tokens - lease.boundary) // self.cache.page_tokens)
        self._set_private(pages * self.cache.page_bytes + self.cache.checkpoint_bytes)
        short = self.pool.missing(0, 0)
        if short:
            self.forget(self.cache.evict(Bytes(either=short)))
        self.peak = max(self.peak, self.pool.used + self.private)

    def commit(self, lease: Lease, key: PrefixKey, boundary: int) -> Lease | None:
        count = (boundary - lease.boundary) // self.cache.page_tokens
        self._set_private(self.private - count * self.cache.page_bytes)
        moved = super().commit(lease, key, boundary)
        self.snapshots += moved is not None
        self.peak = max(self.peak, self.pool.used + self.private)
        return moved

    def _set_private(self, nbytes: int) -> None:
        self.private = nbytes
        if self.budget is not None:
            self.pool.budget = self.budget - nbytes

    @property
    def copies(self) -> int:
        """States copied: out of the tree at a restore, and into it unless slots are donated."""
        return self.result.reads + (0 if self.donate else self.snapshots)

    @property
    def copied_bytes(self) -> int:
        """Bytes of these copies."""
        return self.copies * self.cache.checkpoint_bytes

    def figures(self) -> WayFigures:
        """The account so far."""
        r = self.finish()
        how = "donated" if self.donate else "copied"
        return WayFigures(
            "radix",
            f"pages of {self.cache.page_tokens:,}, states on a grid of {int(self.cache.grid):,}, "
            f"{r.placement}, {self.cache.retention}, {how}",
            hit_tokens=r.hit_tokens,
            known_tokens=r.known_tokens,
            replayed_tokens=r.replayed_tokens,
            states_written=r.states_written,
            states_read=r.reads,
            copies=self.copies,
            copied_bytes=self.copied_bytes,
            held_bytes=self.pool.used,
            peak_bytes=self.peak,
            evicted_states=r.evicted_states,
            evicted_kv_bytes=r.evicted_kv_bytes,
            evicted_state_bytes=r.evicted_state_bytes,
            skipped_states=r.skipped_commits,
        )


class BlockWay(BlockReplayer):
    """vLLM's way."""

    def __init__(
        self, config: BlockConfig, layout: BlockLayout | None = None, chunk: int = 8192
    ) -> None:
        super().__init__(config, BlockReplayResult(""), layout, chunk)

    def serve_ask(self, ask: Ask) -> Lookup:
        """One request from lookup to release."""
        return self.serve(ask.key(self.cache.sizes.unit), ask.name)

    @property
    def copied_bytes(self) -> int:
        """Bytes of copies before a forward."""
        return self.result.copied_bytes

    def figures(self) -> WayFigures:
        """The account so far."""
        r = self.finish()
        groups = max(1, r.state_groups)
        return WayFigures(
            "block",
            f"blocks of {r.block_tokens:,}, hashes of {r.unit_tokens:,}, {r.mode}, "
            f"{r.layout or 'no layout'}, retention {r.retention}, "
            f"{r.state_groups} state group{'s' if r.state_groups != 1 else ''}",
            hit_tokens=r.hit_tokens,
            known_tokens=r.known_tokens,
            replayed_tokens=r.replayed_tokens,
            states_written=-(-r.states_written // groups),
            states_read=r.reads,
            copies=r.copies,
            copied_bytes=r.copied_bytes,
            held_bytes=r.held_bytes,
            padding_bytes=r.padding_bytes,
            unfilled_bytes=r.unfilled_bytes,
            peak_bytes=r.peak_bytes,
            evicted_states=-(-r.evicted_state_blocks // groups),
            evicted_kv_bytes=r.evicted_kv_blocks * r.block_bytes,
            evicted_state_bytes=r.evicted_state_blocks * r.block_bytes,
        )


def compare(
    asks: Iterable[Ask],
    radix: RadixWay,
    block: BlockWay,
    workload: str,
    model: str,
    budget: int | None = None,
    flops: PrefillFlops | None = None,
    cost: CostModel | None = None,
    on_request: Callable[[int], None] | None = None,
    check_every: int = 0,
    on_lookup: Callable[[str, Lookup, Lookup], None] | None = None,
) -> Comparison:
    """Send every request through both ways, one after the other.

    Args:
        flops, cost: what tokens cost, for the time to the first token; both or none.
        check_every: prove both caches' invariants after every so many requests; 0 for never.
        on_lookup: told each request's name and what the tree and the blocks found.

    Raises:
        KdalabError: a request that one of the two cannot hold.
        InvariantError: a check failed.
    """
    found = Comparison(workload, model, budget, radix.figures(), block.figures())
    times: tuple[list[float], list[float]] = ([], [])
    begin = time.perf_counter()
    with without_garbage_collection():
        for done, ask in enumerate(asks, 1):
            copied = radix.copied_bytes, block.copied_bytes
            a, b = radix.serve_ask(ask), block.serve_ask(ask)
            found.note(ask.name, a, b)
            if on_lookup is not None:
                on_lookup(ask.name, a, b)
            if flops is not None and cost is not None:
                moved = radix.copied_bytes - copied[0], block.copied_bytes - copied[1]
                for seconds, look, nbytes in zip(times, (a, b), moved, strict=True):
                    work = flops.between(look.restore, look.n_tokens)
                    seconds.append(cost.seconds(work, nbytes))
            if check_every and done % check_every == 0:
                radix.check()
                block.cache.check()
            if on_request is not None and done % 256 == 0:
                on_request(done)
    for old, figures, seconds in (
        (found.radix, radix.figures(), times[0]),
        (found.block, block.figures(), times[1]),
    ):
        figures.further = old.further
        figures.first_token = FirstToken.of(seconds) if seconds else None
        if figures.way == "radix":
            found.radix = figures
        else:
            found.block = figures
    found.first_token_is = str(cost) if cost is not None else ""
    found.seconds = time.perf_counter() - begin
    return found


def compare_trace(
    trace: Requests,
    spec: ModelSpec,
    budget: int | None,
    placement: Placement,
    retention: Retention,
    cost: CostModel,
    *,
    block: int | None = None,
    unit: int | None = None,
    mode: CacheMode = CacheMode.ALIGN,
    layout: str = "padded",
    block_retention: BlockRetention | None = None,
    donate: bool = False,
    tp_size: int = 1,
    on_request: Callable[[int], None] | None = None,
    check_every: int = 0,
) -> Comparison:
    """Both ways over a trace, with the sizes of ``spec`` on one rank of ``tp_size``.

    ``budget`` is bytes of one rank; None for unlimited. ``unit`` is by default the trace's block,
    where the mode allows hits inside a block.

    Raises:
        KdalabError: a budget in which one request does not fit; options that do not go together.
    """
    fine = trace.block_tokens if unit is None else unit
    if fine < 1 or fine % trace.block_tokens:
        raise KdalabError(
            f"hashes of {fine:,} tokens; the trace names blocks of {trace.block_tokens}, so use a "
            "multiple of that"
        )
    sizes, flops = state_sizes(spec, tp_size=tp_size), PrefillFlops.of(spec)
    page, state = sizes.latent_bytes(trace.block_tokens), sizes.checkpoint_bytes
    if budget is not None:
        _check_radix(trace, budget, page, state)
    grid = trace.block_tokens
    placement.boundaries(grid, 0, None, grid)  # refuses an interval off the grid, before work
    cache = RadixStateCache(grid, grid, page, state, retention.bound(flops, page, state))
    blocks = model_layout(spec, fine, block, layout, tp_size)
    wanted = fine if mode is CacheMode.ALIGN or unit is not None else None
    kept = (block_retention or BlockRetention()).bound(flops, blocks.stride)
    config = block_config(trace, blocks, budget, wanted, mode, kept)
    found = compare(
        asks_of(trace),
        RadixWay(cache, placement, budget, donate),
        BlockWay(config, blocks),
        trace.name,
        spec.name if tp_size == 1 else f"{spec.name}, one rank of {tp_size}",
        budget,
        flops,
        cost,
        on_request,
        check_every,
    )
    copies = "radix snapshots are " + ("donated, not copied" if donate else "copied")
    words = {"block": trace.block_tokens, "copies": copies}
    found.assumptions = tuple(text.format(**words) for text in ASSUMPTIONS)
    found.skipped_lines = trace.n_skipped
    found.skipped_examples = [str(s) for s in trace.skipped]
    return found


def _check_radix(trace: Requests, budget: int, page_bytes: int, state_bytes: int) -> None:
    """Refuse a budget that the largest request and its states do not fit.

    Raises:
        KdalabError: names the request and the smallest budget.
    """
    largest = max(trace, key=lambda r: r.input_tokens)
    pages = -(-largest.input_tokens // trace.block_tokens)
    need = pages * page_bytes + 2 * state_bytes
    if need > budget:
        raise KdalabError(
            f"the request on line {largest.line:,} ({largest.input_tokens:,} tokens) alone needs "
            f"{format_bytes(need)}: its latent KV, its active state and one checkpoint. The budget "
            f"is {format_bytes(budget)}. The smallest budget that works: {need:,} bytes"
        )
