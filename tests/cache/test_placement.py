"""Where checkpoints are taken."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdalab.cache import parse_placement
from kdalab.cache.placement import Every, EveryPage, Leaf, check_on_grid, grid_of
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
    ],
)
def test_boundaries(
    text: str, n: int, restore: int, branching: int | None, expected: tuple[int, ...]
) -> None:
    assert parse_placement(text).boundaries(n, restore, branching, 64) == expected


@given(
    st.sampled_from([Every(128), EveryPage(), Leaf(), Leaf(branch=True)]),
    st.integers(1, 2000),
    st.integers(0, 30),
    st.one_of(st.none(), st.integers(0, 2000)),
)
def test_boundaries_are_on_the_grid_and_ahead_of_the_restore_point(
    placement: Every | EveryPage | Leaf, n: int, cells: int, branching: int | None
) -> None:
    restore = min(cells * 64, (n - 1) // 64 * 64)
    found = placement.boundaries(n, restore, branching, 64)
    assert list(found) == sorted(set(found))
    assert all(restore < b <= n and b % 64 == 0 for b in found)
    assert parse_placement(str(placement)) == placement


@pytest.mark.parametrize("text", ["every:0", "every", "every:-5", "sometimes", "", "every:x"])
def test_an_unknown_placement_lists_the_known_ones(text: str) -> None:
    with pytest.raises(KdalabError, match="every:N, leaf, leaf\\+branch, all"):
        parse_placement(text)


def test_an_interval_off_the_grid_is_refused_with_the_arithmetic() -> None:
    with pytest.raises(KdalabError, match=r"interval 100 .* multiple of 64 .*nearest: 64 or 128"):
        check_on_grid(100, grid_of(64, 16))
    with pytest.raises(KdalabError, match="nearest: 192"):
        check_on_grid(64, grid_of(64, 48))
