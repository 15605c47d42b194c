"""Tuning alpha by replay: the choice is the best of what was tried, from one and the same start."""

from __future__ import annotations

import pytest

from kdalab.cache import parse_placement
from kdalab.cache.flops import PrefillFlops
from kdalab.errors import KdalabError
from kdalab.lab.marconi import tune_alpha
from kdalab.lab.replay import replay
from kdalab.lab.synthetic import synthetic_trace
from kdalab.spec import PRESETS, state_sizes

SPEC = PRESETS["kimi-linear-48b"]
PLACEMENT = parse_placement("leaf+branch")


def smallest_budget(trace) -> int:  # type: ignore[no-untyped-def]
    sizes = state_sizes(SPEC)
    largest = max(r.input_tokens for r in trace)
    return sizes.latent_bytes(largest) + 4 * sizes.checkpoint_bytes


def test_the_best_alpha_is_that_of_the_most_flops_saved_in_the_window() -> None:
    trace = synthetic_trace(160)
    tuned = tune_alpha(trace, SPEC, PLACEMENT, smallest_budget(trace), 5, (0.0, 0.5, 2.0))
    assert tuned.window > 0
    assert set(tuned.saved) == {0.0, 0.5, 2.0}
    assert tuned.saved[tuned.alpha] == max(tuned.saved.values())
    # Under alpha 0 the window saves no more than all FLOPs of its own prompts.
    flops = PrefillFlops.of(SPEC)
    last = tuned.first_eviction + tuned.window
    whole = [flops.between(0, r.input_tokens) for r in list(trace)[tuned.first_eviction : last]]
    assert all(0 <= s <= sum(whole) for s in tuned.saved.values())


def test_without_an_eviction_there_is_nothing_to_choose() -> None:
    trace = synthetic_trace(20)
    tuned = tune_alpha(trace, SPEC, PLACEMENT, 10**15)
    assert (tuned.alpha, tuned.window, tuned.saved) == (0.0, 0, {})
    assert replay(trace, SPEC, PLACEMENT).evicted_pages == 0


def test_a_window_of_no_requests_is_refused() -> None:
    with pytest.raises(KdalabError, match="use 1 or more"):
        tune_alpha(synthetic_trace(5), SPEC, PLACEMENT, 10**15, factor=0)
