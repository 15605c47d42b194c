"""Where prefill chunks end, stop by stop, and what retention keeps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdalab.cache import BlockRetention
from kdalab.cache.block_split import Stops


@pytest.mark.parametrize(
    ("stops", "start", "budget", "end"),
    [
        (Stops(1000, 64, 64), 0, 100, 64),  # floored to a block
        (Stops(1000, 64, 64), 0, 1000, 1000),  # the end of the prompt is not floored
        (Stops(1000, 256, 16), 0, 100, 96),  # no block fits: progress by hash units
        (Stops(1000, 256, 16), 0, 10, 10),  # not even a unit fits
        (Stops(1000, 256, 16), 96, 1000, 256),  # inside a block: to its end first
        (Stops(400, 256, 64, tail=384), 256, 1000, 384),  # the tail
        (Stops(1000, 64, 64, junction=640), 128, 1000, 640),  # the junction
        (Stops(1000, 64, 64, junction=640, tail=960), 0, 1000, 640),  # the earliest wins
        (Stops(1000, 64, 64, junction=640, tail=960), 640, 1000, 960),  # one passed is no stop
        (Stops(1000, 64, 64, last=960), 0, 1000, 960),  # the last block that is kept
        (Stops(1000, 64, 64, interval=256), 64, 1000, 256),  # retention's interval
        (Stops(400, 256, 64, tail=384, kernel=64), 256, 1000, 400),  # stored inside the chunk
        (Stops(400, 256, 64, tail=384, kernel=48), 256, 1000, 384),  # off the kernel's grid
        (Stops(400, 512, 64, tail=384, kernel=16), 272, 1000, 384),  # starts off the hash unit
    ],
)
def test_a_chunk_ends_at_the_earliest_stop(stops: Stops, start: int, budget: int, end: int) -> None:
    assert stops.chunk_end(start, budget) == end


@given(
    n=st.integers(1, 600),
    block=st.sampled_from([16, 64, 256]),
    budgets=st.lists(st.integers(1, 300), min_size=1, max_size=4),
    junction=st.integers(0, 40),
    kernel=st.sampled_from([0, 16]),
)
def test_every_prompt_is_cut_without_gaps_and_its_points_are_never_run_over(
    n: int, block: int, budgets: list[int], junction: int, kernel: int
) -> None:
    tail = (n - 1) // 16 * 16
    stops = Stops(n, block, 16, tail, min(junction * 16, tail) // block * block, kernel=kernel)
    start, ends, step = 0, set(), 0
    while start < n:
        budget = budgets[step % len(budgets)]
        end = stops.chunk_end(start, budget)
        assert start < end <= min(n, start + budget)
        if stops.stored_inside(start, end):
            ends.add(stops.tail)
        ends.add(end)
        start, step = end, step + 1
    # Once a chunk begins on the unit it stays on it, so the tail and the junction are always met
    # where budgets allow whole units.
    if min(budgets) >= 16:
        assert stops.points <= ends


@pytest.mark.parametrize(
    ("interval", "kept"),
    [(None, {16, 32, 48, 64, 80, 96}), (0, {48, 80}), (32, {32, 48, 64, 80, 96}), (16, set())],
)
def test_what_each_retention_keeps(interval: int | None, kept: set[int]) -> None:
    rule = BlockRetention(interval)
    found = {b for b in range(16, 97, 16) if rule.keeps(b, frozenset((48, 80)))}
    # An interval of one block is dense.
    assert found == (kept or {16, 32, 48, 64, 80, 96})
