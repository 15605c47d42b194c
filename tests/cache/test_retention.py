"""What is kept: the text forms, and an order of one's own."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from cache_cases import Book, text

from kdalab.cache import (
    Bytes,
    Marconi,
    PrefillFlops,
    Retention,
    parse_block_retention,
    parse_retention,
)
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


@pytest.mark.parametrize("form", ["marconi:0", "marconi:0.5", "marconi:2+cap:3"])
def test_marconis_form_survives_too_and_needs_to_be_told_costs(form: str) -> None:
    kept = parse_retention(form)
    assert str(kept) == form
    assert kept.asks_for_costs
    with pytest.raises(KdalabError, match="knows neither"):
        kept.order.leaf({})
    bound = kept.bound(PrefillFlops(1, 1), 10, 100)
    assert str(bound) == form
    assert not bound.asks_for_costs
    assert bound.order.leaf({}) is None
    assert not parse_retention("lru").asks_for_costs


@pytest.mark.parametrize("form", ["marconi", "marconi:", "marconi:-1", "marconi:x", "marconi:nan"])
def test_an_alpha_that_is_no_number_is_refused(form: str) -> None:
    with pytest.raises(KdalabError, match="marconi:ALPHA"):
        parse_retention(form)
    with pytest.raises(KdalabError, match="only `kdalab replay`"):
        parse_retention("marconi:auto")


@pytest.mark.parametrize(
    ("form", "interval", "alpha"),
    [
        ("dense", None, None),
        ("0", 0, None),
        ("8,192", 8192, None),
        ("lru", 0, None),
        ("lru+dense", None, None),
        ("marconi:0.5", 0, 0.5),
        ("marconi:0+dense", None, 0.0),
        ("Marconi:2+8192", 8192, 2.0),
    ],
)
def test_a_retention_of_blocks_has_a_text_form(
    form: str, interval: int | None, alpha: float | None
) -> None:
    kept = parse_block_retention(form)
    assert kept.interval == interval
    assert kept.order == (Lru() if alpha is None else Marconi(alpha))
    assert parse_block_retention(str(kept)) == kept
    assert str(kept.bound(PrefillFlops(1, 1), 10)) == str(kept)


@pytest.mark.parametrize(
    "form",
    ["", "-1", "0.5", "lru-path", "marconi", "marconi:x", "marconi:-1", "marconi:1+cap:2", "0+lru",
     "marconi:1+", "marconi:1+0+0"],
)  # fmt: skip
def test_other_forms_for_blocks_are_refused(form: str) -> None:
    with pytest.raises(KdalabError, match="allowed: dense, 0 "):
        parse_block_retention(form)


def test_alpha_of_blocks_is_tuned_where_there_is_a_trace() -> None:
    with pytest.raises(KdalabError, match="only `kdalab replay`"):
        parse_block_retention("marconi:auto+0")
