"""Keys are made of whole numbers only: nothing is cut, wrapped or rounded on the way."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kdalab.cache import PrefixKey
from kdalab.errors import KdalabError


@pytest.mark.parametrize(
    ("blocks", "block_tokens", "n_tokens", "message"),
    [
        ([1.5, 2], 4, 8, "whole numbers below 2"),
        ([True], 4, 4, "whole numbers below 2"),
        (["1"], 4, 4, "whole numbers below 2"),
        ([2**63], 4, 4, "whole numbers below 2"),
        ([2**70], 4, 4, "whole numbers below 2"),
        ([[1], [2, 3]], 4, 8, "whole numbers below 2"),
        (np.array([1.0]), 4, 4, "whole numbers below 2"),
        ([1], 0, 4, "a block holds at least 1"),
        ([1], -4, 4, "a block holds at least 1"),
        ([1], 4, -1, "it has 0 or more"),
        ([1], 4, 8, "only 1 block ids"),
    ],
)
def test_what_is_no_list_of_block_ids_is_refused(
    blocks: Any, block_tokens: int, n_tokens: int, message: str
) -> None:
    with pytest.raises(KdalabError, match=message):
        PrefixKey.from_blocks(blocks, block_tokens, n_tokens)


@pytest.mark.parametrize("ids", [[3, 2**63 - 1], (3, 2**63 - 1), np.array([3, 2**63 - 1])])
def test_block_ids_keep_all_their_bits(ids: Any) -> None:
    key = PrefixKey.from_blocks(ids, 4, 11)
    assert np.frombuffer(key.data, np.int64).tolist() == [3, 2**63 - 1]
    assert (key.n_pages, key.n_tokens) == (2, 11)


def test_a_prompt_shorter_than_a_block_has_an_empty_key() -> None:
    assert PrefixKey.from_blocks([], 4, 3).data == b""
    assert PrefixKey.from_blocks([9], 4, 3).data == b""
