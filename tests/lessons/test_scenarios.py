"""A scenario is checked data: what cannot be shown or run is refused with the reason."""

from __future__ import annotations

import pytest

from kdalab.errors import KdalabError
from kdalab.lessons import MAX_PROMPT_TOKENS, RESTORE, Prompt, Scenario, scenario
from kdalab.lessons.scenario import MAX_NEW_TOKENS


def test_names_are_addresses_and_texts_fit():
    for name, item in RESTORE.items():
        assert name == item.name
        assert name.replace("-", "").isalnum()
        for text in (item.title, item.question, item.lead):
            assert text.strip() == text
            assert "!" not in text
        for prompt in item.prompts:
            assert 64 < len(prompt.text.encode()) <= MAX_PROMPT_TOKENS


def test_an_unknown_scenario_lists_the_known_ones():
    with pytest.raises(KdalabError, match="fan-out"):
        scenario("nope")


@pytest.mark.parametrize(
    ("text", "tokens", "says"),
    [
        ("", 8, "empty"),
        ("x" * (MAX_PROMPT_TOKENS + 7), 8, "Shorten it by 7"),
        ("é" * (MAX_PROMPT_TOKENS // 2 + 1), 8, "one byte is one token"),
        ("hello", 0, "use 1 to 32"),
        ("hello", MAX_NEW_TOKENS + 1, "use 1 to 32"),
    ],
)
def test_a_prompt_outside_the_limits_is_refused(text, tokens, says):
    with pytest.raises(KdalabError, match=says):
        Scenario("x", "X", "?", "", (Prompt("A", text, tokens),))


def test_a_spacing_off_the_grid_is_refused():
    with pytest.raises(KdalabError, match=r"multiple of lcm\(64, 16\) = 64"):
        scenario("fan-out").changed(spacing=100)


def test_other_texts_keep_the_letters_and_the_arrivals():
    changed = scenario("fork").changed(texts=("one", "two", ""))
    assert [p.name for p in changed.prompts] == ["A", "B"]
    third = scenario("fan-out").changed(texts=("one", "two", "three"))
    assert [(p.name, p.together) for p in third.prompts] == [
        ("A", False),
        ("B", False),
        ("C", True),
    ]
    with pytest.raises(KdalabError, match="prompt B is empty"):
        scenario("fan-out").changed(texts=("one", "", "three"))
