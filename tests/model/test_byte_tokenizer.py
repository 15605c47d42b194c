"""Bytes in, bytes out; no text can smuggle in a mark; the mapping has one name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdalab.model import ByteTokenizer, tiny_config

TOKENIZER = ByteTokenizer()


@given(st.text())
def test_every_text_comes_back_from_its_ids(text: str) -> None:
    ids = TOKENIZER.encode(text)
    assert TOKENIZER.decode(ids) == text
    assert all(0 <= i < 256 for i in ids)
    assert TOKENIZER.decode(iter(ids)) == text


@given(st.lists(st.integers(-5, 400)))
def test_every_list_of_ids_has_a_text(ids: list[int]) -> None:
    assert isinstance(TOKENIZER.decode(ids), str)


@given(st.text(), st.text())
def test_ids_of_two_texts_in_a_row_are_the_ids_of_the_joined_text(a: str, b: str) -> None:
    assert TOKENIZER.encode(a) + TOKENIZER.encode(b) == TOKENIZER.encode(a + b)


def test_the_marks_follow_the_bytes_in_order() -> None:
    marks = ["<bos>", "<eos>", "<pad>", "<system>", "<user>", "<assistant>"]
    assert [TOKENIZER.id_of(m) for m in marks] == [256, 257, 258, 259, 260, 261]
    assert TOKENIZER.vocab_size == 262 <= tiny_config().vocab_size
    ids = [TOKENIZER.id_of("<user>"), *TOKENIZER.encode("hé"), TOKENIZER.id_of("<eos>")]
    assert TOKENIZER.decode(ids) == "<user>hé<eos>"


def test_a_mark_that_is_typed_stays_text() -> None:
    assert TOKENIZER.encode("<eos>") == [60, 101, 111, 115, 62]


def test_an_unknown_mark_is_refused() -> None:
    with pytest.raises(ValueError):
        TOKENIZER.id_of("<tool>")


def test_ids_beyond_the_marks_and_broken_bytes_are_shown_as_replaced() -> None:
    assert TOKENIZER.decode([262, 65, 319, -1]) == "\ufffdA\ufffd\ufffd"
    assert TOKENIZER.decode([0xC3]) == "\ufffd"
    assert TOKENIZER.decode([0xC3, 256, 0xA9]) == "\ufffd<bos>\ufffd"  # a mark ends a character


def test_the_fingerprint_is_that_of_this_mapping_and_of_no_other() -> None:
    class Other(ByteTokenizer):
        marks = (*ByteTokenizer.marks[:-1], "<tool>")

    literal = "f8a278ea286914f1fb5dce5163244ffa083756a047f56509be53f2bd80a1be58"
    assert ByteTokenizer().fingerprint == literal
    assert Other().fingerprint != literal
