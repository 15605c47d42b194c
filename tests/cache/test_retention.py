"""What is kept: the text forms, and an order of one's own."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from cache_cases import Book, text

from kdalab.cache import Bytes, Retention, parse_retention
from kdalab.cache.retention import Aged, Lru
from kdalab.errors import KdalabError


@pytest.mark.parametrize("form", ["lru", "lru-path", "lru+cap:1", "lru-path+cap:12"])
def test_a_form_survives_the_way_there_and_back(form: str) -> None:
    assert str(parse_retention(form)) == form


@pytest.mark.parametrize("form", ["", "fifo", "lru+", "lru+cap", "lru+cap:x", "lru+cap:1+cap:2"])
def test_an_unknown_form_lists_the_known_ones(form: str) -> None:
    with pytest.raises(KdalabError, match="allowed: lru, lru-path, either with"):
        parse_retention(form)


def test_a_cap_of_zero_and_an_unknown_refresh_are_refused() -> None:
    with pytest.raises(KdalabError, match="keeps at least its last state"):
        parse_retention("lru+cap:0")
    with pytest.raises(KdalabError, match="allowed: consumed, path"):
        Retention(refresh="never")


@dataclass(frozen=True, slots=True)
class KvFirst(Lru):
    def leaf_first(self, leaf: Aged, state: Aged) -> bool:
        return True


@pytest.mark.parametrize(("order", "left"), [(Lru(), (6, 2)), (KvFirst(), (4, 2))])
def test_an_order_decides_between_a_leaf_and_an_older_state(
    order: Lru, left: tuple[int, int]
) -> None:
    book = Book(retention=Retention(order=order))
    book.run(text(16), 8, 16)
    book.run(text(8, 1), 8)
    book.cache.evict(Bytes(either=1))
    # The state at 8 is the oldest of all; the oldest leaf holds two pages and a state.
    assert (book.cache.cached_pages, book.cache.cached_states) == left
    book.cache.check()
