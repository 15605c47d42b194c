"""Composed maps against the recurrence, by numpy alone."""

from __future__ import annotations

import numpy as np
import pytest

from kdalab.errors import KdalabError
from kdalab.lessons import DECAYS, play_chunks


@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize(("tokens", "pieces"), [(16, 2), (100, 7), (256, 8)])
def test_every_grouping_gives_the_recurrence_and_a_swap_does_not(decay, tokens, pieces):
    run = play_chunks(tokens, pieces, decay, swap=pieces - 2)
    assert run.difference(run.left) < 1e-12
    assert run.difference(run.tree) < 1e-12
    assert run.difference(run.swapped) > 1e-2
    state = np.zeros_like(run.direct)
    for span in run.spans:
        state = span.M @ state + span.b
    assert np.abs(state - run.direct).max() < 1e-12


def test_fast_decay_hides_an_early_swap():
    slow, fast = (play_chunks(256, 4, decay) for decay in ("slow", "fast"))
    assert slow.difference(slow.swapped) / slow.size > 1e3 * fast.difference(fast.swapped)


def test_bad_numbers_are_refused():
    with pytest.raises(KdalabError, match="pieces"):
        play_chunks(4, 5, "slow")
    with pytest.raises(KdalabError, match="use one of"):
        play_chunks(64, 4, "never")
    with pytest.raises(KdalabError, match="swap"):
        play_chunks(64, 4, "slow", swap=3)
