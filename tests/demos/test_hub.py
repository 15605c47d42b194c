"""The frame that pages share, without a browser: step bar, log, code, notebook, public address."""

from __future__ import annotations

import html
import json

import gradio as gr
import pytest
from gradio_client import Client

from demos import _page, app, compare, partial
from demos._controls import Choice
from demos._layout import frame_at, labels
from demos._lesson import guard
from demos._text import t
from demos.restore import LESSON
from kdalab.words import LANGUAGES


@pytest.fixture(scope="module")
def client(hub):
    return Client(hub, verbose=False)


def marks(film):
    class Mark:
        def __init__(self, step):
            self.sentence, self.tone = film.sentence(step, "en"), film.tone(step)

    return [Mark(i) for i in range(film.last + 1)]


def test_the_log_filters_by_request_and_marks_this_step():
    fork = LESSON.settings({"scenario": "fork"})
    film = LESSON.play(fork)
    all_rows = film.log("en")
    assert len(all_rows) == len(film.run.events)
    log = frame_at(LESSON, fork, film.opening, ("en", ""), "B")[-1]
    assert log.count("<tr") == 1 + sum(row.request == "B" for row in all_rows)
    nobody = frame_at(LESSON, fork, film.opening, ("en", ""), "nobody")[-1]
    assert nobody.count("<tr") == 1 + len(all_rows)
    assert nobody.count('<tr class="here"') == sum(row.step == film.opening for row in all_rows)


def test_the_step_bar_marks_restore_copy_checkpoint_and_eviction():
    film = LESSON.play(LESSON.settings({"scenario": "pressure"}))
    bar = _page.step_bar_html(marks(film), 0, "q=1")
    for kind in ("restore", "snapshot", "evict", "finish"):
        assert bar.count(f'class="{kind}') == sum(s.tone == kind for s in film.run.steps) > 0
    assert bar.count("data-step") == film.last + 1
    assert "<b>R</b> match or restore" in bar
    assert "<b>R</b> 匹配或恢复" in _page.step_bar_html(marks(film), 0, "q=1", lang="zh")
    assert '"><img' not in _page.step_bar_html(marks(film), 0, 'a="><img src=x>')


def test_a_page_without_a_notebook_says_so_and_names_no_other():
    assert "jupyter lab notebooks/04_joint" in _page.notebook_html("joint")
    assert "ipynb" not in _page.notebook_html("no such topic")
    assert "no notebook for this page" in _page.notebook_html("no such topic")


def test_wrong_input_becomes_a_message_not_a_traceback():
    with pytest.raises(gr.Error, match="use one of fan-out"):
        guard(LESSON.settings, {"scenario": "nope"})


def test_the_code_section_shows_the_code_that_runs():
    page = html.unescape(_page.code_html(LESSON.code))
    assert "def lookup(self, key: PrefixKey) -> Lookup:" in page
    assert "kdalab/cache/radix.py" in page


def test_each_page_has_one_public_address_and_it_is_named(client):
    named = client.view_api(return_format="dict", print_info=False)["named_endpoints"]
    files = [f"/{slug}_file" for slug in ("density", "lab")]
    assert sorted(named) == sorted([*(f"/{page.slug}" for page in app.pages()), *files])


def test_a_script_gets_the_numbers_of_the_page(client):
    answer = client.predict(settings={}, api_name="/restore")
    run = LESSON.play(LESSON.default).run
    assert [s["sentence"] for s in answer["steps"]] == [s.sentence for s in run.steps]
    assert len(answer["data"]["events"]) == len(run.events)
    (measured,) = answer["data"]["measured"]
    assert (measured["restore"], measured["logits"], measured["first_difference"]) == (192, 0, None)
    json.dumps(answer)


def test_a_script_sees_what_a_fault_breaks(client):
    answer = client.predict(settings={"fault": ["skip_replay"]}, api_name="/restore")
    assert answer["data"]["measured"][0]["logits"] > 0.01


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"tokens": 10_000}, "use 1 to 32"),
        ({"spacing": 65}, "64, 128, 192, 256"),
        ({"a": "x" * 5_000, "b": "y"}, "the limit is 768"),
        ({"fault": ["all"]}, "use some of skip_replay"),
    ],
)
def test_the_server_checks_every_number_again(client, change, says):
    with pytest.raises(Exception, match=says):
        client.predict(settings=change, api_name="/restore")


def test_pages_share_nothing_and_serve_no_files():
    options = _page.launch_options()
    assert options["share"] is False
    assert options["ssr_mode"] is False
    assert options["allowed_paths"] == []
    assert "http" not in options["head"].replace("http://www.w3.org", "")


def test_every_page_has_an_address_a_question_and_a_sentence():
    listed = app.pages()
    assert len({p.slug for p in listed}) == len(listed)
    for page in listed:
        for lang in LANGUAGES:
            assert t(lang, f"{page.slug}.question").endswith(("?", "？"))
            assert page.title(lang)


def test_steps_count_from_one_to_the_number_of_marks():
    film = LESSON.play(LESSON.default)
    settings = LESSON.default
    bar = frame_at(LESSON, settings, film.last, ("en", ""), "")[3]
    assert f"step {film.last + 1} of {film.last + 1}" in bar
    assert f"step={film.last}" in html.unescape(bar)  # the address stays as it was
    assert "step 1 of " in frame_at(LESSON, settings, 0, ("en", ""), "")[3]
    assert 'title="step 1 of ' in bar


def test_a_dropdown_has_room_for_its_longest_option_in_any_language():
    for page in app.pages():
        lesson = getattr(page.module, "LESSON", None)
        for control in lesson.row if lesson else ():
            if isinstance(control, Choice):
                longest = max(
                    len(t.option(lang, page.slug, control.key, o))
                    for lang in ("en", "ko")
                    for o in control.options
                )
                width = control.component(page.slug).min_width
                assert width >= min(420, 7 * longest + 70), (page.slug, control.key)


def test_signs_of_a_page_stand_under_its_picture():
    for page, word in ((partial, "Numbered circles"), (compare, "its own colour")):
        lesson = page.LESSON
        assert word in labels(lesson, app.pages(), lesson.default, ("en", ""))[-1]


def test_a_newcomer_finds_the_tour_first():
    for lang in LANGUAGES:
        heading, first, cards = app._words(lang, lang)
        assert t(lang, "home.sentence") in html.unescape(heading)
        assert f'href="./tour?lang={lang}"' in first
        assert cards.count("<a ") == len(app.pages()) - 1  # the tour is not named twice


def test_a_preset_holds_until_one_of_its_values_is_changed():
    lessons = [p.module.LESSON for p in app.pages() if hasattr(p.module, "LESSON")]
    for lesson in (x for x in lessons if x.presets):
        for name in lesson.presets:
            assert not lesson.changed(lesson.settings({lesson.preset: name})), (lesson.slug, name)
    chosen = partial.LESSON
    assert not chosen.changed(chosen.settings({"preset": "large", "breaks": ["coarse"]}))
    assert chosen.changed(chosen.settings({"preset": "large", "shared": 400}))  # as in another one
    assert chosen.changed(chosen.settings({"beyond": 10}))
    assert not chosen.changed(chosen.chosen("small", {"shared": 9, "attention": 1}))
