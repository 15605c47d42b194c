"""Replay against a dictionary, and under a budget."""

from __future__ import annotations

import os
from array import array
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kdalab.cache import parse_placement
from kdalab.errors import KdalabError
from kdalab.lab import Trace, TraceRequest, read_mooncake, replay, write_synthetic
from kdalab.spec import preset, state_sizes

BLOCK = 512
SPEC = preset("kimi-k3")
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


def by_dictionary(trace: Trace, placement: str) -> tuple[int, int, int]:
    """(hit tokens, known tokens, states) with unlimited memory and no tree at all.

    What is published is the KV of each prompt up to its last checkpoint; what can be restored is
    the longest prefix with a state that leaves a token to compute.
    """
    kv: set[tuple[int, ...]] = set()
    states: set[tuple[int, ...]] = set()
    hit = known = 0
    for r in trace.requests:
        ids = tuple(r.blocks[: r.input_tokens // BLOCK])
        match = max(n for n in range(len(ids) + 1) if n == 0 or ids[:n] in kv)
        restore = max(
            [n for n in range(1, match + 1) if ids[:n] in states and n * BLOCK < r.input_tokens]
            + [0]
        )
        deepest = max([n for n in range(1, match + 1) if ids[:n] in states] + [0])
        hit += restore * BLOCK
        known += match * BLOCK
        if placement == "all":
            wanted = set(range(restore + 1, len(ids) + 1))
        elif placement.startswith("every"):
            step = int(placement.split(":")[1]) // BLOCK
            wanted = {n for n in range(restore + 1, len(ids) + 1) if n % step == 0}
        else:
            wanted = {len(ids)}
            if placement == "leaf+branch" and match > deepest:
                wanted.add(match)
        for n in sorted(w for w in wanted if w > restore):
            states.add(ids[:n])
            kv.update(ids[:i] for i in range(1, n + 1))
    return hit, known, len(states)


@settings(max_examples=150, deadline=None)
@given(traces(), st.sampled_from(PLACEMENTS))
def test_hits_equal_those_of_a_dictionary(trace: Trace, placement: str) -> None:
    result = replay(trace, SPEC, parse_placement(placement), check_every=1)
    hit, known, states = by_dictionary(trace, placement)
    assert (result.hit_tokens, result.known_tokens) == (hit, known)
    assert result.states_written == states
    assert result.state_bytes == states * state_sizes(SPEC).checkpoint_bytes
    assert result.hit_tokens + result.replayed_tokens + result.new_tokens == trace.input_tokens
    assert result.evictions == result.skipped_commits == 0


@settings(max_examples=150, deadline=None)
@given(traces(), st.sampled_from(PLACEMENTS), st.integers(0, 6))
def test_a_budget_is_kept_and_nothing_is_lost(trace: Trace, placement: str, spare: int) -> None:
    sizes = state_sizes(SPEC)
    page = sizes.latent_bytes(BLOCK)
    longest = max(r.input_tokens // BLOCK for r in trace.requests)
    budget = longest * page + (1 + spare) * sizes.checkpoint_bytes
    # check_every proves after each request: invariants, pool = cache, used <= budget.
    result = replay(trace, SPEC, parse_placement(placement), budget, check_every=1)
    assert result.peak_bytes <= budget
    assert result.kv_bytes + result.state_bytes <= budget
    written = result.states_written * sizes.checkpoint_bytes
    assert written - result.evicted_state_bytes >= result.state_bytes
    ideal = replay(trace, SPEC, parse_placement("all"))
    assert result.hit_tokens <= ideal.hit_tokens


def test_a_budget_too_small_for_one_request_is_refused_before_running(tmp_path: Path) -> None:
    trace = read_mooncake(write_synthetic(tmp_path / "t.jsonl", 40))
    largest = max(trace.requests, key=lambda r: r.input_tokens)
    sizes = state_sizes(SPEC)
    need = largest.input_tokens // BLOCK * sizes.latent_bytes(BLOCK) + sizes.checkpoint_bytes
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
    trace = read_mooncake(TRACE)
    assert (len(trace.requests), trace.n_skipped) == (12_031, 0)
    result = replay(trace, SPEC, parse_placement(placement))
    assert result.token_hit_rate == pytest.approx(rate, abs=0.001)
    if states is not None:
        assert result.states_written == states
