"""Scores against the formula by hand, and what alpha changes."""

from __future__ import annotations

import pytest

from kdalab.cache import PrefillFlops
from kdalab.errors import KdalabError
from kdalab.lessons import RETENTION_STORIES, TREE_BYTES, play_retention, policies_on_trace
from kdalab.spec import PRESETS


@pytest.mark.parametrize("story", RETENTION_STORIES)
@pytest.mark.parametrize("alpha", [0.0, 0.7, 2.0])
def test_the_least_of_recency_plus_alpha_times_efficiency_goes(story, alpha):
    run = play_retention(story, alpha, 3)
    assert run.chosen
    flops = PrefillFlops.of(PRESETS["tiny"])
    _, page, state = TREE_BYTES
    for choices in [*run.chosen.values(), *([c] for c in run.standing if c)]:
        for choice in choices:
            ages = [1 / c.age for c in choice.candidates]
            saved = [c.flops_per_byte for c in choice.candidates]
            totals = []
            for c, age, value in zip(choice.candidates, ages, saved, strict=True):
                n = c.end - c.start
                pairs = (c.end * (c.end + 1) - c.start * (c.start + 1)) // 2
                whole = flops.linear * n + flops.pair * pairs
                per_byte = [whole / state, whole / (state + page * n // 16)]
                assert any(value == pytest.approx(x) for x in per_byte)
                spread = [max(x) - min(x) or float("inf") for x in (ages, saved)]
                recency = (age - min(ages)) / spread[0]
                efficiency = (value - min(saved)) / spread[1]
                assert c.total == pytest.approx(recency + alpha * efficiency)
                totals.append(c.total)
            goes = next(c for c in choice.candidates if c.node == choice.goes)
            assert goes.total == min(totals)
            if not alpha:
                assert choice.goes == choice.oldest


def test_a_long_prefix_outlives_short_ones_only_with_alpha():
    assert play_retention("long", 0, 3).hits["E"] == 0
    assert play_retention("long", 1, 3).hits["E"] == 640


def test_policies_run_on_one_trace_and_restore_no_more_than_is_known():
    figures = policies_on_trace(1024, 8192, 1.0)
    assert [p.name for p in figures] == ["dense", "zero", "every", "lru", "marconi"]
    assert len({p.total for p in figures}) == 1
    assert all(0 < p.hit <= p.known < p.total for p in figures)


def test_an_unknown_story_is_refused():
    with pytest.raises(KdalabError, match="use one of"):
        play_retention("nowhere", 1, 3)
