"""How densely checkpoints should stand: one trace replayed at every interval, with a budget and
without.

The built-in traces are made up (``kdalab.lab.generate``), others are a reader's own; the replays
are those of ``LiveReplay``: the cache's own decisions under least recent use. One request is
followed through all of them.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from threading import RLock

import numpy as np

from kdalab.cache import PrefillFlops, parse_placement
from kdalab.errors import KdalabError
from kdalab.lab.generate import generated_trace, shape
from kdalab.lab.live import LiveReplay
from kdalab.lab.replay import ReplayResult
from kdalab.lab.request import Trace
from kdalab.spec import ModelSpec, preset

DENSITY_REQUESTS = {"agent-like": 300, "chat-like": 800}
"""Requests of each made-up trace, by the name of its preset."""

INTERVALS = (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)
"""Tokens between checkpoints at which every curve is replayed, where the trace's blocks allow."""


@dataclass(frozen=True, slots=True)
class DensityPoint:
    """One replay of the whole trace, and what the followed request got in it.

    Shares are of all prompt tokens, 0 to 1; sizes in bytes at the end of the trace, ``peak_bytes``
    the most in use. ``restore`` and ``match`` are boundaries of the followed request in tokens.
    """

    interval: int
    hit_share: float
    known_share: float
    hit_tokens: int
    replayed_tokens: int
    state_bytes: int
    kv_bytes: int
    peak_bytes: int
    states_written: int
    states_read: int
    evicted_states: int
    restore: int
    match: int


@dataclass(frozen=True, slots=True)
class DensityRun:
    """Every interval of one trace, model and budget. ``free`` are the replays without a budget,
    ``tight`` those within ``budget`` bytes, both by interval; ``here`` is the chosen one in both.

    ``request`` is the followed request (counted from 1), ``n_tokens`` its prompt's length: of all
    requests it replays something at the most intervals. FLOPs are of the prefill.
    """

    trace: str
    model: str
    budget: int
    requests: int
    input_tokens: int
    block_tokens: int
    checkpoint_bytes: int
    token_bytes: float
    request: int
    n_tokens: int
    free: tuple[DensityPoint, ...]
    tight: tuple[DensityPoint, ...]
    here: tuple[DensityPoint, DensityPoint]
    flops: PrefillFlops

    @property
    def best(self) -> DensityPoint:
        """The interval, of those in ``tight``, at which most tokens were restored."""
        return max(self.tight, key=lambda p: (p.hit_share, p.interval))


