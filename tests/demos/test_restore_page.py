"""The restore page: its prompts, its old links, its zoom; what other pages share is elsewhere."""

from __future__ import annotations

import pickle
import re
from urllib.parse import parse_qsl

import pytest

from demos import _engine_draw as draw
from demos._lesson import joined, opened, read_link
from demos.restore import LESSON, scenario_of
from kdalab.errors import KdalabError
from kdalab.lessons import MAX_PROMPT_TOKENS, RESTORE
from kdalab.words import LANGUAGES


def read(query):
    return read_link(LESSON, joined(parse_qsl(query, keep_blank_values=True), ["fault"]))


def settings(**given):
    return LESSON.settings(given)


@pytest.mark.parametrize(
    "given",
    [
        *[{"scenario": name} for name in RESTORE],
        {"spacing": 64, "tokens": 3, "fault": ["drop_conv", "skip_replay"]},
        {"scenario": "edit", "spacing": 192, "a": "a & b = c?", "b": "ü% +#\nnext", "c": "third"},
        {"scenario": "fork", "a": "one", "b": "two", "c": ""},
    ],
    ids=str,
)
def test_a_link_brings_back_the_settings_and_the_step(given):
    chosen = settings(**given)
    assert read(LESSON.query(chosen, 7)) == (chosen, 7)


@pytest.mark.parametrize(
    ("query", "means"),
    [
        ("scenario=fan-out&spacing=192&step=13", {}),
        ("scenario=edit&spacing=128&step=9", {"scenario": "edit"}),
        ("scenario=edit&spacing=192", {"scenario": "edit", "spacing": 192}),
        ("tokens=3&fault=skip_replay&fault=drop_conv", {
            "tokens": 3, "fault": ["skip_replay", "drop_conv"],
        }),
        ("scenario=fork&a=one&b=two&c=", {"scenario": "fork", "a": "one", "b": "two", "c": ""}),
        ("scenario=fork&b=two", {"scenario": "fork", "b": "two"}),
    ],
)  # fmt: skip
def test_links_made_before_still_mean_the_same(query, means):
    assert read(query)[0] == settings(**means)


def test_of_a_name_that_comes_twice_the_last_value_counts_but_switches_add_up():
    assert read("step=3&step=5") == (LESSON.default, 5)
    twice = [("lang", "zh"), ("lang", "ko"), ("fault", "a"), ("fault", "b"), ("fault", "c")]
    assert joined(twice, ["fault"]) == {"lang": "ko", "fault": "a.b.c"}


def test_a_theme_a_view_and_where_a_reader_came_from_are_no_settings():
    assert read("__theme=dark&view=api&utm_source=x") == (LESSON.default, None)


def test_the_last_step_of_a_run_can_be_linked_to():
    last = LESSON.play(LESSON.default).last
    assert opened(LESSON, {"step": str(last)})[1] == last


def test_a_link_can_leave_out_a_third_prompt():
    again, _ = read(LESSON.query(settings(scenario="fork", a="one", b="two", c=""), 0))
    assert [p.text for p in scenario_of(again).prompts] == ["one", "two"]


@pytest.mark.parametrize("name", list(RESTORE))
def test_an_example_sets_its_prompts_and_spacing_and_its_link_repeats_neither(name):
    chosen = scenario_of(settings(scenario=name))
    assert chosen.prompts == RESTORE[name].prompts
    assert chosen.spacing == RESTORE[name].spacing
    query = LESSON.query(settings(scenario=name), 0)
    assert not re.search(r"\b(a|b|c)=", query)


