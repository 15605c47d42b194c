"""What a page refuses it names as it is, in whole sentences, without Python's own words."""

from __future__ import annotations

import pytest

from demos import sizes
from kdalab.errors import KdalabError

_CONFIG = '{"model_type": "kimi_linear"'


@pytest.mark.parametrize(
    ("pasted", "says"),
    [
        ("{", "is not JSON: .* at line 1, column 2. Paste a whole config.json"),
        ("[1]", "config is a JSON list; it must be an object"),
        ('{"model_type": "llama"}', "model_type 'llama' is not a hybrid that this reads; known: "),
        (_CONFIG + "}", "the config lacks "),
        (_CONFIG + ', "a": 1, "a": 2}', "the pasted config states 'a' twice"),
        ("[" * 50_000, "nests too many brackets"),
        (_CONFIG + ', "hidden_size": ' + "9" * 5_000 + "}", "a number of thousands of digits"),
    ],
)
def test_json_that_is_no_config_is_not_called_no_json(pasted, says):
    with pytest.raises(KdalabError, match=says) as refused:
        sizes.film(sizes.LESSON.settings({"config": pasted}))
    said = str(refused.value)
    assert ("not JSON" in said) == (pasted == "{")
    assert "sys." not in said
    assert "recursion" not in said


def test_a_long_refusal_is_not_cut_in_a_word():
    with pytest.raises(KdalabError) as refused:
        sizes.film(sizes.LESSON.settings({"config": '{"model_type": "llama"}'}))
    assert str(refused.value).endswith("qwen3_5_moe")
