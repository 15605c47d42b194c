"""One matrix against a list: by numpy alone, and by what linear algebra promises."""

from __future__ import annotations

import numpy as np
import pytest

from kdalab.errors import KdalabError
from kdalab.lessons import STATE_CHANNELS, play_state, recall_rows


@pytest.mark.parametrize("delta", [True, False])
def test_every_state_is_the_written_out_recurrence(delta):
    run = play_state(20, 0.3, 0.95, delta=delta)
    state = np.zeros((STATE_CHANNELS, STATE_CHANNELS))
    for key, value, write in zip(run.keys, run.values, run.writes, strict=True):
        state = 0.95 * state
        state = state + np.outer(key, value - (state.T @ key if delta else 0))
        assert np.abs(state - write.state).max() < 1e-12


def test_keys_at_right_angles_lose_nothing_and_similar_ones_do():
    assert max(play_state(15, 0.0, 1.0).writes[-1].error) < 1e-12
    errors = [np.mean(play_state(8, s, 1.0).writes[-1].error) for s in (0.1, 0.4, 0.8)]
    assert errors == sorted(errors)
    assert errors[0] > 0.05


def test_keys_stand_at_the_angle_asked_for():
    run = play_state(15, 0.7, 1.0)
    gram = run.keys @ run.keys.T
    assert np.abs(gram[~np.eye(15, dtype=bool)] - 0.7).max() < 1e-12
    assert np.abs(np.diag(gram) - 1).max() < 1e-12


def test_the_newest_is_exact_by_the_delta_rule_and_the_first_fades_by_the_decay():
    run = play_state(12, 0.0, 0.9)
    assert run.writes[-1].error[-1] < 1e-12
    assert run.writes[-1].error[0] == pytest.approx(1 - 0.9**11)


def test_a_second_value_replaces_the_first_only_with_the_delta_rule():
    good, plain = (play_state(6, 0.0, 1.0, delta=d, rewrite=True) for d in (True, False))
    assert max(good.writes[-1].error) < 1e-12
    size = np.linalg.norm(plain.values[0]) / np.linalg.norm(plain.values[-1])
    assert plain.writes[-1].error[0] == pytest.approx(size)
    assert good.list_error == plain.list_error == 0.0


def test_the_trained_list_remembers_what_the_trained_matrix_forgets():
    share = {(r.network, r.pairs): r.accuracy for r in recall_rows()}
    assert share["kda", 8] > 0.9 > share["kda", 128]
    assert share["mla", 128] > 0.9
    assert share["hybrid", 128] > 0.9


def test_bad_numbers_are_refused():
    for bad in ((0, 0.1, 1.0), (33, 0.1, 1.0), (4, 1.0, 1.0), (4, 0.1, 0.0)):
        with pytest.raises(KdalabError, match="use"):
            play_state(*bad)


def test_keys_at_right_angles_fill_every_channel_and_not_one_more():
    assert max(play_state(STATE_CHANNELS, 0.0, 1.0).writes[-1].error) < 1e-12
    assert play_state(STATE_CHANNELS + 1, 0.0, 1.0).writes[-1].error[0] > 0.01
