"""The radix cache, one named rule at a time."""

from __future__ import annotations

import pytest
from cache_cases import Book, text
from hypothesis import given
from hypothesis import strategies as st

from kdalab.cache import Bytes, RadixStateCache
from kdalab.cache.keys import common_pages
from kdalab.errors import InvariantError, KdalabError
from kdalab.spec.checkpoint import Checkpoint


def test_a_token_match_is_not_a_restore_point() -> None:
    book = Book()
    book.run(text(32), 16, 32)
    found = book.cache.lookup(book.key([*text(28), 7, 7, 7, 7, 7]))
    assert (found.token_match, found.restore, found.replay) == (28, 16, 12)
    assert found.branching == 24
    assert "restore 16, replay 12, compute 5 new tokens" in found.why
    assert any("recurrent state at 16" in line for line in found.why)


def test_one_token_is_always_left_to_compute() -> None:
    book = Book()
    book.run(text(16), 8, 16)
    assert book.restore(text(16)) == 8
    assert book.restore(text(17)) == 16
    assert "one token must be computed" in book.cache.lookup(book.key(text(16))).binding


def test_a_split_leaves_the_state_on_the_lower_node() -> None:
    book = Book()
    book.run(text(32), 32)
    book.run([*text(16), *text(16, 1)], 32)
    nodes = {(n.start, n.end): n for n in book.cache.nodes.values() if n.parent}
    assert nodes[0, 16].state is None
    assert nodes[16, 32].state is not None
    assert book.restore([*text(33)]) == 32
    assert book.restore([*text(16), 5]) == 0


def test_the_split_keeps_each_page_with_its_tokens() -> None:
    book = Book()
    first = book.run(text(32), 32, hold=True)
    second = book.run([*text(16), *text(16, 1)], 32, hold=True)
    assert first.pages[:4] == second.pages[:4]
    assert not set(first.pages[4:]) & set(second.pages[4:])


def test_a_state_at_the_branching_point_lets_the_third_prompt_profit() -> None:
    book = Book()
    book.run(text(32), 32)
    second = [*text(16), *text(16, 1)]
    found = book.cache.lookup(book.key(second))
    assert (found.restore, found.branching) == (0, 16)
    book.run(second, 16, 32)
    assert book.restore([*text(16), *text(16, 2)]) == 16


def test_refreshing_touches_only_the_consumed_state() -> None:
    # A chain of three states, the deepest hit again and again: the shallow ones go first.
    book = Book()
    book.run(text(24), 8, 16, 24)
    for _ in range(3):
        book.run([*text(24), 1])
    gone = [book.cache.evict(Bytes(state=1)).dropped[0] for _ in range(2)]
    assert not any(d.removed for d in gone)
    assert book.restore(text(25)) == 24
    book.cache.check()


def test_evicting_a_state_inside_leaves_its_kv_as_a_tombstone() -> None:
    book = Book()
    book.run(text(24), 8, 24)
    book.cache.evict(Bytes(state=1))
    found = book.cache.lookup(book.key([*text(20), 9]))
    assert (found.token_match, found.restore) == (20, 0)
    book.run([*text(20), 9], 8)  # revived in place, no new pages
    assert book.restore([*text(20), 9]) == 8
    book.cache.check()


def test_evicting_a_leaf_takes_its_state_and_the_tombstones_above() -> None:
    book = Book()
    book.run(text(32), 32)
    book.run([*text(16), *text(16, 1)], 32)
    book.cache.evict(Bytes(kv=1))
    assert len(book.cache.nodes) == 3  # root, the tombstone [0, 16) and one leaf
    book.cache.evict(Bytes(kv=1))
    assert list(book.cache.nodes) == [0]
    assert book.cache.cached_pages == book.cache.cached_states == 0


def test_the_oldest_leaf_goes_first_and_a_parent_outlives_its_child() -> None:
    book = Book()
    book.run(text(8), 8)
    book.run(text(8, 1), 8)
    book.run(text(16), 16)  # uses the first one's prefix
    order = []
    while len(book.cache.nodes) > 1:
        order += [d.node for d in book.cache.evict(Bytes(kv=1)).dropped]
        book.cache.check()
    assert order == [2, 3, 1]


