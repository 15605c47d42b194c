"""KV-only hit rates against kvcache-simulator, block by block, and against the cache's own code."""

from __future__ import annotations

import json
import threading

import pytest
from drawn_traces import traces
from hypothesis import given, settings
from hypothesis import strategies as st

from kdalab.errors import KdalabError
from kdalab.lab import Trace, synthetic_trace
from kdalab.lab.kv_only import _small_lru_hits, clairvoyant_hits, fifo_hits, full_by, lru_hits
from kdalab.lab.kv_only_sweep import kv_only_sweep
from kdalab.lab.kv_only_tree import PromptTree, hit_tokens

NAMES = {"fifo": "fifo", "lru": "lru", "clairvoyant": "optimal"}


def peer_plan(trace: Trace, warmup: float):
    plan = pytest.importorskip("kvcache_sim.plan")
    parse = pytest.importorskip("kvcache_sim.trace")
    rows = [{"input_length": r.input_tokens, "hash_ids": list(r.blocks)} for r in trace]
    parsed = parse.parse_trace_lines(map(json.dumps, rows), block_size=trace.block_tokens)
    return plan.build_execution_plan(parsed, warmup)


@settings(max_examples=150, deadline=None)
@given(traces(), st.integers(1, 30), st.sampled_from([0.25, 0.5, 0.75]))
def test_every_policy_hits_what_the_peer_hits(trace: Trace, capacity: int, warmup: float) -> None:
    policies = pytest.importorskip("kvcache_sim.policies")
    plan = peer_plan(trace, warmup)
    tree = PromptTree(trace)
    assert tree.unique_blocks == plan.unique_blocks
    first = plan.warmup_requests
    ours = {
        "fifo": fifo_hits(tree, capacity),
        "lru": lru_hits(tree, [capacity])[0],
        "clairvoyant": clairvoyant_hits(tree, capacity),
    }
    for name, hits in ours.items():
        theirs = policies.simulate_policy(plan, NAMES[name], capacity)
        if theirs.measurementMode == "fixed_window":
            assert hit_tokens(tree, hits, first) == theirs.hitTokens, name
            assert full_by(tree.seen_blocks(), capacity) < first
        else:
            assert full_by(tree.seen_blocks(), capacity) >= first


@settings(max_examples=60, deadline=None)
@given(traces(max_requests=20))
def test_one_pass_over_the_stack_gives_every_capacity(trace: Trace) -> None:
    tree = PromptTree(trace)
    sizes = list(range(tree.longest, tree.unique_blocks + 2))
    together = lru_hits(tree, sizes)
    hits = [sum(h) for h in together]
    assert hits == sorted(hits), "a larger cache of the same kind hits no less"
    for size, row in zip(sizes, together, strict=True):
        assert row == _small_lru_hits(tree, size), size


@settings(max_examples=60, deadline=None)
@given(traces(), st.integers(1, 20))
def test_knowing_the_future_hits_no_less(trace: Trace, capacity: int) -> None:
    tree = PromptTree(trace)
    assert sum(clairvoyant_hits(tree, capacity)) >= sum(lru_hits(tree, [capacity])[0])


def test_a_sweep_gives_the_peers_table_on_a_made_up_trace() -> None:
    simulator = pytest.importorskip("kvcache_sim.simulator")
    parse = pytest.importorskip("kvcache_sim.trace")
    trace = synthetic_trace(400, seed=3)
    rows = [{"input_length": r.input_tokens, "hash_ids": list(r.blocks)} for r in trace]
    parsed = parse.parse_trace_lines(map(json.dumps, rows), block_size=trace.block_tokens)
    gib = [0.5 * n for n in range(1, 60)]
    theirs = simulator.run_sweep(parsed, model_id="kimi-k3", backend="python", budgets_gib=gib)
    ours = kv_only_sweep(PromptTree(trace), 27_648 * 512, [int(g * 2**30) for g in gib])
    assert ours.ceiling == pytest.approx(theirs["hitRateCeiling"], abs=1e-12)
    assert len(ours.points) == len(theirs["points"]) < 59
    for a, b in zip(ours.points, theirs["points"], strict=True):
        assert a.budget == b["gib"] * 2**30
        for name, rate in a.rates.items():
            assert rate == pytest.approx(b["results"][NAMES[name]]["hitRate"], abs=1e-12)


def test_what_has_not_been_full_by_then_is_left_out() -> None:
    tree = PromptTree(synthetic_trace(100))
    for first in (25, 50):
        seen = tree.seen_blocks()[first - 1]
        sizes = range(1, tree.unique_blocks + 1)
        found = kv_only_sweep(tree, 1, sizes, policies=["lru"], warmup=first / 100)
        assert [p.blocks for p in found.points] == list(sizes[:seen])


def test_two_processes_find_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    tree = PromptTree(synthetic_trace(150))
    alone = kv_only_sweep(tree, 1 << 25)
    monkeypatch.setattr("kdalab.lab.kv_only_sweep._WORTH_A_PROCESS", 0)
    assert kv_only_sweep(tree, 1 << 25, jobs=2) == alone


def test_a_process_with_threads_is_not_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    tree = PromptTree(synthetic_trace(50))
    monkeypatch.setattr("kdalab.lab.kv_only_sweep._WORTH_A_PROCESS", 0)

    def fork() -> int:
        raise AssertionError("forked")

    monkeypatch.setattr("os.fork", fork)
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    try:
        assert kv_only_sweep(tree, 1 << 25, jobs=2) == kv_only_sweep(tree, 1 << 25)
    finally:
        done.set()
        thread.join()


def test_a_budget_below_one_block_hits_nothing() -> None:
    tree = PromptTree(synthetic_trace(50))
    point = kv_only_sweep(tree, 1 << 20, budgets=[1, 1 << 24]).points[0]
    assert (point.blocks, set(point.rates.values())) == (0, {0.0})


def test_wrong_arguments_are_named() -> None:
    tree = PromptTree(synthetic_trace(20))
    with pytest.raises(KdalabError, match="belady"):
        kv_only_sweep(tree, 1, policies=["belady"])
    with pytest.raises(KdalabError, match="budget"):
        kv_only_sweep(tree, 1, budgets=[])
    with pytest.raises(KdalabError, match=r"warm-up of 1"):
        kv_only_sweep(tree, 1, warmup=1)
