"""Replay against a dictionary, and under a budget."""

from __future__ import annotations

import gc
import importlib
import os
from array import array
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kdalab.cache import Lease, parse_placement, parse_retention
from kdalab.errors import InvariantError, KdalabError
from kdalab.lab import (
    ReplayResult,
    Trace,
    TraceFile,
    TraceRequest,
    read_mooncake,
    replay,
    synthetic_trace,
    write_synthetic,
)
from kdalab.lab.replay import _Replayer
from kdalab.memory.counting import CountingPool
from kdalab.spec import preset, state_sizes

MODULE = importlib.import_module("kdalab.lab.replay")  # `kdalab.lab.replay` is the function
BLOCK = 512
SPEC = preset("kimi-k3")
PAGE = state_sizes(SPEC).latent_bytes(BLOCK)
STATE = state_sizes(SPEC).checkpoint_bytes
PLACEMENTS = ["all", "every:1024", "every:2048", "leaf", "leaf+branch"]


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    """Prompts that share prefixes: each continues or forks an earlier one. Ids are made as a real
    trace's are, one for each distinct prefix, so a shared suffix never shares an id."""
    prompts: list[tuple[int, ...]] = [()]
    names: dict[tuple[int, ...], int] = {}
    requests = []
    for line in range(draw(st.integers(1, 14))):
        base = draw(st.sampled_from(prompts))
        base = base[: draw(st.integers(0, len(base)))]
        prompt = base + tuple(draw(st.lists(st.integers(0, 1), max_size=8)))
        prompts.append(prompt)
        rest = draw(st.integers(0, BLOCK - 1))
        tokens = len(prompt) * BLOCK + rest
        if tokens == 0:
            continue
        ids = [names.setdefault(prompt[: i + 1], len(names)) for i in range(len(prompt))]
        if rest:
            ids.append(10**6 + line)
        requests.append(TraceRequest(line + 1, float(line), tokens, 1, array("q", ids)))
    if not requests:
        requests.append(TraceRequest(1, 0.0, 1, 1, array("q", [0])))
    return Trace("drawn", requests)


