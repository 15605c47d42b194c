"""What a budget could give at most, and what was found: the yardsticks for a hybrid's policies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from kdalab.cache import Placement, PrefillFlops, Retention, parse_placement
from kdalab.errors import KdalabError
from kdalab.lab.bounds import STEPS, Problem, upper_bound
from kdalab.lab.kv_only import clairvoyant_hits
from kdalab.lab.live import LiveReplay
from kdalab.lab.marconi import tune_alpha
from kdalab.lab.oracle import plan
from kdalab.lab.oracle_run import play_schedule
from kdalab.lab.policies import build_retention, check_retention, is_marconi_auto
from kdalab.lab.replay import replay
from kdalab.lab.trace import Requests
from kdalab.spec import ModelSpec, state_sizes
from kdalab.units import format_apart

PLACEMENTS = ("leaf", "leaf+branch", "every:4096", "every:16384", "all")
RETENTIONS = ("lru-path",)
SEARCH = "the search that knows the future"


@dataclass(frozen=True, slots=True)
class PlacementRow:
    """Tokens restored under one placement: with unlimited memory, and under the budget with the
    least recently used going first."""

    placement: str
    unlimited: int
    lru: int


@dataclass(frozen=True, slots=True)
class PolicyRow:
    """Tokens restored under the budget by one placement with another retention than LRU."""

    placement: str
    retention: str
    tokens: int

    @property
    def name(self) -> str:
        """Both, as they are printed."""
        return f"{self.placement}, {self.retention}"


@dataclass(frozen=True, slots=True)
class Yardsticks:
    """Tokens over the whole trace; sizes in bytes.

    ``known`` were in an earlier prompt, with a token left to compute. ``kv_only`` is what the
    clairvoyant policy hits that keeps latent KV only, in the same bytes. ``bound`` is what no
    policy exceeds, ``found`` what the best schedule found restores: that of the search, or that of
    an ordinary policy where it restores more; ``found_by`` says which. ``peak_bytes`` is what that
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
    found_by: str
    peak_bytes: int
    placements: list[PlacementRow]
    policies: list[PolicyRow]

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
    retentions: Sequence[str] = RETENTIONS,
) -> Yardsticks:
    """All yardsticks for one trace, model and budget.

    Args:
        trace: read three times, and once more for each placement and retention beside LRU.
        budget: bytes for latent KV and checkpoints together.
        placements: text forms, to be replayed beside the yardsticks.
        steps: of the search for the bound; more make it closer.
        retentions: text forms, to be replayed with each placement beside LRU.

    Raises:
        KdalabError: a budget in which one request does not fit; an unknown placement or retention.
    """
    chosen = [parse_placement(p) for p in placements]
    for text in retentions:
        check_retention(text)
    live = LiveReplay(trace, spec)
    if budget < live.smallest_budget:
        need, given = format_apart(live.smallest_budget, budget)
        raise KdalabError(
            f"the longest prompt and one checkpoint need {need}; the budget is {given}. "
            f"Use {live.smallest_budget:,} bytes or more"
        )
    problem = Problem.of(trace, spec)
    bound = upper_bound(problem, budget, steps)
    searched = play_schedule(trace, spec, plan(problem, budget, bound), budget)
    # What an ordinary policy does is a schedule too, under the same budget and in the same account.
    schedules = [(searched.hit_tokens, searched.peak_bytes, SEARCH)]
    rows, policies = [], []
    for p in chosen:
        lru = live.run(p, budget)
        schedules.append((lru.hit_tokens, lru.peak_bytes, f"{p}, lru"))
        rows.append(PlacementRow(str(p), live.run(p).hit_tokens, lru.hit_tokens))
        for text in retentions:
            kept = replay(
                trace, spec, p, budget, retention=_retention(text, trace, spec, p, budget)
            )
            policies.append(PolicyRow(str(p), text, kept.hit_tokens))
            schedules.append((kept.hit_tokens, kept.peak_bytes, policies[-1].name))
    best = max(schedules, key=lambda s: s[0])  # the search, where an ordinary one is no better
    return Yardsticks(
        trace.name,
        spec.name,
        budget,
        problem.tree.n_requests,
        searched.input_tokens,
        bound.known,
        _kv_only(problem, budget),
        bound.tokens,
        best[0],
        best[2],
        best[1],
        rows,
        policies,
    )


def _retention(
    text: str, trace: Requests, spec: ModelSpec, placement: Placement, budget: int
) -> Retention:
    """The retention of that name; Marconi's without an alpha is tuned on the trace."""
    alpha = tune_alpha(trace, spec, placement, budget).alpha if is_marconi_auto(text) else None
    sizes = state_sizes(spec)
    page = sizes.latent_bytes(trace.block_tokens)
    return build_retention(text, PrefillFlops.of(spec), page, sizes.checkpoint_bytes, alpha)


def _kv_only(problem: Problem, budget: int) -> int:
    """Tokens that the clairvoyant policy hits, of those after which one is left to compute."""
    tree, block = problem.tree, problem.tree.block_tokens
    hits = clairvoyant_hits(tree, budget // problem.page_bytes)
    return sum(min(h, (n - 1) // block) * block for h, n in zip(hits, tree.tokens, strict=True))
