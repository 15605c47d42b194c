"""Marconi's alpha for a tree, tuned by replay; see ``kdalab.lab.tuning``."""

from __future__ import annotations

from kdalab.cache import Placement, RadixStateCache, Retention, parse_retention
from kdalab.cache.flops import PrefillFlops
from kdalab.cache.marconi import ALPHAS, MarconiOrder
from kdalab.lab.replay import ReplayResult, _Replayer, check_budget
from kdalab.lab.trace import Requests, TraceRequest
from kdalab.lab.tuning import FACTOR, NOTHING_EVICTED, Tuned, is_auto, tune, with_alpha
from kdalab.memory.counting import CountingPool
from kdalab.spec import ModelSpec, state_sizes


def tune_alpha(
    trace: Requests,
    spec: ModelSpec,
    placement: Placement,
    budget: int,
    factor: int = FACTOR,
    alphas: tuple[float, ...] = ALPHAS,
) -> Tuned:
    """The best alpha for ``trace`` under ``budget`` bytes.

    Args:
        factor: length of the window, in requests seen before the first eviction (paper: 5 to 15).

    Raises:
        KdalabError: a factor below 1; a budget in which one request does not fit.
    """
    sizes = state_sizes(spec)
    page_bytes = sizes.latent_bytes(trace.block_tokens)
    check_budget(trace, budget, page_bytes, sizes.checkpoint_bytes)
    return tune(trace, lambda: _Trial(trace, spec, placement, budget), factor, alphas)


def tuned_retention(
    text: str, trace: Requests, spec: ModelSpec, placement: Placement, budget: int | None
) -> tuple[Retention, Tuned | None]:
    """The retention of a text form; for ``marconi:auto`` (also with ``+cap:N``) the alpha that
    :func:`tune_alpha` finds on ``trace``, and what that choice rests on.

    Raises:
        KdalabError: an unknown form; as ``tune_alpha``.
    """
    if not is_auto(text):
        return parse_retention(text), None
    kept = parse_retention(with_alpha(text, 0))  # refuses a wrong cap before the work
    if budget is None:
        return kept, NOTHING_EVICTED
    tuned = tune_alpha(trace, spec, placement, budget)
    return parse_retention(with_alpha(text, tuned.alpha)), tuned


class _Trial:
    """One replay under a ``MarconiOrder`` whose alpha may change on the way."""

    def __init__(self, trace: Requests, spec: ModelSpec, placement: Placement, budget: int) -> None:
        block, sizes = trace.block_tokens, state_sizes(spec)
        page, state = sizes.latent_bytes(block), sizes.checkpoint_bytes
        self.flops = PrefillFlops.of(spec)
        self.order = MarconiOrder(self.flops, page, state, alpha=0.0)
        cache = RadixStateCache(block, block, page, state, Retention(self.order))
        result = ReplayResult(trace.name, spec.name, str(placement), budget, block, page, state)
        self.run = _Replayer(cache, CountingPool(page, state, budget), placement, result)

    @property
    def evicted(self) -> bool:
        return bool(self.run.result.evicted_kv_bytes or self.run.result.evicted_state_bytes)

    def serve(self, request: TraceRequest) -> int:
        """FLOPs that the restored prefix saved."""
        before = self.run.result.hit_tokens
        self.run.request(request)
        return self.flops.between(0, self.run.result.hit_tokens - before)
