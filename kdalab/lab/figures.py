"""What a comparison of both ways finds: plain data, the same for traces and for real engines."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from kdalab.cache import Lookup


@dataclass(frozen=True, slots=True)
class FirstToken:
    """Seconds to the first token over all requests: mean, median, 95th percentile."""

    mean: float
    median: float
    p95: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> FirstToken:
        """Over ``seconds``, at least one."""
        ordered = sorted(seconds)
        at = min(len(ordered) - 1, round(0.95 * (len(ordered) - 1)))
        return cls(statistics.fmean(ordered), statistics.median(ordered), ordered[at])

    @classmethod
    def middle(cls, runs: Sequence[FirstToken]) -> FirstToken:
        """Of several runs, at least one: each figure's own median, so it lies between theirs."""
        return cls(
            statistics.median(run.mean for run in runs),
            statistics.median(run.median for run in runs),
            statistics.median(run.p95 for run in runs),
        )


@dataclass(slots=True)
class WayFigures:
    """One way's account of a workload. Lengths in tokens, sizes in bytes of one rank.

    ``known_tokens`` had their KV in the cache, ``replayed_tokens`` of them were computed again.
    A state here is one of the whole model: where it stands in several blocks, one for each
    group, ``states_written`` and ``evicted_states`` count it once (blocks / groups, rounded up).
    ``states_read`` counts restores. ``padding_bytes`` and ``unfilled_bytes`` are parts of
    ``held_bytes``, what is held at the end: bytes of no layer, and of KV pages not full.
    ``peak_bytes`` includes the running request. ``further`` counts the requests that this way
    restored further than the other. ``first_token_runs``: where times are measured, those of each
    run; ``first_token`` is their median, figure by figure.
    """

    way: str
    setup: str
    hit_tokens: int = 0
    known_tokens: int = 0
    replayed_tokens: int = 0
    states_written: int = 0
    states_read: int = 0
    copies: int = 0
    copied_bytes: int = 0
    held_bytes: int = 0
    padding_bytes: int = 0
    unfilled_bytes: int = 0
    peak_bytes: int = 0
    evicted_states: int = 0
    evicted_kv_bytes: int = 0
    evicted_state_bytes: int = 0
    skipped_states: int = 0
    further: int = 0
    first_token: FirstToken | None = None
    first_token_runs: tuple[FirstToken, ...] = ()


@dataclass(frozen=True, slots=True)
class Difference:
    """The first request that the two ways restore at different boundaries, and both reasons."""

    request: str
    n_tokens: int
    radix_restore: int
    block_restore: int
    radix_why: tuple[str, ...]
    block_why: tuple[str, ...]


@dataclass(slots=True)
class Comparison:
    """Both accounts of one workload. ``first`` is None where the two always restore alike."""

    workload: str
    model: str
    budget_bytes: int | None
    radix: WayFigures
    block: WayFigures
    requests: int = 0
    input_tokens: int = 0
    same: int = 0
    first: Difference | None = None
    assumptions: tuple[str, ...] = ()
    first_token_is: str = ""
    seconds: float = 0.0
    skipped_lines: int = 0
    skipped_examples: list[str] = field(default_factory=list)

    def note(self, request: str, radix: Lookup, block: Lookup) -> None:
        """Account for one request that both ways have looked up."""
        self.requests += 1
        self.input_tokens += radix.n_tokens
        if radix.restore == block.restore:
            self.same += 1
            return
        ahead = self.radix if radix.restore > block.restore else self.block
        ahead.further += 1
        if self.first is None:
            self.first = Difference(
                request, radix.n_tokens, radix.restore, block.restore, radix.why, block.why
            )

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self)
