"""How densely checkpoints should stand: one trace replayed at every interval, with a budget and
without.

The traces are made up (``kdalab.lab.generate``), the replays are those of ``LiveReplay``: the
cache's own decisions under least recent use. One request is followed through all of them.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from kdalab.cache import PrefillFlops, parse_placement
from kdalab.errors import KdalabError
from kdalab.lab.generate import generated_trace, shape
from kdalab.lab.live import LiveReplay
from kdalab.lab.replay import ReplayResult
from kdalab.spec import preset

DENSITY_REQUESTS = {"agent-like": 300, "chat-like": 800}
"""Requests of each made-up trace, by the name of its preset."""

INTERVALS = (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)
"""Tokens between checkpoints at which every curve is replayed."""


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


def play_density(trace: str, model: str, budget: int, interval: int) -> DensityRun:
    """Replay ``trace`` at every interval, and at ``interval`` tokens.

    Args:
        trace: a name in ``DENSITY_REQUESTS``.
        model: a preset of ``kdalab.spec``.
        budget: bytes for latent KV and checkpoints together.

    Raises:
        KdalabError: no such trace or model, an interval off the trace's blocks, or a budget in
            which one request does not fit.
    """
    live = _live(trace, model)
    curves = _curves(trace, model, budget)
    if interval not in INTERVALS:
        curves = tuple(
            dict(sorted({**curve, interval: _replayed(live, interval, limit)}.items()))
            for curve, limit in zip(curves, (None, budget), strict=True)
        )
    chosen = _followed([curves[1][i] for i in INTERVALS])
    free, tight = (tuple(_point(i, one, chosen) for i, one in c.items()) for c in curves)
    here = [next(p for p in each if p.interval == interval) for each in (free, tight)]
    return DensityRun(
        trace, model, budget, len(live.tokens), sum(live.tokens), live.block, live.checkpoint_bytes,
        live.page_bytes / live.block, chosen + 1, live.tokens[chosen], free, tight,
        (here[0], here[1]), PrefillFlops.of(live.spec),
    )  # fmt: skip


def best_interval(trace: str, model: str, budget: int) -> int:
    """The interval, of ``INTERVALS``, at which most tokens of ``trace`` are restored.

    Raises:
        KdalabError: as ``play_density``.
    """
    curve = _curves(trace, model, budget)[1]
    return max(curve, key=lambda i: (curve[i].result.hit_tokens, i))


@dataclass(frozen=True, slots=True)
class _Replayed:
    """A replay's account, and what each request restored and had the KV of, in tokens."""

    result: ReplayResult
    restored: array[int]
    known: array[int]


@lru_cache(maxsize=4)
def _live(trace: str, model: str) -> LiveReplay:
    if trace not in DENSITY_REQUESTS:
        raise KdalabError(f"trace {trace!r}; use one of {', '.join(DENSITY_REQUESTS)}")
    made = generated_trace(DENSITY_REQUESTS[trace], shape(trace), 0, trace)
    return LiveReplay(made, preset(model))


@lru_cache(maxsize=16)
def _curves(trace: str, model: str, budget: int) -> tuple[dict[int, _Replayed], ...]:
    live = _live(trace, model)
    return {i: _free(trace, model, i) for i in INTERVALS}, {
        i: _replayed(live, i, budget) for i in INTERVALS
    }


@lru_cache(maxsize=64)
def _free(trace: str, model: str, interval: int) -> _Replayed:
    return _replayed(_live(trace, model), interval, None)


def _replayed(live: LiveReplay, interval: int, budget: int | None) -> _Replayed:
    restored: list[int] = []
    known: list[int] = []
    result = live.run(parse_placement(f"every:{interval}"), budget, restored, known)
    return _Replayed(result, array("q", restored), array("q", known))


def _followed(replays: Sequence[_Replayed]) -> int:
    """The request that replays something at the most intervals; of several the one whose restore
    points lie farthest apart, and of those the first."""

    def telling(request: int) -> tuple[int, int]:
        at = [(r.restored[request], r.known[request]) for r in replays]
        starts = [restored for restored, _ in at]
        return sum(0 < a < b for a, b in at), max(starts) - min(starts)

    return max(range(len(replays[0].restored)), key=telling)


def _point(interval: int, one: _Replayed, chosen: int) -> DensityPoint:
    r = one.result
    return DensityPoint(
        interval, r.token_hit_rate, r.kv_only_hit_rate, r.hit_tokens, r.replayed_tokens,
        r.state_bytes, r.kv_bytes, r.peak_bytes, r.states_written, r.states_read_at_least_once,
        r.evicted_states, one.restored[chosen], one.known[chosen],
    )  # fmt: skip
