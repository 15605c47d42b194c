"""The matrix: whatever differs, it is refused, and the field is named."""

from __future__ import annotations

import pytest

from kdalab.transfer import refusal_matrix

FIELDS = {
    "the same state": "",
    "latent KV of A, state of B": "prefix",
    "another model": "model",
    "another version of the weights": "model_version",
    "another tokenizer": "tokenizer",
    "an adapter's state": "extra",
    "recurrent state of another dtype": "state_dtype",
    "conv state of another dtype": "conv_dtype",
    "latent KV of another dtype": "kv_dtype",
    "K and V swapped": "recurrent_layout",
    "conv axes swapped": "conv_layout",
    "one of two ranks": "parallel.tp_size",
    "another pipeline stage": "parallel.pp_size",
    "another page size": "page_tokens",
    "rounded to INT8": "checkpoint_dtype",
    "another boundary": "boundary",
    "other text of equal length": "prefix",
    "another image in the same text": "images",
    "two states in one file": "recurrent.prefix",
    "one bit changed on the way": "conv",
    "a newer format": "a bundle of version 2; this reader knows 1",
}
ROWS = {row.case: row for row in refusal_matrix()}


def test_every_case_of_the_matrix_is_expected_here() -> None:
    assert list(ROWS) == list(FIELDS)


@pytest.mark.parametrize("case", FIELDS)
def test_what_differs_is_refused_by_name(case: str) -> None:
    row = ROWS[case]
    assert row.refused == (case != "the same state"), row
    assert row.field == FIELDS[case]
    if row.ours:
        assert row.ours != row.theirs
        assert f"{row.field}: ours {row.ours}, theirs {row.theirs}" in row.message
