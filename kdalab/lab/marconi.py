"""Tuning alpha of the FLOP-aware order by replay, as Marconi does.

The cache begins with alpha 0. At its first eviction ``w`` requests have been seen; the next
``factor * w`` are replayed from there under every alpha, and the one that saves the most FLOPs
stays. A replay is deterministic, so each trial gets to the first eviction by running the same
requests again instead of copying the tree.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

from kdalab.cache import Placement, RadixStateCache, Retention, parse_retention
from kdalab.cache.flops import PrefillFlops
from kdalab.cache.marconi import ALPHAS, MarconiOrder, best_alpha
from kdalab.errors import KdalabError
from kdalab.lab.replay import ReplayResult, _Replayer, check_budget
from kdalab.lab.trace import Requests, TraceRequest
from kdalab.memory.counting import CountingPool
from kdalab.spec import ModelSpec, state_sizes


@dataclass(frozen=True, slots=True)
class Tuned:
    """The choice, and what it rests on. ``saved`` are FLOPs in the window for every alpha tried;
    without an eviction there is nothing to choose, alpha is 0 and the window empty."""

    alpha: float
    first_eviction: int
    window: int
    saved: dict[float, int]


def tune_alpha(
    trace: Requests,
    spec: ModelSpec,
    placement: Placement,
    budget: int,
    factor: int = 5,
    alphas: tuple[float, ...] = ALPHAS,
) -> Tuned:
    """The best alpha for ``trace`` under ``budget`` bytes.

    Args:
        factor: length of the window, in requests seen before the first eviction (paper: 5 to 15).

    Raises:
        KdalabError: a factor below 1; a budget in which one request does not fit.
    """
    if factor < 1:
        raise KdalabError(f"a window of {factor} times the requests so far; use 1 or more")
    sizes = state_sizes(spec)
    page_bytes = sizes.latent_bytes(trace.block_tokens)
    check_budget(trace, budget, page_bytes, sizes.checkpoint_bytes)
    first = _Trial(trace, spec, placement, budget)
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
        run = _Trial(trace, spec, placement, budget)
        for request in warm:
            run.serve(request)
        run.order.alpha = alpha
        saved[alpha] = sum(run.serve(request) for request in window)
        return saved[alpha]

    return Tuned(best_alpha(trial, alphas), len(warm), len(window), saved)


def tuned_retention(
    text: str, trace: Requests, spec: ModelSpec, placement: Placement, budget: int | None
) -> tuple[Retention, Tuned | None]:
    """The retention of a text form; for ``marconi:auto`` (also with ``+cap:N``) the alpha that
    :func:`tune_alpha` finds on ``trace``, and what that choice rests on.

    Raises:
        KdalabError: an unknown form; as ``tune_alpha``.
    """
    name, plus, rest = text.strip().lower().partition("+")
    if name != "marconi:auto":
        return parse_retention(text), None
    kept = parse_retention(f"marconi:0{plus}{rest}")  # refuses a wrong cap before the work
    if budget is None:
        return kept, Tuned(0.0, 0, 0, {})  # nothing is ever evicted
    tuned = tune_alpha(trace, spec, placement, budget)
    return parse_retention(f"marconi:{tuned.alpha:g}{plus}{rest}"), tuned


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
