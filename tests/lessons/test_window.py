"""Sliding-window attention can be rebuilt from a window, KDA's state cannot."""

import pytest

from kdalab.errors import KdalabError
from kdalab.lessons.window import play_window


@pytest.mark.parametrize(("window", "layers"), [(8, 1), (8, 3), (2, 2)])
def test_swa_is_exact_from_layers_times_window_less_one_and_not_before(window, layers):
    run = play_window(96, window, layers, "slow")
    for replayed, error in zip(run.replayed, run.swa, strict=True):
        assert (error < 1e-12) == (replayed >= layers * (window - 1)), replayed


def test_kda_needs_the_whole_prompt_or_a_checkpoint():
    run = play_window(96, 8, 2, "slow")
    assert run.kda[-1] == 0
    assert all(error > 1e-3 for error in run.kda[:-1])
    assert run.resumed < 1e-12


def test_a_faster_decay_forgets_its_start_sooner():
    errors = [play_window(96, 16, 1, d).at(32)[1] for d in ("slow", "medium", "fast")]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 1e-3


def test_what_cannot_run_is_refused():
    for wrong in ((8, 16, 1, "slow"), (96, 1, 1, "slow"), (96, 8, 0, "slow"), (96, 8, 1, "never")):
        with pytest.raises(KdalabError, match="use"):
            play_window(*wrong)
