"""Tuning alpha of the FLOP-aware order by replay, as Marconi does; for a tree and for blocks alike.

The cache begins with alpha 0. At its first eviction ``w`` requests have been seen; the next
``factor * w`` are replayed from there under every alpha, and the one that saves the most FLOPs
stays. A replay is deterministic, so each trial gets to the first eviction by running the same
requests again instead of copying the cache.

The window is the trace's beginning, and alpha is chosen once: it is the best for what came first,
which need not be what comes later. Alpha 0, least recent use, is one of those tried.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from kdalab.cache.marconi import ALPHAS, MarconiOrder, best_alpha
from kdalab.errors import KdalabError
from kdalab.lab.replay import without_garbage_collection
from kdalab.lab.trace import Requests, TraceRequest

FACTOR = 5
"""Length of the window, in requests seen before the first eviction (paper: 5 to 15)."""


@dataclass(frozen=True, slots=True)
class Tuned:
    """The choice, and what it rests on. ``saved`` are FLOPs in the window for every alpha tried;
    without an eviction there is nothing to choose, alpha is 0 and the window empty."""

    alpha: float
    first_eviction: int
    window: int
    saved: dict[float, int]


NOTHING_EVICTED = Tuned(0.0, 0, 0, {})
"""Of a memory without a limit."""


class Trial(Protocol):
    """A replay from an empty cache, under an order of its own whose alpha may change on the way."""

    order: MarconiOrder

    @property
    def evicted(self) -> bool:
        """Has anything been evicted?"""
        ...

    def serve(self, request: TraceRequest) -> int:
        """FLOPs that the restored prefix saved."""
        ...


def tune(
    trace: Requests,
    new: Callable[[], Trial],
    factor: int = FACTOR,
    alphas: tuple[float, ...] = ALPHAS,
) -> Tuned:
    """The best alpha for ``trace`` in the cache that ``new`` makes, with alpha 0.

    Raises:
        KdalabError: a factor below 1; a request for which the cache has no room.
    """
    if factor < 1:
        raise KdalabError(f"a window of {factor} times the requests so far; use 1 or more")
    with without_garbage_collection():
        first = new()
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
            run = new()
            for request in warm:
                run.serve(request)
            run.order.alpha = alpha
            saved[alpha] = sum(run.serve(request) for request in window)
            return saved[alpha]

        return Tuned(best_alpha(trial, alphas), len(warm), len(window), saved)


def is_auto(text: str) -> bool:
    """Is this ``marconi:auto``, also with what may follow a plus?"""
    return text.strip().lower().partition("+")[0] == "marconi:auto"


def with_alpha(text: str, alpha: float) -> str:
    """The same form of ``marconi:auto`` with a number in its place."""
    _, plus, rest = text.strip().lower().partition("+")
    return f"marconi:{alpha:g}{plus}{rest}"
