"""What a trace is like: the numbers that a made-up one has to meet.

Reuse is measured with the cache itself, without a limit and with a checkpoint at each prompt's
end: then what it knows of a prompt is all that was ever seen of it. The first prompt whose match
ends exactly where an earlier one ended is that one's *next turn*; any other that knows something
is a *branch* (a shared system prompt, an edit, a second try); one that knows nothing is *fresh*.
"""

from __future__ import annotations

from array import array
from dataclasses import asdict, dataclass
from itertools import pairwise
from statistics import fmean, pstdev
from typing import Any

from kdalab.cache import Checkpoint, PrefixKey, RadixStateCache
from kdalab.lab.request import Requests
from kdalab.lab.run import without_garbage_collection


@dataclass(frozen=True, slots=True)
class Spread:
    """Mean and quantiles (nearest rank) of many numbers."""

    n: int
    mean: float
    p10: float
    p50: float
    p90: float
    p95: float
    max: float

    @classmethod
    def of(cls, values: array[float]) -> Spread:
        """Of any numbers; zeros when there is none."""
        if not values:
            return cls(0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
        ordered = sorted(values)
        n = len(ordered)

        def at(percent: int) -> float:
            return ordered[max(0, -(-percent * n // 100) - 1)]

        return cls(n, fmean(ordered), at(10), at(50), at(90), at(95), ordered[-1])


@dataclass(frozen=True, slots=True)
class TraceStats:
    """Lengths in tokens, times in seconds, shares 0 to 1.

    ``known_share`` is the hit rate of latent KV without any limit. ``turn`` counts the requests
    of a conversation up to each request; ``added`` is what a next turn brings beyond the prompt
    before it, ``think`` the time between the two arrivals; ``branch_at`` is how far a branch knows
    its prompt, ``fresh_input`` the length of a fresh one. ``arrival_cv`` is the coefficient of
    variation of the times between arrivals (1: Poisson).
    """

    name: str
    block_tokens: int
    requests: int
    seconds: float
    rate: float
    arrival_cv: float
    input_tokens: int
    output_tokens: int
    known_share: float
    distinct_blocks: int
    nodes: int
    next_turns: float
    branches: float
    fresh: float
    input: Spread
    output: Spread
    turn: Spread
    added: Spread
    think: Spread
    branch_at: Spread
    fresh_input: Spread

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self)

    def rows(self) -> list[tuple[str, str]]:
        """For people: (what, value)."""

        def spread(s: Spread, scale: float = 1.0) -> str:
            if not s.n:
                return "none"
            return " / ".join(f"{v * scale:,.0f}" for v in (s.p50, s.mean, s.p95, s.max))

        return [
            ("requests", f"{self.requests:,}"),
            ("seconds", f"{self.seconds:,.0f}"),
            ("requests a second", f"{self.rate:.3f}"),
            ("arrivals: coefficient of variation", f"{self.arrival_cv:.2f}"),
            ("prompt tokens", f"{self.input_tokens:,}"),
            ("known before (KV, no limit)", f"{self.known_share:.1%}"),
            ("distinct blocks", f"{self.distinct_blocks:,}"),
            ("next turns of an earlier prompt", f"{self.next_turns:.1%}"),
            ("branches off an earlier prompt", f"{self.branches:.1%}"),
            ("fresh prompts", f"{self.fresh:.1%}"),
            ("prompt, tokens: median / mean / p95 / max", spread(self.input)),
            ("output, tokens", spread(self.output)),
            ("turn of a conversation", spread(self.turn)),
            ("a next turn adds, tokens", spread(self.added)),
            ("seconds between turns", spread(self.think)),
            ("a branch knows, tokens", spread(self.branch_at)),
            ("a fresh prompt, tokens", spread(self.fresh_input)),
        ]


def trace_stats(trace: Requests) -> TraceStats:
    """Statistics of a trace, read once. Memory grows with distinct prompts, not with blocks.

    Raises:
        KdalabError: the trace cannot be read, or holds no request.
    """
    seen = _Seen(trace.block_tokens)
    with without_garbage_collection():
        for r in trace:
            seen.add(r.timestamp_ms / 1000.0, r.input_tokens, r.output_tokens, r.blocks)
    return seen.stats(trace.name)


class _Seen:
    def __init__(self, block: int) -> None:
        self.block = block
        self.cache = RadixStateCache(block, block)
        self.ends: dict[int, tuple[int, float]] = {}  # node of a prompt's end -> turn, time
        self.times, self.inputs, self.outputs = array("d"), array("d"), array("d")
        self.turns, self.added, self.think = array("d"), array("d"), array("d")
        self.branch_at, self.fresh_input = array("d"), array("d")
        self.known = self.slots = 0

    def add(self, at: float, n_in: int, n_out: int, blocks: array[int]) -> None:
        cache, block = self.cache, self.block
        self.times.append(at)
        self.inputs.append(n_in)
        self.outputs.append(n_out)
        key = PrefixKey.from_blocks(blocks, block, n_in)
        found = cache.lookup(key)
        match = found.token_match
        self.known += match
        turn, before = 1, None
        if match and found.path:
            before = self.ends.get(found.path[-1])
            if before is not None and cache.nodes[found.path[-1]].end == match:
                turn = before[0] + 1
                del self.ends[found.path[-1]]  # a conversation goes on in one line
                self.added.append(n_in - match)
                self.think.append(at - before[1])
            else:
                before = None
                self.branch_at.append(match)
        else:
            self.fresh_input.append(n_in)
        self.turns.append(turn)
        lease = cache.acquire(found)
        end = n_in // block * block
        if end > lease.boundary:
            count = (end - lease.boundary) // block
            pages = range(self.slots, self.slots + count)
            self.slots += count
            lease = cache.commit(lease, key, pages, Checkpoint(len(self.times), end)).lease
        if end > match:
            self.ends[lease.node] = (turn, at)
        cache.release(lease)

    def stats(self, name: str) -> TraceStats:
        times, n = self.times, len(self.times)
        seconds = times[-1] - times[0] if n else 0.0
        gaps = [b - a for a, b in pairwise(times)]
        mean = fmean(gaps) if gaps else 0.0
        total = int(sum(self.inputs))
        return TraceStats(
            name,
            self.block,
            n,
            seconds,
            n / seconds if seconds else 0.0,
            pstdev(gaps) / mean if mean else 0.0,
            total,
            int(sum(self.outputs)),
            self.known / total if total else 0.0,
            self.cache.cached_pages,
            len(self.cache.nodes) - 1,
            len(self.added) / n if n else 0.0,
            len(self.branch_at) / n if n else 0.0,
            len(self.fresh_input) / n if n else 0.0,
            Spread.of(self.inputs),
            Spread.of(self.outputs),
            Spread.of(self.turns),
            Spread.of(self.added),
            Spread.of(self.think),
            Spread.of(self.branch_at),
            Spread.of(self.fresh_input),
        )
