"""Marconi's alpha among blocks, tuned by replay; see ``kdalab.lab.tuning``."""

from __future__ import annotations

from dataclasses import replace

from kdalab.cache import (
    BlockConfig,
    BlockLayout,
    BlockRetention,
    CacheMode,
    MarconiOrder,
    PrefillFlops,
    PrefixKey,
    parse_block_retention,
)
from kdalab.cache.marconi import ALPHAS
from kdalab.lab.block_replay import (
    CHUNK_TOKENS,
    BlockReplayer,
    BlockReplayResult,
    block_config,
)
from kdalab.lab.trace import Requests, TraceRequest
from kdalab.lab.tuning import FACTOR, NOTHING_EVICTED, Tuned, is_auto, tune, with_alpha
from kdalab.spec import ModelSpec


def tune_block_alpha(
    trace: Requests,
    config: BlockConfig,
    flops: PrefillFlops,
    factor: int = FACTOR,
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
    return tune(trace, lambda: _Trial(trace, config, flops, chunk), factor, alphas)


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
    auto, flops = is_auto(text), PrefillFlops.of(spec)
    kept = parse_block_retention(with_alpha(text, 0) if auto else text)
    kept = kept.bound(flops, layout.stride)
    if not auto:
        return kept, None
    if budget is None:
        return kept, NOTHING_EVICTED
    tuned = tune_block_alpha(trace, block_config(trace, layout, budget, unit, mode, kept), flops)
    return parse_block_retention(with_alpha(text, tuned.alpha)).bound(flops, layout.stride), tuned


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