def test_nothing_is_evicted_when_all_is_locked() -> None:
    book = Book()
    held = book.run(text(16), 8, 16, hold=True)
    gone = book.cache.evict(Bytes(kv=1))
    assert (gone.kv_bytes, gone.pages, gone.states) == (0, (), ())
    assert book.cache.leases[held.id] is held
    locked = book.cache.acquire(book.cache.lookup(book.key(text(17))))
    book.cache.evict(Bytes(state=100))
    assert book.restore(text(17)) == 16  # the state that is being read stays
    book.cache.release(locked)
    book.cache.release(held)


def test_a_leaf_that_lost_its_state_in_use_goes_with_its_last_reader() -> None:
    book = Book()
    held = book.run(text(16), 16, hold=True)
    assert book.cache.evict(Bytes(state=1)).states
    book.cache.check()
    gone = book.cache.release(held)
    assert gone.pages == held.pages
    assert list(book.cache.nodes) == [0]


def test_the_same_prefix_committed_twice_gives_pages_and_slot_back() -> None:
    book = Book()
    key = book.key(text(16))
    leases = [book.cache.acquire(book.cache.lookup(key)) for _ in range(2)]
    first = book.cache.commit(leases[0], key, (0, 1, 2, 3), Checkpoint(0, 16))
    second = book.cache.commit(leases[1], key, (4, 5, 6, 7), Checkpoint(1, 16))
    assert second.state_existed
    assert second.duplicate_pages == (4, 5, 6, 7)
    assert second.lease.pages == first.lease.pages == (0, 1, 2, 3)
    book.cache.check()


@pytest.mark.parametrize(
    ("boundary", "pages", "message"),
    [
        (12, 3, "off the grid of 8"),
        (0, 0, "must lie beyond the lease"),
        (24, 6, "within the whole pages of the key"),
        (16, 3, r"fill 4 pages of 4 tokens, but 3 pages"),
    ],
)
def test_a_commit_that_cannot_be_true_changes_nothing(
    boundary: int, pages: int, message: str
) -> None:
    book = Book()
    lease = book.cache.acquire(book.cache.lookup(book.key(text(18))))
    with pytest.raises(KdalabError, match=message):
        book.cache.commit(lease, book.key(text(18)), range(pages), Checkpoint(0, boundary))
    assert list(book.cache.nodes) == [0]
    book.cache.release(lease)
    book.cache.check()


def test_a_lease_is_given_back_once() -> None:
    book = Book()
    lease = book.run(text(16), 16)
    with pytest.raises(KdalabError, match="not held"):
        book.cache.release(lease)


def test_a_lookup_goes_stale_when_its_node_is_evicted() -> None:
    book = Book()
    book.run(text(16), 16)
    found = book.cache.lookup(book.key(text(17)))
    book.cache.evict(Bytes(kv=100))
    with pytest.raises(KdalabError, match="look up again"):
        book.cache.acquire(found)
    assert not book.cache.leases


def test_check_names_a_state_at_the_wrong_key() -> None:
    book = Book()
    book.run(text(16), 16)
    book.cache.nodes[1].state = Checkpoint(4, 8)
    with pytest.raises(InvariantError, match="key length equals state length"):
        book.cache.check()


def test_a_grid_that_is_no_multiple_of_the_page_is_refused() -> None:
    with pytest.raises(KdalabError, match="multiple of the page"):
        RadixStateCache(page_tokens=48, grid=64)


@given(
    st.lists(st.integers(0, 1), max_size=40),
    st.lists(st.integers(0, 1), max_size=40),
    st.integers(1, 3),
)
def test_common_pages_counts_the_shared_prefix(a: list[int], b: list[int], width: int) -> None:
    a, b = a[: len(a) // width * width], b[: len(b) // width * width]
    expected = 0
    while (expected + 1) * width <= min(len(a), len(b)) and (
        a[expected * width : (expected + 1) * width] == b[expected * width : (expected + 1) * width]
    ):
        expected += 1
    assert common_pages(bytes(a), bytes(b), width) == expected