def play_density(trace: str | DensityReplays, model: str, budget: int, interval: int) -> DensityRun:
    """Replay a trace at every interval, and at ``interval`` tokens.

    Args:
        trace: a name in ``DENSITY_REQUESTS``, or the replays of a trace (of ``model``).
        model: a preset of ``kdalab.spec``.
        budget: bytes for latent KV and checkpoints together.
        interval: rounded up to whole blocks of the trace.

    Raises:
        KdalabError: no such trace or model, or a budget in which one request does not fit.
    """
    replays = _built_in(trace, model) if isinstance(trace, str) else trace
    live, block = replays.live, replays.live.block
    interval = -(-interval // block) * block
    free, tight, chosen = replays.curves(budget)
    if interval not in replays.intervals:
        free = dict(sorted({**free, interval: replays.free(interval)}.items()))
        tight = dict(sorted({**tight, interval: replays.within(budget, interval)}.items()))
    points = [tuple(_point(i, one, chosen) for i, one in c.items()) for c in (free, tight)]
    here = [next(p for p in each if p.interval == interval) for each in points]
    return DensityRun(
        trace if isinstance(trace, str) else live.trace.name, model, budget, len(live.tokens),
        sum(live.tokens), block,
        live.checkpoint_bytes, live.page_bytes / block, chosen + 1, live.tokens[chosen],
        points[0], points[1], (here[0], here[1]), PrefillFlops.of(live.spec),
    )  # fmt: skip


def best_interval(trace: str, model: str, budget: int) -> int:
    """The interval, of ``INTERVALS``, at which most tokens of a built-in trace are restored.

    Raises:
        KdalabError: as ``play_density``.
    """
    curve = _built_in(trace, model).curves(budget)[1]
    return max(curve, key=lambda i: (curve[i].result.hit_tokens, i))


@dataclass(frozen=True, slots=True)
class _Replayed:
    """A replay's account, and what each request restored and had the KV of, in tokens."""

    result: ReplayResult
    restored: array[int]
    known: array[int]


class DensityReplays:
    """One trace with one model's sizes, and the replays of it that were made: those without a
    budget, and those within the last few budgets. Threads take turns.

    Args:
        trace: of at least one request.
        begin: called before each replay; what it raises ends the run, and leaves what is made.
    """

    BUDGETS = 4

    def __init__(
        self, trace: Trace, spec: ModelSpec, begin: Callable[[], None] = lambda: None
    ) -> None:
        self.live, self._begin = LiveReplay(trace, spec), begin
        block = self.live.block
        fitting = tuple(i for i in INTERVALS if i % block == 0)
        self.intervals = fitting if len(fitting) > 3 else tuple(block << n for n in range(8))
        self._free: dict[int, _Replayed] = {}
        self._within: OrderedDict[int, tuple[dict[int, _Replayed], int]] = OrderedDict()
        self._lock = RLock()

    def curves(self, budget: int) -> tuple[dict[int, _Replayed], dict[int, _Replayed], int]:
        """Without and within a budget, by interval; and the request (from 0) to follow.

        Raises:
            KdalabError: a budget in which one request does not fit.
        """
        with self._lock:
            if budget not in self._within:
                tight = {i: self.within(budget, i) for i in self.intervals}
                self._within[budget] = tight, _followed(list(tight.values()))
                while len(self._within) > self.BUDGETS:
                    self._within.popitem(last=False)
            self._within.move_to_end(budget)
            tight, chosen = self._within[budget]
            return {i: self.free(i) for i in self.intervals}, dict(tight), chosen

    def free(self, interval: int) -> _Replayed:
        """One replay without a budget; those of the curve are kept."""
        with self._lock:
            if interval in self._free:
                return self._free[interval]
            made = self._replayed(interval, None)
            if interval in self.intervals:
                self._free[interval] = made
            return made

    def within(self, budget: int, interval: int) -> _Replayed:
        """One replay within a budget."""
        return self._replayed(interval, budget)

    def _replayed(self, interval: int, budget: int | None) -> _Replayed:
        self._begin()
        restored: list[int] = []
        known: list[int] = []
        result = self.live.run(parse_placement(f"every:{interval}"), budget, restored, known)
        return _Replayed(result, array("q", restored), array("q", known))


@lru_cache(maxsize=8)
def _built_in(trace: str, model: str) -> DensityReplays:
    if trace not in DENSITY_REQUESTS:
        raise KdalabError(f"trace {trace!r}; use one of {', '.join(DENSITY_REQUESTS)}")
    made = generated_trace(DENSITY_REQUESTS[trace], shape(trace), 0, trace)
    return DensityReplays(made, preset(model))


def _followed(replays: Sequence[_Replayed]) -> int:
    """The request that replays something at the most intervals; of several the one whose restore
    points lie farthest apart, and of those the first."""
    restored = np.array([np.frombuffer(r.restored, np.int64) for r in replays])
    known = np.array([np.frombuffer(r.known, np.int64) for r in replays])
    telling = ((restored > 0) & (restored < known)).sum(axis=0)
    apart = restored.max(axis=0) - restored.min(axis=0)
    best = np.flatnonzero(telling == telling.max())
    return int(best[np.argmax(apart[best])])


def _point(interval: int, one: _Replayed, chosen: int) -> DensityPoint:
    r = one.result
    return DensityPoint(
        interval, r.token_hit_rate, r.kv_only_hit_rate, r.hit_tokens, r.replayed_tokens,
        r.state_bytes, r.kv_bytes, r.peak_bytes, r.states_written, r.states_read_at_least_once,
        r.evicted_states, one.restored[chosen], one.known[chosen],
    )  # fmt: skip
