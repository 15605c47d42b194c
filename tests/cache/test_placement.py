"""Where checkpoints are taken."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdalab.cache import parse_placement
from kdalab.cache.grids import Grid, deepest
from kdalab.cache.placement import (
    DecodeEvery,
    Every,
    Extends,
    Fork,
    Leaf,
    Placement,
    check_on_grid,
    grid_of,
)
from kdalab.errors import KdalabError


@pytest.mark.parametrize(
    ("text", "n", "restore", "branching", "expected"),
    [
        ("every:128", 300, 0, None, (128, 256)),
        ("every:128", 300, 128, None, (256,)),
        ("every:128", 300, 192, None, (256,)),  # absolute, not relative to the restore point
        ("every:128", 256, 128, 192, (256,)),
        ("all", 200, 64, None, (128, 192)),
        ("leaf", 200, 64, 128, (192,)),
        ("leaf", 63, 0, None, ()),
        ("leaf", 200, 192, None, ()),
        ("leaf+branch", 200, 0, 128, (128, 192)),
        ("leaf+branch", 200, 128, 128, (192,)),
        ("leaf+branch", 200, 0, 192, (192,)),
        ("branch", 200, 0, 130, (128,)),
        ("branch", 200, 128, 130, ()),
        ("branch", 200, 0, None, ()),
        ("every:192+leaf", 300, 0, None, (192, 256)),
        ("every:128+branch", 300, 0, 192, (128, 192, 256)),
        # One state an extend: its deepest point of the grid.
        ("chunk:256", 600, 0, None, (256, 512, 576)),
        ("chunk:256", 600, 64, None, (320, 576)),  # extends begin at the restore point
        ("chunk:100", 300, 0, 192, (64, 192, 256)),  # and end off the grid
        ("chunk:50", 130, 0, None, (64, 128)),  # an extend with no point of the grid keeps none
        # A branching point inside an extend replaces its end; one at the end is the end.
        ("branch-first:256", 600, 0, 128, (128, 512, 576)),
        ("branch-first:256", 600, 0, 256, (256, 512, 576)),
        ("branch-first:256", 600, 0, 320, (256, 320, 576)),
        ("branch-first", 600, 0, 384, (384,)),
        ("branch-first", 600, 0, None, (576,)),
        # Tail first: a late branch gives way to the prompt's end, an early one does not.
        ("tail-first", 600, 0, 384, (576,)),
        ("tail-first", 600, 0, 128, (128,)),
        ("tail-first:256", 600, 0, 320, (256, 320, 576)),  # no prompt end in that extend
        ("both", 600, 0, 384, (384, 576)),
        ("both:256", 600, 0, 320, (256, 320, 512, 576)),
    ],
)
def test_boundaries(
    text: str, n: int, restore: int, branching: int | None, expected: tuple[int, ...]
) -> None:
    assert parse_placement(text).boundaries(n, restore, branching, 64) == expected


FORMS = (
    "every:128", "all", "leaf", "leaf+branch", "branch", "every:256+leaf+branch", "chunk:100",
    "branch-first", "tail-first", "both", "branch-first:128", "tail-first:200", "both:1000",
)  # fmt: skip


@given(
    st.sampled_from(FORMS),
    st.integers(1, 2000),
    st.integers(0, 30),
    st.one_of(st.none(), st.integers(0, 2000)),
)
def test_boundaries_are_on_the_grid_and_ahead_of_the_restore_point(
    text: str, n: int, cells: int, branching: int | None
) -> None:
    placement = parse_placement(text)
    restore = min(cells * 64, (n - 1) // 64 * 64)
    found = placement.boundaries(n, restore, branching, 64)
    assert list(found) == sorted(set(found))
    assert all(restore < b <= n and b % 64 == 0 for b in found)
    assert parse_placement(str(placement)) == placement


@given(
    st.sampled_from([Fork.END, Fork.BRANCH_FIRST, Fork.TAIL_FIRST]),
    st.integers(1, 300),
    st.integers(1, 2000),
    st.one_of(st.none(), st.integers(0, 2000)),
)
def test_an_extend_keeps_one_state(fork: Fork, chunk: int, n: int, branching: int | None) -> None:
    found = Extends(chunk, fork).boundaries(n, 0, branching, 64)
    for start in range(0, n, chunk):
        inside = [b for b in found if start < b <= start + chunk]
        assert len(inside) <= 1
        assert bool(inside) == (deepest(64, start, min(n, start + chunk)) is not None)


def test_both_states_are_kept_only_where_there_is_room_for_both() -> None:
    both = Extends(None, Fork.BOTH)
    assert both.boundaries(600, 0, 384, 64, room=2) == (384, 576)
    assert both.boundaries(600, 0, 384, 64, room=1) == (576,)
    assert both.boundaries(600, 0, 128, 64, room=1) == (128,)  # an early branch serves siblings
    assert both.boundaries(600, 0, 384, 64, room=0) == ()
    assert Extends(256).boundaries(600, 0, None, 64, room=2) == (512, 576)  # the deepest ones


def test_decoding_leaves_checkpoints_on_the_common_grid() -> None:
    # sglang#34808, #39115: the grid of pages and that of states must be one.
    assert DecodeEvery(256).boundaries(500, 600, grid_of(64, 16)) == (512,)
    assert DecodeEvery(256).boundaries(0, 1000, grid_of(64, 48)) == (768,)


def test_a_boundary_of_decoding_is_passed_exactly_once() -> None:
    # sglang#29792: 127 for 128. One token a step, and several, as after a verify.
    for step in (1, 3, 7):
        ends = range(0, 1000, step)
        passed = [b for e in ends for b in DecodeEvery(128).boundaries(e, e + step, 64)]
        assert passed == [b for b in range(128, 1000 + step, 128) if b <= ends[-1] + step]


def test_placements_are_interchangeable() -> None:
    some: list[Placement] = [Every(64), Leaf(), Extends(128)]
    assert [p.boundaries(200, 0, None, 64) for p in some] == [(64, 128, 192), (192,), (128, 192)]


@pytest.mark.parametrize(
    "text",
    [
        "every:0",
        "every",
        "every:-5",
        "sometimes",
        "",
        "every:x",
        "leaf+",
        "+",
        "chunk:0",
        "both:x",
        "every:64+sometimes",
        "leaf+" * 10_000,
    ],
)
def test_an_unknown_placement_lists_the_known_ones(text: str) -> None:
    with pytest.raises(KdalabError, match="every:N, leaf, leaf\\+branch, all"):
        parse_placement(text)


def test_an_interval_off_the_grid_is_refused_with_the_arithmetic() -> None:
    says = r"interval 100 is not a multiple of lcm\(64, 16\) = 64 tokens .*nearest: 64 or 128"
    with pytest.raises(KdalabError, match=says):
        check_on_grid(100, grid_of(64, 16))
    with pytest.raises(KdalabError, match=r"lcm\(64, 48\) = 192 .*nearest: 192"):
        check_on_grid(64, grid_of(64, 48))
    with pytest.raises(KdalabError, match="interval 1,000 is not a positive multiple of 512"):
        Every(1000).boundaries(5000, 0, None, 512)
    for wrong in (0, -64):
        with pytest.raises(KdalabError, match="the nearest: 64"):
            check_on_grid(wrong, Grid(64))


def test_a_grid_is_made_of_positive_numbers() -> None:
    for parts in ((), (0,), (64, -1)):
        with pytest.raises(KdalabError, match="whole numbers of 1 or more"):
            Grid(*parts)