class ByDictionary:
    """Unlimited memory and no tree at all: a set of prefixes with KV, a set of those with state.

    What is published is the KV of each prompt up to its last checkpoint; what can be restored is
    the longest prefix with a state that leaves a token to compute.
    """

    def __init__(self, trace: Trace, placement: str) -> None:
        self.kv: set[tuple[int, ...]] = set()
        self.states: set[tuple[int, ...]] = set()
        self.read: set[tuple[int, ...]] = set()
        self.hit = self.known = self.reads = 0
        for r in trace:
            ids = tuple(r.blocks[: r.input_tokens // BLOCK])
            match = max(n for n in range(len(ids) + 1) if n == 0 or ids[:n] in self.kv)
            stated = [n for n in range(1, match + 1) if ids[:n] in self.states]
            restore = max([n for n in stated if n * BLOCK < r.input_tokens], default=0)
            self.hit += restore * BLOCK
            self.known += match * BLOCK
            if restore:
                self.reads += 1
                self.read.add(ids[:restore])
            for n in wanted(placement, len(ids), restore, match, max(stated, default=0)):
                self.states.add(ids[:n])
                self.kv.update(ids[:i] for i in range(1, n + 1))


def wanted(placement: str, blocks: int, restore: int, match: int, deepest: int) -> set[int]:
    """Blocks after which a prompt leaves a checkpoint."""
    if placement == "all":
        return set(range(restore + 1, blocks + 1))
    if placement.startswith("every"):
        step = int(placement.split(":")[1]) // BLOCK
        return {n for n in range(restore + 1, blocks + 1) if n % step == 0}
    ends = {blocks}
    if placement == "leaf+branch" and match > deepest:
        ends.add(match)
    return {n for n in ends if n > restore}


@pytest.fixture
def checked_at_every_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Conservation not only between requests, but after each commit with its evictions."""
    commit = _Replayer.commit

    def checked(self: _Replayer, *args: Any) -> Lease | None:
        moved = commit(self, *args)
        self.check()
        return moved

    monkeypatch.setattr(_Replayer, "commit", checked)


# The fixture replaces a function and keeps no state, so sharing it between examples is sound.
many = settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@many
@given(traces(), st.sampled_from(PLACEMENTS))
def test_hits_equal_those_of_a_dictionary(trace: Trace, placement: str) -> None:
    result = replay(trace, SPEC, parse_placement(placement), check_every=1)
    plain = ByDictionary(trace, placement)
    assert (result.hit_tokens, result.known_tokens) == (plain.hit, plain.known)
    assert result.states_written == len(plain.states)
    assert result.pages_written == len(plain.kv)
    assert (result.reads, result.states_read_at_least_once) == (plain.reads, len(plain.read))
    assert result.kv_bytes == len(plain.kv) * PAGE
    assert result.state_bytes == len(plain.states) * STATE
    assert result.hit_tokens + result.replayed_tokens + result.new_tokens == trace.input_tokens
    assert result.evicted_pages == result.evicted_states == result.skipped_commits == 0


def conserved(result: ReplayResult) -> bool:
    """What was written is there at the end or was evicted, byte for byte."""
    return (
        result.pages_written * PAGE - result.evicted_kv_bytes == result.kv_bytes
        and result.states_written * STATE - result.evicted_state_bytes == result.state_bytes
    )


@pytest.mark.usefixtures("checked_at_every_commit")
@many
@given(traces(), st.sampled_from(PLACEMENTS), st.integers(0, 6), st.integers(0, PAGE))
def test_a_budget_is_kept_and_nothing_is_lost(
    trace: Trace, placement: str, states: int, more: int
) -> None:
    longest = max(r.input_tokens // BLOCK for r in trace)
    budget = longest * PAGE + (1 + states) * STATE + more
    result = replay(trace, SPEC, parse_placement(placement), budget, check_every=1)
    assert result.kv_bytes + result.state_bytes <= result.peak_bytes <= budget
    assert conserved(result)
    # A budget that passes the check never makes a commit impossible.
    assert result.skipped_commits == 0
    assert result.hit_tokens <= result.known_tokens
    assert result.hit_tokens <= ByDictionary(trace, "all").known


@pytest.mark.usefixtures("checked_at_every_commit")
@many
@given(traces(), st.sampled_from(PLACEMENTS), st.integers(0, 4))
def test_a_commit_without_room_is_skipped_and_accounted_for(
    trace: Trace, placement: str, pages: int
) -> None:
    """As when a file has grown a longer request between the check of the budget and the run."""
    budget = pages * PAGE + STATE
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MODULE, "check_budget", lambda *_: None)
        result = replay(trace, SPEC, parse_placement(placement), budget, check_every=1)
    assert result.peak_bytes <= budget
    assert conserved(result)
    assert result.hit_tokens <= pages * BLOCK * result.requests
    if placement == "leaf":  # then a prompt of more pages than there is room for never gets in
        too_long = [r for r in trace if r.input_tokens // BLOCK > pages]
        assert result.skipped_commits >= len(too_long)


@many
@given(traces(), st.sampled_from(["lru-path", "lru+cap:1", "lru-path+cap:3"]), st.integers(0, 4))
def test_every_retention_keeps_the_budget_and_loses_nothing(
    trace: Trace, retention: str, states: int
) -> None:
    longest = max(r.input_tokens // BLOCK for r in trace)
    budget = longest * PAGE + (1 + states) * STATE
    kept = parse_retention(retention)
    result = replay(trace, SPEC, parse_placement("all"), budget, check_every=1, retention=kept)
    assert result.retention == retention
    assert result.peak_bytes <= budget
    assert conserved(result)


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_a_budget_that_is_never_reached_changes_nothing(placement: str) -> None:
    trace = synthetic_trace(120)
    free = replay(trace, SPEC, parse_placement(placement))
    just = replay(trace, SPEC, parse_placement(placement), free.peak_bytes)
    less = replay(trace, SPEC, parse_placement(placement), free.peak_bytes - 1)
    assert (just.hit_tokens, just.evicted_pages, just.evicted_states) == (free.hit_tokens, 0, 0)
    assert less.evicted_states > 0


def test_a_prompt_that_comes_back_whole_writes_nothing_twice() -> None:
    again = [TraceRequest(i + 1, float(i), 4 * BLOCK, 1, array("q", range(4))) for i in range(5)]
    result = replay(Trace("again", again), SPEC, parse_placement("leaf"), check_every=1)
    assert (result.states_written, result.pages_written) == (1, 4)
    # The state at the very end leaves no token to compute: nothing can be restored.
    assert (result.hit_tokens, result.replayed_tokens) == (0, 4 * 4 * BLOCK)


def test_a_file_gives_what_the_trace_in_memory_gives(tmp_path: Path) -> None:
    path = write_synthetic(tmp_path / "t.jsonl", 60)
    for budget in (None, 40 << 30):
        a = replay(TraceFile(path), SPEC, parse_placement("leaf"), budget).as_dict()
        b = replay(read_mooncake(path), SPEC, parse_placement("leaf"), budget).as_dict()
        assert a | {"seconds": 0} == b | {"seconds": 0}


def test_lost_pages_are_found() -> None:
    class Leaking(CountingPool):
        def give(self, pages: int, states: int = 0) -> None:
            super().give(max(0, pages - 1), states)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MODULE, "CountingPool", Leaking)
        with pytest.raises(InvariantError, match="pages and checkpoints taken = cached"):
            replay(synthetic_trace(60), SPEC, parse_placement("leaf"), 3 << 30, check_every=1)


def test_the_counting_pool_refuses_what_it_cannot_hold() -> None:
    pool = CountingPool(page_bytes=10, checkpoint_bytes=100, budget=200)
    assert pool.take(5, 1) == (range(5), range(1))
    assert pool.missing(5, 0) == 0
    assert pool.missing(6, 0) == 10
    with pytest.raises(KdalabError, match="6 pages and 0 checkpoints would go 10 bytes over"):
        pool.take(6)
    with pytest.raises(InvariantError, match="0 pages and 2 checkpoints given back; 5 and 1"):
        pool.give(0, 2)
    assert (pool.pages, pool.states, pool.used) == (5, 1, 150)
    pool.give(5, 1)
    assert (pool.used, pool.peak_bytes) == (0, 150)
    assert pool.take(1, 1) == (range(5, 6), range(1, 2))  # numbers are never given out twice


def test_the_collector_is_on_again_after_a_replay_that_fails(tmp_path: Path) -> None:
    path = write_synthetic(tmp_path / "t.jsonl", 5)
    path.write_text(path.read_text() + "?")
    assert gc.isenabled()
    with pytest.raises(KdalabError, match="1 unusable lines, 0 allowed"):
        replay(TraceFile(path, max_bad=0), SPEC, parse_placement("leaf"))
    assert gc.isenabled()


def test_a_budget_too_small_for_one_request_is_refused_before_running(tmp_path: Path) -> None:
    trace = TraceFile(write_synthetic(tmp_path / "t.jsonl", 40))
    largest = max(trace, key=lambda r: r.input_tokens)
    need = largest.input_tokens // BLOCK * PAGE + STATE
    with pytest.raises(KdalabError, match=rf"on line {largest.line} .*works: {need:,} bytes"):
        replay(trace, SPEC, parse_placement("leaf"), need - 1)
    assert replay(trace, SPEC, parse_placement("leaf"), need).skipped_commits == 0


def test_an_interval_off_the_block_is_refused(tmp_path: Path) -> None:
    trace = read_mooncake(write_synthetic(tmp_path / "t.jsonl", 2))
    with pytest.raises(KdalabError, match="interval 1,000 is not a positive multiple of 512"):
        replay(trace, SPEC, parse_placement("every:1000"))


TRACE = Path(os.environ.get("KDALAB_TRACES", "")) / "mooncake_conversation_trace.jsonl"


@pytest.mark.skipif(
    not os.environ.get("KDALAB_TRACES") or not TRACE.is_file(),
    reason="set KDALAB_TRACES to a folder with mooncake_conversation_trace.jsonl",
)
@pytest.mark.parametrize(
    ("placement", "rate", "states"),
    [
        ("all", 0.373, 170_899),
        ("every:4096", 0.291, None),
        ("every:16384", 0.167, None),
        ("leaf", 0.350, 9_633),
        ("leaf+branch", 0.359, 10_237),
    ],
)
def test_the_conversation_trace_gives_the_published_figures(
    placement: str, rate: float, states: int | None
) -> None:
    result = replay(TraceFile(TRACE), SPEC, parse_placement(placement))
    assert (result.requests, result.skipped_lines) == (12_031, 0)
    assert result.input_tokens == 144_793_823
    assert result.token_hit_rate == pytest.approx(rate, abs=0.001)
    if states is not None:
        assert result.states_written == states