def test_choosing_an_example_keeps_the_switches_and_the_output_length():
    now = settings(scenario="fork", tokens=3, fault=["drop_conv"], a="own").as_dict()
    chosen = LESSON.chosen("edit", now)
    assert chosen == settings(scenario="edit", tokens=3, fault=["drop_conv"])


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: read("scenario=%3Cscript%3E"), "use one of fan-out"),
        (lambda: settings(spacing=100), "64, 128, 192, 256"),
        (lambda: settings(tokens=33), "use 1 to 32"),
        (lambda: settings(fault=["rm"]), "use some of skip_replay, drop_conv"),
        (lambda: settings(a="x" * (MAX_PROMPT_TOKENS + 1)), "the limit is 768"),
        (lambda: settings(a="é" * (MAX_PROMPT_TOKENS // 2 + 1)), "770 bytes"),
        (lambda: LESSON.play(settings(a="", b="y")), "prompt A is empty"),
        (lambda: read("step=-1"), "not a whole number"),
        (lambda: read("foo=1"), "'foo' in the link is nothing this page has; use scenario, "),
        (lambda: read("lang=xx"), "lang='xx' in the link; use en, zh, ko"),
        (lambda: opened(LESSON, {"step": "99999"}), "step=99999 in the link; this run has"),
    ],
)
def test_what_is_out_of_range_is_refused_with_the_reason(call, says):
    with pytest.raises(KdalabError, match=says):
        call()


def test_half_a_surrogate_pair_becomes_a_question_mark():
    assert settings(a="a\ud800b")["a"] == "a?b"


def test_what_an_open_page_keeps_is_small():
    assert len(pickle.dumps(settings(**dict.fromkeys("abc", "x" * MAX_PROMPT_TOKENS)))) < 4_000


@pytest.mark.parametrize("name", list(RESTORE))
def test_a_page_opens_at_a_step_worth_looking_at(name):
    film = LESSON.play(settings(scenario=name))
    step = film.run.steps[film.opening]
    assert step.request == film.run.scenario.prompts[-1].name
    replays = [s.kind for s in film.run.steps if s.request == step.request]
    assert step.kind in (("Replayed",) if "Replayed" in replays else ("CopiedOnWrite", "Matched"))


def test_a_broken_rule_opens_at_its_damage():
    film = LESSON.play(settings(fault=["skip_replay"]))
    assert film.opening == film.last
    assert film.run.measured[0].logits > 0.01


def test_going_back_draws_what_going_forward_drew():
    film = LESSON.play(LESSON.default)
    forward = [film.picture(i, "en") for i in range(film.last + 1)]
    assert [film.picture(i, "en") for i in range(film.last, -1, -1)] == forward[::-1]
    assert all(picture.count("<svg") == 3 for picture in forward)


@pytest.mark.parametrize("lang", LANGUAGES)
def test_a_typed_prompt_is_said_to_be_one_and_shown_as_text(lang):
    given = {"a": "<b>hello</b> one", "b": "<b>hello</b> two"}
    film = LESSON.play(settings(**given))
    picture = film.picture(film.opening, lang)
    assert "<b>hello" not in picture
    assert "&lt;b&gt;hello" in picture
    assert film.own
    assert not LESSON.play(LESSON.default).own


@pytest.mark.parametrize("pick", ["node:2", "checkpoint:1", "active:0", "checkpoint:11", "node:99"])
def test_a_pick_is_explained(pick):
    film = LESSON.play(LESSON.default)
    step = film.first_of("CopiedOnWrite")
    seen = film.pick(step, pick, "en")
    assert f"step {step + 1}" in seen.title
    assert ("<svg" in seen.html) == (pick in ("node:2", "checkpoint:1"))


def test_every_layer_and_head_of_a_picked_state_can_be_looked_at():
    film = LESSON.play(LESSON.default)
    layers, heads = film.run.states[0].values.shape[:2]
    first = film.pick(film.opening, "node:2", "en").html
    offered = re.findall(r'data-pick="(node:2/[\d.]+)"', first)
    assert len(offered) == layers * heads
    for name in offered:
        layer, head = name.split("/")[1].split(".")
        seen = film.pick(film.opening, name, "en").html
        assert f"KDA layer {layer}, head {head}</text>" in seen
        assert seen.count('aria-pressed="true"') == 1
    assert film.pick(film.opening, "node:2/99.x", "en") is not None  # clipped, not an error


@pytest.mark.parametrize("lang", [x for x in LANGUAGES if x != "en"])
def test_a_picked_state_is_spoken_of_in_the_reader_s_language(lang):
    film = LESSON.play(LESSON.default)
    html = film.pick(film.opening, "node:2", lang).html
    names = re.findall(r"<title>([^<]*)</title>", html)
    assert len(names) == 32 * 32
    assert all(re.search("[一-鿿가-힣]", n) for n in names)
    assert "KDA layer" not in html


@pytest.mark.parametrize(
    "pick", ["", "node:", "node:-1", "node:1x", "<b>:1", "page:1", "node:9999999"]
)
def test_a_pick_that_is_none_is_refused(pick):
    film = LESSON.play(LESSON.default)
    assert film.pick(5, pick, "en") is None
    with pytest.raises(KdalabError, match="cannot be looked at"):
        draw.zoom(film.run, 5, pick)
