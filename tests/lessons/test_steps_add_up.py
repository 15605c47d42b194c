"""A step's words count what happened in it: tokens that its sentence names are events of it."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from kdalab.engine import events as ev
from kdalab.lessons import SHARING_STRATEGIES, Recording, play_sharing, play_unified
from kdalab.lessons.steps import steps_of
from kdalab.phrases import say

CASES = [(strategy, cow) for strategy in SHARING_STRATEGIES for cow in (True, False)]
UNIFIED = [("mixed",), ("mixed", True), ("mixed", False, 70, "second"), ("decode", False, 80)]


def said(sentence: str) -> Counter[str]:
    """Request -> tokens that it generates, as the sentence has it."""
    if single := re.fullmatch(r"(\w+) generates (\d+) tokens?\.", sentence):
        return Counter({single[1]: int(single[2])})
    if each := re.fullmatch(r"(.+) generate (\d+) tokens? each, in one batch\.", sentence):
        return Counter({name: int(each[2]) for name in re.split(", | and ", each[1])})
    if parts := re.fullmatch(r"One batch generates tokens: (.+)\.", sentence):
        return Counter({n: int(k) for n, k in (p.split() for p in parts[1].split(", "))})
    return Counter()


def check(run: Recording) -> None:
    first = told = 0
    for step in run.steps:
        events = run.events[first : step.event_index]
        made = Counter(e.request for e in events if isinstance(e, ev.Decoded))
        assert said(step.sentence) == made, step.sentence
        told += made.total()
        first = step.event_index
    assert told == sum(isinstance(e, ev.Decoded) for e in run.events) > 0


@pytest.mark.parametrize(("strategy", "cow"), CASES)
def test_tokens_in_the_words_are_tokens_of_the_log(strategy: str, cow: bool) -> None:
    check(play_sharing(strategy, 12, cow).run)


@pytest.mark.parametrize("case", UNIFIED)
def test_so_they_are_in_unified_memory(case: tuple[str]) -> None:
    check(play_unified(*case).run)


def test_unequal_counts_are_named_one_by_one_in_three_languages() -> None:
    log: list[ev.Event] = [ev.Admitted(name, n, 0, 0, (), ()) for n, name in enumerate("BC")]
    log += [ev.Decoded(name, n, 1) for n, name in enumerate("BCB")]
    sentence = steps_of(log, ["B", "C"])[3].sentence
    assert sentence == "One batch generates tokens: B 2, C 1."
    assert {say(lang, sentence) != sentence for lang in ("zh", "ko")} == {True}
    assert "B 2, C 1" in say("ko", sentence)
