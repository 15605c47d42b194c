"""Pages of a path, read late, equal those put together at once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kdalab.cache.page_path import PagePath

PARTS = st.lists(st.lists(st.integers(0, 99), max_size=4).map(tuple), max_size=4)


@given(st.lists(PARTS, min_size=1, max_size=6), st.integers(0, 5))
def test_a_chain_of_paths_reads_as_one_tuple(chain: list, read_first: int) -> None:
    path, flat = None, ()
    for n, parts in enumerate(chain):
        path = PagePath(parts, path)
        flat += tuple(p for part in parts for p in part)
        assert len(path) == len(flat)
        if n == read_first:
            assert path.pages == flat
    assert path is not None
    assert path == flat
    assert flat == path
    assert (tuple(path), path[1:], hash(path)) == (flat, flat[1:], hash(flat))
    more = (7,)
    assert path + more == (*flat, 7)
    assert path != (*flat, 7)
    assert PagePath([flat]) == path


def test_ranges_are_not_put_together_to_be_counted() -> None:
    path = PagePath([range(10**9)], PagePath([range(10**9, 2 * 10**9)]))
    assert len(path) == 2 * 10**9
