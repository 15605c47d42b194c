"""Tuning alpha of the FLOP-aware order among blocks, by replay; see ``kdalab.lab.marconi``."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

from kdalab.cache import (
    BlockConfig,
    BlockLayout,
    BlockRetention,
    CacheMode,
    MarconiOrder,
    PrefillFlops,
    PrefixKey,
    best_alpha,
    parse_block_retention,
)
from kdalab.cache.marconi import ALPHAS
from kdalab.errors import KdalabError
from kdalab.lab.block_replay import (
    CHUNK_TOKENS,
    BlockReplayer,
    BlockReplayResult,
    block_config,
)
from kdalab.lab.marconi import Tuned
from kdalab.lab.replay import without_garbage_collection
from kdalab.lab.trace import Requests, TraceRequest
from kdalab.spec import ModelSpec


def tune_block_alpha(
    trace: Requests,
    config: BlockConfig,
    flops: PrefillFlops,
    factor: int = 5,
    alphas: tuple[float, ...] = ALPHAS,
    chunk: int = CHUNK_TOKENS,
) -> Tuned:
    """The best alpha for ``trace`` in the blocks of ``config``, whatever its own order is.

    Args:
        factor: length of the window, in requests seen before the first eviction (paper: 5 to 15).
        chunk: tokens that a step computes at most.

    Raises:
        KdalabError: a factor below 1; the pool cannot hold one request.
    """
    if factor < 1:
        raise KdalabError(f"a window of {factor} times the requests so far; use 1 or more")
    with without_garbage_collection():
        first = _Trial(trace, config, flops, chunk)
        warm: list[TraceRequest] = []
        for request in trace:
            warm.append(request)
            first.serve(request)
            if first.evicted:
                break
        if not first.evicted:
            return Tuned(0.0, len(warm), 0, {})
        window = list(islice(trace, len(warm), len(warm) * (1 + factor)))
        saved: dict[float, int] = {}

        def trial(alpha: float) -> float:
            run = _Trial(trace, config, flops, chunk)
            for request in warm:
                run.serve(request)
            run.order.alpha = alpha
            saved[alpha] = sum(run.serve(request) for request in window)
            return saved[alpha]

        return Tuned(best_alpha(trial, alphas), len(warm), len(window), saved)


def tuned_block_retention(
    text: str,
    trace: Requests,
    spec: ModelSpec,
    layout: BlockLayout,
    budget: int | None,
    unit: int | None,
    mode: CacheMode,
) -> tuple[BlockRetention, Tuned | None]:
    """The retention of a text form, told what ``spec`` and ``layout`` cost; for ``marconi:auto``
    (also with ``+0`` and the like) with the alpha that tuning finds, and what that rests on.

    Raises:
        KdalabError: an unknown form; a budget in which one request does not fit.
    """
    name, plus, rest = text.strip().lower().partition("+")
    auto = name == "marconi:auto"
    kept = parse_block_retention(f"marconi:0{plus}{rest}" if auto else text)
    flops = PrefillFlops.of(spec)
    kept = kept.bound(flops, layout.stride)
    if not auto:
        return kept, None
    if budget is None:
        return kept, Tuned(0.0, 0, 0, {})  # nothing is ever evicted
    tuned = tune_block_alpha(trace, block_config(trace, layout, budget, unit, mode, kept), flops)
    order = MarconiOrder(flops, layout.stride, layout.stride, tuned.alpha)
    return replace(kept, order=order), tuned


class _Trial:
    """One replay under an order of its own, whose alpha may change on the way."""

    def __init__(
        self, trace: Requests, config: BlockConfig, flops: PrefillFlops, chunk: int
    ) -> None:
        size = config.block_bytes
        self.flops, self.block_tokens = flops, trace.block_tokens
        self.order = MarconiOrder(flops, size, size, alpha=0.0)
        kept = replace(config.retention, order=self.order)
        result = BlockReplayResult(trace.name)
        self.run = BlockReplayer(replace(config, retention=kept), result, None, chunk)

    @property
    def evicted(self) -> bool:
        return bool(self.run.result.evicted_kv_blocks or self.run.result.evicted_state_blocks)

    def serve(self, request: TraceRequest) -> int:
        """FLOPs that the restored prefix saved."""
        key = PrefixKey.from_blocks(request.blocks, self.block_tokens, request.input_tokens)
        found = self.run.serve(key, f"the request on line {request.line:,}")
        return self.flops.between(0, found.restore)
