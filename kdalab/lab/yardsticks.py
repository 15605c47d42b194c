"""What a budget could give at most, and what was found: the yardsticks for a hybrid's policies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from kdalab.cache import parse_placement
from kdalab.errors import KdalabError
from kdalab.lab.bounds import STEPS, Problem, upper_bound
from kdalab.lab.kv_only import clairvoyant_hits
from kdalab.lab.live import LiveReplay
from kdalab.lab.oracle import plan
from kdalab.lab.oracle_run import play_schedule
from kdalab.lab.trace import Requests
from kdalab.spec import ModelSpec
from kdalab.units import format_bytes

PLACEMENTS = ("leaf", "leaf+branch", "every:4096", "every:16384", "all")


@dataclass(frozen=True, slots=True)
class PlacementRow:
    """Tokens restored under one placement: with unlimited memory, and under the budget with the
    least recently used going first."""

    placement: str
    unlimited: int
    lru: int


@dataclass(frozen=True, slots=True)
class Yardsticks:
    """Tokens over the whole trace; sizes in bytes.

    ``known`` were in an earlier prompt, with a token left to compute. ``kv_only`` is what the
    clairvoyant policy hits that keeps latent KV only, in the same bytes. ``bound`` is what no
    policy exceeds, ``found`` what the best schedule found restores. ``peak_bytes`` is what that
    schedule holds at most.
    """

    trace: str
    model: str
    budget: int
    requests: int
    input_tokens: int
    known: int
    kv_only: int
    bound: int
    found: int
    peak_bytes: int
    placements: list[PlacementRow]

    @property
    def gap(self) -> int:
        """Tokens between the bound and the best schedule found: how much is not known."""
        return self.bound - self.found

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {**asdict(self), "gap": self.gap}


def yardsticks(
    trace: Requests,
    spec: ModelSpec,
    budget: int,
    placements: Sequence[str] = PLACEMENTS,
    steps: int = STEPS,
) -> Yardsticks:
    """All yardsticks for one trace, model and budget.

    Args:
        trace: read three times.
        budget: bytes for latent KV and checkpoints together.
        placements: text forms, to be replayed beside the yardsticks.
        steps: of the search for the bound; more make it closer.

    Raises:
        KdalabError: a budget in which one request does not fit; an unknown placement.
    """
    chosen = [parse_placement(p) for p in placements]
    live = LiveReplay(trace, spec)
    if budget < live.smallest_budget:
        raise KdalabError(
            f"the longest prompt and one checkpoint need {format_bytes(live.smallest_budget)}; "
            f"the budget is {format_bytes(budget)}. Use {live.smallest_budget:,} bytes or more"
        )
    problem = Problem.of(trace, spec)
    bound = upper_bound(problem, budget, steps)
    found = play_schedule(trace, spec, plan(problem, budget, bound), budget)
    rows = [
        PlacementRow(str(p), live.run(p).hit_tokens, live.run(p, budget).hit_tokens) for p in chosen
    ]
    best = max([found.hit_tokens, *(r.lru for r in rows)])
    return Yardsticks(
        trace.name,
        spec.name,
        budget,
        problem.tree.n_requests,
        found.input_tokens,
        bound.known,
        _kv_only(problem, budget),
        bound.tokens,
        best,
        found.peak_bytes,
        rows,
    )


def _kv_only(problem: Problem, budget: int) -> int:
    """Tokens that the clairvoyant policy hits, of those after which one is left to compute."""
    tree, block = problem.tree, problem.tree.block_tokens
    hits = clairvoyant_hits(tree, budget // problem.page_bytes)
    return sum(min(h, (n - 1) // block) * block for h, n in zip(hits, tree.tokens, strict=True))
