"""Cache modes against rules for chunk ends and reachable states, worked out beside the cache."""

from __future__ import annotations

from itertools import pairwise

import pytest

from kdalab.errors import KdalabError
from kdalab.lessons import MODE_BLOCK, MODE_UNIT, play_modes


@pytest.mark.parametrize("budget", [64, 512, 2048])
@pytest.mark.parametrize("dense", [True, False])
@pytest.mark.parametrize(("tokens", "shared"), [(1000, 600), (1024, 512), (300, 30), (700, 699)])
def test_in_align_the_second_prompt_leaves_the_state_that_the_third_restores(
    budget, dense, tokens, shared
):
    run = play_modes("align", budget, tokens, shared, dense)
    a, b, c, d = run.results
    tail = (tokens - 1) // MODE_UNIT * MODE_UNIT
    assert a.restore == 0
    assert (tail in a.ends and tail in a.states) == (tail > 0)
    # A prompt that ends on a block may leave a state at its very end, which only D can use.
    whole = dense and tokens % MODE_BLOCK == 0
    assert d.restore == (tokens if whole else tail)
    junction = b.match // MODE_BLOCK * MODE_BLOCK
    assert c.restore >= min(junction, (c.tokens - 1) // MODE_UNIT * MODE_UNIT)
    if junction and not b.restore:
        assert junction in b.ends
        assert junction in b.states
    for result in run.results:
        assert result.restore <= result.match or result.restore == 0
        starts = [result.restore, *result.ends]
        for start, end in pairwise(starts):
            assert 0 < end - start <= budget
            inside = [x for x in range(start + 1, end) if x % MODE_BLOCK == 0]
            assert start % MODE_BLOCK == 0 or not inside  # none runs on through its block's end


def test_all_keeps_every_block_and_none_keeps_nothing():
    run = play_modes("all", 512, 1000, 600)
    assert run.results[0].states == (256, 512, 768)
    assert [r.restore for r in run.results] == [0, 512, 512, 768]
    run = play_modes("none", 512, 1000, 600)
    assert [(r.restore, r.states) for r in run.results] == [(0, ())] * 4
    assert run.results[1].match == 512


def test_an_older_state_under_a_boundarys_key_is_refused_twice():
    broken = play_modes("align", 512, 1000, 600, broken=True).broken
    assert broken is not None
    assert (broken.length, broken.boundary, broken.restore) == (512, 768, 768)
    assert "key length equals state length" in broken.at_name
    assert "768" in broken.at_check
    assert broken.difference > 0.1 * broken.size
    with pytest.raises(KdalabError, match="mode none"):
        play_modes("none", 512, 1000, 600, broken=True)


def test_a_share_as_long_as_the_prompt_is_refused():
    with pytest.raises(KdalabError, match="use 1 to 999"):
        play_modes("align", 512, 1000, 1000)


def test_all_says_what_retention_leaves_of_what_the_kernel_stores():
    run = play_modes("all", 512, 1000, 600, dense=False)
    first, end = (a for a in run.acts if a.request == "A" and "thinned" in a.kind)
    assert (first.values["states"], end.values["states"]) == ("-", "768")
    assert not any("thinned" in a.kind for a in play_modes("all", 512, 1000, 600).acts)


def test_the_junction_is_the_known_kv_floored_and_not_where_the_text_parts():
    act = next(a for a in play_modes("align", 512, 1000, 600, False).acts if a.kind == "known")
    v = act.values
    assert (v["shared"], v["same"], v["match"], v["junction"]) == (600, 576, 512, 512)
