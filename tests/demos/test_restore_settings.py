"""What a browser, a script or a link may set, checked where it arrives; links come back whole."""

from __future__ import annotations

import pickle
from urllib.parse import parse_qsl

import pytest

from demos import _restore_settings as rs
from kdalab.errors import KdalabError
from kdalab.lessons import MAX_PROMPT_TOKENS, RESTORE


def read(query):
    pairs = parse_qsl(query, keep_blank_values=True)
    return rs.from_query(dict(pairs), [value for key, value in pairs if key == "fault"])


@pytest.mark.parametrize(
    "settings",
    [
        *[rs.checked(name) for name in RESTORE],
        rs.checked("fan-out", spacing=64, new_tokens=3, faults=["drop_conv", "skip_replay"]),
        rs.checked("edit", ("a & b = c?", "ü% +#\nnext", "third")),
        rs.checked("fork", ("one", "two", "")),
    ],
    ids=str,
)
def test_a_link_brings_back_the_settings_and_the_step(settings):
    again, step = read(settings.query(7))
    assert step == 7
    assert again == settings


def test_a_link_can_leave_out_a_third_prompt():
    again, _ = read(rs.checked("fork", ("one", "two", "")).query(0))
    assert [p.text for p in rs.scenario_of(again).prompts] == ["one", "two"]


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: rs.checked("nope"), "known: fan-out"),
        (lambda: rs.checked("fan-out", spacing=100), "64, 128, 192, 256"),
        (lambda: rs.checked("fan-out", spacing=float("nan")), "not a number"),
        (lambda: rs.checked("fan-out", spacing="64"), "not a number"),
        (lambda: rs.checked("fan-out", new_tokens=1e9), "whole number in range"),
        (lambda: rs.checked("fan-out", new_tokens=33), "use 1 to 32"),
        (lambda: rs.checked("fan-out", new_tokens=2.5), "whole number"),
        (lambda: rs.checked("fan-out", faults=["rm"]), "known: skip_replay, drop_conv"),
        (lambda: rs.checked("fan-out", ("x" * 10_000, "y")), "Shorten it"),
        (lambda: rs.checked("fan-out", ("", "y")), "prompt A is empty"),
        (lambda: read("scenario=fan-out&step=-1"), "not a whole number"),
        (lambda: read("scenario=fan-out&spacing=64e1"), "not a whole number"),
        (lambda: read("scenario=%3Cscript%3E"), "unknown scenario"),
    ],
)
def test_what_is_out_of_range_is_refused_with_the_reason(call, says):
    with pytest.raises(KdalabError, match=says):
        call()


def test_the_presets_own_texts_are_not_repeated_in_the_link():
    own = tuple(p.text for p in RESTORE["fan-out"].prompts)
    assert rs.checked("fan-out", (*own, "")) == rs.checked("fan-out")
    assert "a=" not in rs.checked("fan-out", own).query(0)


def test_half_a_surrogate_pair_becomes_a_question_mark():
    settings = rs.checked("fan-out", ("a\ud800b", "c"))
    assert settings.texts[0] == "a?b"


def test_the_longest_prompt_in_bytes_is_accepted_and_one_more_is_not():
    rs.checked("fan-out", ("x" * MAX_PROMPT_TOKENS, "é" * (MAX_PROMPT_TOKENS // 2)))
    with pytest.raises(KdalabError, match="Shorten it by 1"):
        rs.checked("fan-out", ("x" * (MAX_PROMPT_TOKENS + 1), "y"))


def test_what_an_open_page_keeps_is_small():
    longest = rs.checked("fan-out", ("x" * MAX_PROMPT_TOKENS,) * 3, faults=["drop_conv"])
    assert len(pickle.dumps(longest)) < 4_000


def test_a_step_that_does_not_exist_becomes_the_nearest(recorded):
    run = recorded("fan-out")
    assert rs.clipped(-5, run) == 0
    assert rs.clipped(10**9, run) == len(run.steps) - 1
    assert rs.clipped(None, run) == rs.clipped(float("nan"), run) == 0


@pytest.mark.parametrize("name", list(RESTORE))
def test_a_page_opens_at_a_step_worth_looking_at(recorded, name):
    run = recorded(name)
    step = run.steps[rs.opening_step(run, rs.checked(name))]
    assert step.request == run.scenario.prompts[-1].name
    assert step.kind in ("Replayed", "CopiedOnWrite", "Matched")
