"""Chained hashes: every one stands for its whole prefix, with everything that tells it apart."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdalab.cache import ExtraKeys, HashChain, Image, PrefixKey
from kdalab.errors import KdalabError

tokens_of = st.lists(st.integers(0, 3), min_size=0, max_size=60)


def chain(tokens: list[int], unit: int = 4, extra: ExtraKeys | None = None) -> HashChain:
    return HashChain(PrefixKey.from_tokens(tokens, unit), unit, extra or ExtraKeys())


@given(a=tokens_of, b=tokens_of)
def test_hashes_are_equal_just_where_the_prefixes_are(a: list[int], b: list[int]) -> None:
    x, y = chain(a).hashes, chain(b).hashes
    assert (len(x), len(y)) == (len(a) // 4, len(b) // 4)
    for i in range(min(len(x), len(y))):
        assert (x[i] == y[i]) == (a[: 4 * i + 4] == b[: 4 * i + 4])


def test_the_chain_is_the_formula_written_out() -> None:
    found = chain([1, 2, 3, 4, 5, 6, 7, 8])
    parent = ExtraKeys().root(4, 16)
    for i, ids in enumerate(([1, 2, 3, 4], [5, 6, 7, 8])):
        text = parent + b"".join(t.to_bytes(4, "little") for t in ids)
        parent = hashlib.blake2b(text, digest_size=16).digest()
        assert found.hashes[i] == parent


@given(tokens=tokens_of, cut=st.integers(0, 60))
def test_a_chain_that_grew_equals_one_made_at_once(tokens: list[int], cut: int) -> None:
    image = ExtraKeys(images=(Image(3, 30, b"cat"),))
    grown = chain(tokens[:cut], extra=image)
    twin = grown.copy()
    grown.extend(PrefixKey.from_tokens(tokens, 4))
    assert grown.hashes == chain(tokens, extra=image).hashes
    assert len(twin.hashes) == len(tokens[:cut]) // 4


def test_coarse_hashes_are_read_off_the_fine_chain() -> None:
    fine = chain(list(range(40)))
    assert fine.of_blocks(12) == [fine.at(12), fine.at(24), fine.at(36)]
    assert fine.of_blocks(4) == fine.hashes


def test_another_sequence_is_no_continuation() -> None:
    fine = chain([1, 2, 3, 4, 5])
    with pytest.raises(KdalabError, match="does not continue"):
        fine.extend(PrefixKey.from_tokens([1, 2, 3, 5, 5], 4))
    assert fine.hashed == 4


@pytest.mark.parametrize(
    "other",
    [
        ExtraKeys(salt="b"),
        ExtraKeys(salt="", adapter="a"),
        ExtraKeys("a", "b"),
        ExtraKeys("a", images=(Image(0, 1, b"cat"),)),
    ],
)
def test_salt_adapter_and_an_early_image_change_every_hash(other: ExtraKeys) -> None:
    tokens = list(range(20))
    assert not set(chain(tokens, extra=ExtraKeys("a")).hashes) & set(
        chain(tokens, extra=other).hashes
    )


def test_fields_do_not_run_into_each_other() -> None:
    assert ExtraKeys("ab", "c").root(4, 16) != ExtraKeys("a", "bc").root(4, 16)


def test_an_image_counts_from_the_unit_that_it_begins_in_and_by_its_place() -> None:
    tokens = [0] * 20
    plain = chain(tokens).hashes
    cat = chain(tokens, extra=ExtraKeys(images=(Image(9, 14, b"cat"),))).hashes
    dog = chain(tokens, extra=ExtraKeys(images=(Image(9, 14, b"dog"),))).hashes
    later = chain(tokens, extra=ExtraKeys(images=(Image(10, 15, b"cat"),))).hashes
    for other in (plain, dog, later):
        assert cat[:2] == other[:2]
        assert not set(cat[2:]) & set(other[2:])


def test_units_of_another_size_or_off_the_page_do_not_mix() -> None:
    assert chain([0] * 16, 4).hashes[1] != chain([0] * 16, 8).hashes[0]
    with pytest.raises(KdalabError, match="not a multiple of the key's pages"):
        HashChain(PrefixKey.from_tokens([0] * 16, 4), 6)
