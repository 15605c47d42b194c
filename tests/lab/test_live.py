"""The quick replay against the full one, field by field."""

from __future__ import annotations

from dataclasses import asdict

import pytest
from drawn_traces import traces
from hypothesis import given, settings
from hypothesis import strategies as st

from kdalab.cache import parse_placement
from kdalab.errors import KdalabError
from kdalab.lab import Trace, replay, synthetic_trace
from kdalab.lab.live import LiveReplay
from kdalab.spec import ModelSpec, preset

SPEC = preset("tiny")
PLACEMENTS = ["all", "every:8", "every:12", "leaf", "leaf+branch", "branch", "both:8", "chunk:8"]

# Prompts that fill their last block meet their own checkpoint there: it cannot be restored from.
TRACES = st.booleans().flatmap(lambda partial: traces(max_requests=25, max_new=3, partial=partial))


def figures(result) -> dict:
    return {k: v for k, v in asdict(result).items() if k != "seconds"}


@settings(max_examples=300, deadline=None)
@given(TRACES, st.sampled_from(PLACEMENTS), st.integers(0, 6), st.integers(0, 12), st.booleans())
def test_every_figure_is_that_of_the_full_replay(
    trace: Trace, placement: str, states: int, pages: int, limited: bool
) -> None:
    live = LiveReplay(trace, SPEC)
    spare = states * live.checkpoint_bytes + pages * live.page_bytes
    budget = live.smallest_budget + spare if limited else None
    wanted = replay(trace, SPEC, parse_placement(placement), budget, check_every=1)
    restored: list[int] = []
    found = live.run(parse_placement(placement), budget, restored)
    assert figures(found) == figures(wanted)
    assert sum(restored) == wanted.hit_tokens


@pytest.mark.parametrize("placement", ["all", "every:4096", "leaf+branch"])
def test_a_longer_trace_and_a_model_with_heavy_states(placement: str) -> None:
    trace, spec = synthetic_trace(300, seed=5), preset("kimi-k3")
    live = LiveReplay(trace, spec)
    for budget in (None, live.smallest_budget, 4 * live.smallest_budget):
        wanted = replay(trace, spec, parse_placement(placement), budget)
        assert figures(live.run(parse_placement(placement), budget)) == figures(wanted)


def test_it_refuses_what_the_full_replay_refuses() -> None:
    trace = synthetic_trace(20)
    spec: ModelSpec = preset("kimi-k3")
    live = LiveReplay(trace, spec)
    with pytest.raises(KdalabError, match="smallest budget that works"):
        live.run(parse_placement("leaf"), live.smallest_budget - 1)
    with pytest.raises(KdalabError, match="multiple of 512"):
        live.run(parse_placement("every:100"))
