"""The upper bound and the schedule against every schedule there is, on small cases."""

from __future__ import annotations

from array import array
from itertools import combinations, pairwise

import numpy as np
import pytest
from drawn_traces import traces
from hypothesis import given, settings
from hypothesis import strategies as st

from kdalab.cache import parse_placement, parse_retention
from kdalab.errors import KdalabError
from kdalab.lab import Trace, TraceRequest, replay, synthetic_trace
from kdalab.lab.bounds import Problem, _relaxed, upper_bound
from kdalab.lab.live import LiveReplay
from kdalab.lab.oracle import _add, _uncovered, plan
from kdalab.lab.oracle_run import play_schedule
from kdalab.lab.yardsticks import SEARCH, Yardsticks, yardsticks
from kdalab.spec import preset

SPEC = preset("kimi-k3")
# A block of 8,192 tokens weighs half a checkpoint of Kimi K3, one of 32,768 twice as much.
SMALL = st.sampled_from([2048, 8192, 32768]).flatmap(
    lambda block: traces(block=block, max_requests=7, max_new=3)
)
Prefix = tuple[int, ...]


def optimum(trace: Trace, page: int, state: int, budget: int) -> int:
    """Tokens that the best of all schedules restores: after each request any of the states that
    are there or that it computed past may stay, with the blocks above them, within the budget."""
    best: dict[frozenset[Prefix], int] = {frozenset(): 0}
    for r in trace:
        ids = tuple(r.blocks[: r.input_tokens // trace.block_tokens])
        usable = (r.input_tokens - 1) // trace.block_tokens
        after: dict[frozenset[Prefix], int] = {}
        for held, tokens in best.items():
            on_path = [len(s) for s in held if s == ids[: len(s)] and len(s) <= usable]
            restore = max(on_path, default=0)
            gained = tokens + restore * trace.block_tokens
            pool = held | {ids[:n] for n in range(restore + 1, len(ids) + 1)}
            for size in range(len(pool) + 1):
                if size * state > budget:
                    break
                for kept in combinations(sorted(pool), size):
                    blocks = {s[:n] for s in kept for n in range(1, len(s) + 1)}
                    if len(blocks) * page + size * state <= budget:
                        key = frozenset(kept)
                        after[key] = max(after.get(key, -1), gained)
        best = after
    return max(best.values())


@settings(max_examples=120, deadline=None)
@given(SMALL, st.floats(1.0, 3.0))
def test_schedule_below_optimum_below_bound(trace: Trace, factor: float) -> None:
    problem = Problem.of(trace, SPEC)
    budget = int(factor * LiveReplay(trace, SPEC).smallest_budget)
    best = optimum(trace, problem.page_bytes, problem.state_bytes, budget)
    bound = upper_bound(problem, budget, steps=40)
    schedule = plan(problem, budget, bound)
    found = play_schedule(trace, SPEC, schedule, budget, check_every=1)
    assert schedule.planned <= bound.tokens, "what is planned fits every gap"
    assert found.hit_tokens <= best <= bound.tokens <= bound.known
    assert found.peak_bytes <= budget
    for name in ("all", f"every:{2 * trace.block_tokens}", "leaf", "leaf+branch", "branch"):
        for kept in ("lru", "lru-path", "lru+cap:1"):
            r = replay(trace, SPEC, parse_placement(name), budget, retention=parse_retention(kept))
            assert r.hit_tokens <= best, (name, kept)


@settings(max_examples=40, deadline=None)
@given(SMALL, st.integers(0, 2**32 - 1), st.floats(0.5, 3.0), st.integers(-6, 0))
def test_any_prices_give_a_bound(trace: Trace, seed: int, factor: float, power: int) -> None:
    problem = Problem.of(trace, SPEC)
    budget = int(factor * LiveReplay(trace, SPEC).smallest_budget)
    if not len(problem.choices.request):
        return
    n, block = problem.tree.n_requests, trace.block_tokens
    prices = np.random.default_rng(seed).exponential(block * 10.0**power, n)
    state, room = problem.state_bytes / problem.page_bytes, budget / problem.page_bytes
    gain, _ = _relaxed(problem.choices, prices, state, block)
    best = optimum(trace, problem.page_bytes, problem.state_bytes, budget)
    assert best <= (room * prices.sum() + gain) * (1 + 1e-9)


@settings(max_examples=40, deadline=None)
@given(SMALL)
def test_the_prices_that_are_returned_prove_the_bound(trace: Trace) -> None:
    problem = Problem.of(trace, SPEC)
    budget = LiveReplay(trace, SPEC).smallest_budget
    bound = upper_bound(problem, budget, steps=30)
    # Slowly and by the definition: each request's best choice, block by block.
    last: dict[Prefix, int] = {}
    total = budget * float(bound.prices.sum())
    for r, request in enumerate(trace):
        ids = tuple(request.blocks[: request.input_tokens // trace.block_tokens])
        best, held = 0.0, 0.0
        for n in range(1, (request.input_tokens - 1) // trace.block_tokens + 1):
            if ids[:n] not in last:
                break
            price = float(bound.prices[last[ids[:n]] : r].sum())
            held += problem.page_bytes * price
            best = max(best, n * trace.block_tokens - held - problem.state_bytes * price)
        for n in range(1, len(ids) + 1):
            last[ids[:n]] = r
        total += best
    assert min(total, bound.known) < bound.tokens + trace.block_tokens * (1 + 1e-6)
    assert bound.tokens <= total * (1 + 1e-6)


def test_with_memory_for_all_the_schedule_restores_all_that_is_known() -> None:
    trace = synthetic_trace(300, seed=1)
    found = yardsticks(trace, SPEC, 1 << 50, placements=["leaf"])
    assert found.bound == found.known == found.kv_only
    assert found.found >= 0.99 * found.known


def test_a_tight_budget_leaves_a_small_gap_on_a_made_up_trace() -> None:
    trace = synthetic_trace(300, seed=1)
    found = yardsticks(trace, SPEC, 8 << 30, placements=["leaf+branch", "all"])
    assert all(row.lru <= found.found <= found.bound < found.kv_only for row in found.placements)
    assert found.gap < 0.25 * found.bound
    assert found.peak_bytes <= 8 << 30


def ordinary(found: Yardsticks) -> list[int]:
    return [r.lru for r in found.placements] + [r.tokens for r in found.policies]


@settings(max_examples=25, deadline=None)
@given(SMALL, st.floats(1.0, 3.0))
def test_no_policy_that_is_shown_beats_the_schedule(trace: Trace, factor: float) -> None:
    budget = int(factor * LiveReplay(trace, SPEC).smallest_budget)
    kept = ("lru-path", "lru+cap:1", "marconi:1")
    found = yardsticks(trace, SPEC, budget, ("leaf", "leaf+branch", "all"), 40, kept)
    assert len(found.policies) == 9
    assert max(ordinary(found)) <= found.found <= found.bound
    assert found.peak_bytes <= budget


def test_an_ordinary_policy_that_beats_the_search_is_the_schedule() -> None:
    a, b = list(range(8)), [0, 1, 2, 3, 8, 9, 10, 11]
    prompts = [
        (a[:4], 27715), (a, 60084), (b, 62679), (b, 57646), ([*b[:7], 12], 59791), (a[:7], 56352),
        ([13, 14, 15], 20614), (b[:6], 42682),
    ]  # fmt: skip
    requests = [
        TraceRequest(i, float(i), n, 1, array("q", ids)) for i, (ids, n) in enumerate(prompts, 1)
    ]
    trace = Trace("found at random", requests, block_tokens=8192)
    alone = yardsticks(trace, SPEC, 3_285_016_608, ["branch"], 40, [])
    found = yardsticks(trace, SPEC, 3_285_016_608, ["leaf+branch"], 40)
    assert (alone.found, alone.found_by) == (221_184, SEARCH)
    assert (found.found, found.found_by) == (229_376, "leaf+branch, lru")
    assert found.peak_bytes <= 3_285_016_608


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 5)), max_size=12))
def test_spans_cover_what_was_added(parts: list[tuple[int, int]]) -> None:
    spans: list[tuple[int, int]] = []
    covered: set[int] = set()
    for start, size in parts:
        fresh = _uncovered(spans, start, start + size)
        new = {t for a, b in fresh for t in range(a, b)}
        assert new == set(range(start, start + size)) - covered
        for a, b in fresh:
            _add(spans, a, b)
        covered |= new
        assert {t for a, b in spans for t in range(a, b)} == covered
        assert all(x[1] < y[0] for x, y in pairwise(spans)), "apart and sorted"


def test_wrong_arguments_are_named() -> None:
    trace = synthetic_trace(20)
    with pytest.raises(KdalabError, match=r"0 steps"):
        upper_bound(Problem.of(trace, SPEC), 1, 0)
    with pytest.raises(KdalabError, match="longest prompt"):
        yardsticks(trace, SPEC, 1 << 20)
