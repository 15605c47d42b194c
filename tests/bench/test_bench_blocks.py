"""The timings of the block cache: every figure is there and was really taken."""

from __future__ import annotations

from kdalab.bench.blocks import VLLM_MS, BlockTiming, block_timings


def test_every_figure_is_timed_in_both_shapes() -> None:
    found = {(t.what, t.block, t.unit): t for t in block_timings(repeats=1, n_tokens=8000)}
    assert set(VLLM_MS) <= set(found)
    assert all(t.ms > 0 for t in found.values())


def test_a_figure_meets_vllms_when_it_takes_no_longer() -> None:
    assert BlockTiming("hash", 16, 16, 8.6, 8.6).verdict == "meets"
    assert BlockTiming("hash", 16, 16, 8.7, 8.6).verdict == "missed"
    assert BlockTiming("hash", 16, 16, 8.7, None).verdict == ""
