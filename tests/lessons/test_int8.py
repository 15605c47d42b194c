"""The rounding against numpy, its bound, and errors that stay or add up."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kdalab.errors import KdalabError
from kdalab.lessons import lesson_model, play_int8, rounded_with, scale_lines, shrunk
from kdalab.lessons.int8 import BOUNDARY, _prompt


@pytest.fixture(scope="module")
def run():
    return play_int8(24, every_step=True)


def test_the_checkpoint_is_the_model_s_and_its_rounding_is_numpy_s(run):
    recurrent, _, _ = lesson_model().states(_prompt()[:BOUNDARY])
    state = recurrent.numpy()
    assert np.array_equal(run.state, state)
    scale = np.abs(state).max(-2, keepdims=True) / np.float32(127)
    back = np.clip(np.round(state / scale), -127, 127) * scale
    assert np.abs(run.rounded - back).max() < 1e-6
    assert (run.error <= run.half_step * (1 + 1e-5)).all()
    assert run.conv_equal


def test_bytes_are_one_a_value_four_a_channel_and_the_conv_state_as_it_was(run):
    layers, heads, v, k = run.state.shape
    assert run.recurrent_bytes == 4 * layers * heads * v * k
    assert run.int8_bytes == layers * heads * (v * k + 4 * k) + run.conv_bytes


def test_one_rounding_stays_and_rounding_at_every_token_adds_up(run):
    assert run.once[0] == run.every[0] > 0
    assert np.median(run.every) > 3 * np.median(run.once)
    assert run.state_every[-1] > 3 * run.state_once[-1]
    assert 0 < run.served["once"].median < run.served["once"].worst
    assert set(play_int8(8).served) == {"once"}


def test_only_an_fp16_scale_loses_small_channels():
    lines = {line.dtype: line for line in scale_lines()}
    for name in ("fp32", "bf16"):
        assert max(lines[name].error) < 0.005
    for largest, error in zip(lines["fp16"].largest, lines["fp16"].error, strict=True):
        assert (error == 1.0) == (largest < 3.78e-6), largest
    small, back = shrunk(np.ones((4, 4), np.float32), 1e-6)
    assert np.abs(small).max() == pytest.approx(1e-6)
    assert not back.any()


def test_the_page_s_rounding_is_the_pool_s_where_the_pool_allows_it(run):
    back = rounded_with(torch.from_numpy(run.state.copy()), torch.float32)
    assert np.array_equal(back.numpy(), run.rounded)


def test_too_many_tokens_are_refused():
    with pytest.raises(KdalabError, match="use 1 to"):
        play_int8(65)
