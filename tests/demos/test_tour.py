"""The tour: its answers are the runs' own, its links lead to the steps, its place is a link."""

from __future__ import annotations

import html
import json
import pickle
import re
from dataclasses import replace
from urllib.parse import parse_qsl, urlsplit

import gradio as gr
import pytest

from demos import _pages
from demos import _tour_parts as show
from demos._lesson import joined, read_link
from demos._text import t
from demos._tour_parts import Place, read_place
from demos._tour_stops import STOPS, tell, told
from demos.tour import questions
from kdalab.errors import KdalabError
from kdalab.words import LANGUAGES

every_stop = pytest.mark.parametrize("number", range(len(STOPS)), ids=[s.name for s in STOPS])


def all_right():
    return Place(0, "".join(str(x.stop.options.index(x.right)) for x in told()))


# What each run must say, computed here from the engine's own records and not by the tour.
def _film(page, **given):
    lesson = next(p.module.LESSON for p in _pages.listed() if p.slug == page)
    return lesson.play(lesson.settings(given))


def test_the_numbers_of_the_answers_are_those_of_the_runs():
    values = {x.stop.name: x.values for x in told()}
    restore = _film("restore").run
    assert values["match"]["restore"] == restore.measured[0].restore == 192
    assert values["match"]["match"] == 320
    assert values["match"]["replay"] == 320 - 192
    assert values["match"]["new"] == restore.measured[0].n_tokens - 320
    # A state at the end of every whole block of 8,192, and 15,000 tokens shared.
    assert values["partial"]["restore"] == 15_000 // 8192 * 8192
    assert values["partial"]["replay"] == 15_000 - 8192
    shares = {p["interval"]: p["hit_share"] for p in _film("density").data()["tight"]}
    assert shares[values["density"]["tight"]] == max(shares.values())
    assert values["state"]["exact"] == 1  # with cosines of 0.5 only the last write is untouched
    assert values["donate"]["copied"] == 0
    assert values["cow"]["wrong"] == 3
    assert values["verify"]["off"] == 0
    assert values["int8"]["ratio"] > 4


@every_stop
def test_another_run_would_make_another_answer_right(number):
    """The right option follows from the numbers, so that a changed engine changes the quiz."""
    stop, values = STOPS[number], told()[number].values
    other = {
        "state": {"exact": values.get("pairs")},
        "match": {"restore": values.get("match")},
        "density": {"free": 65_536},
        "cow": {"wrong": 0},
        "donate": {"copied": 1},
        "int8": {"ratio": 1.0},
        "unified": {"served": False},
        "partial": {"replay": 0},
        "retention": {"goes": values.get("oldest")},
        "transfer": {"bytes": 0},
        "verify": {"off": 1.0},
    }[stop.name]
    changed = stop.right({**values, **other})
    assert changed in stop.options
    assert changed != told()[number].right


def test_a_film_at_other_settings_gives_other_numbers():
    stop = replace(STOPS[1], given={"scenario": "edit-late"})
    lesson = told()[1].lesson
    with pytest.raises(StopIteration):  # nothing falls back there
        tell(stop, lesson)
    dense = tell(replace(STOPS[1], given={"spacing": 128}), lesson)
    assert dense.values["restore"] == 320 // 128 * 128


@every_stop
@pytest.mark.parametrize("lang", LANGUAGES)
def test_every_stop_speaks_with_a_picture_of_its_page(number, lang):
    x = told()[number]
    for answer in ("-", "0", "1", "2"):
        answers = "-" * number + answer + "-" * (len(STOPS) - number - 1)
        place = Place(number, answers)
        said = show.question_html(place, lang) + show.verdict_html(place, lang, lang)
        assert html.escape(x.link(x.after, lang)) in said  # also before it is answered
        script = {"en": "[a-z]", "zh": "[一-鿿]", "ko": "[가-힣]"}[lang]
        assert re.search(script, said)
        assert "{" not in said
        assert x.picture(answer != "-", lang) in show.picture_html(place, lang)
        if answer == "-":  # the question may not give the answer away
            assert show.say(lang, x, "told") not in said
        else:
            assert ("✓" in said) == (x.stop.options[int(answer)] == x.right)
    texts = [text for text, _ in show.choices(Place(number), lang)]
    assert len(set(texts)) == len(texts) == 3


@every_stop
def test_a_stop_links_to_the_step_that_it_shows(number):
    x = told()[number]
    for step in (x.before, x.after):
        url = urlsplit(x.link(step, "ko"))
        settings, at = read_link(x.lesson, joined(parse_qsl(url.query)))
        assert url.path == f"./{x.stop.page}"
        assert settings == x.lesson.settings(dict(x.stop.given))
        assert at == step
        assert 0 <= at <= x.film.last
        assert "lang=ko" in url.query


def test_the_right_answers_do_not_stand_in_one_place():
    places = [x.stop.options.index(x.right) for x in told()]
    assert all(places.count(i) >= 2 for i in range(3))


def test_a_prediction_counts_once_and_wrong_names_are_refused():
    place = Place().answered("none")
    assert place.answer == "none"
    assert place.answered("last") == place
    with pytest.raises(KdalabError, match="use all, none, last"):
        Place().answered("<script>")
    assert Place(len(STOPS)).answered("all") == Place(len(STOPS))


@pytest.mark.parametrize("place", [Place(), Place(3, "0-2--1-----"), Place(11, "01201201201")])
def test_a_link_brings_back_the_place_and_the_answers(place):
    assert read_place(dict(parse_qsl(place.query("zh")))) == place
    assert "lang=zh" in place.query("zh")
    assert len(pickle.dumps(place)) < 300


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ({"stop": "x"}, "not a whole number"),
        ({"stop": "-1"}, "not a whole number"),
        ({"answers": "9----------"}, "give 11 signs"),
        ({"answers": "0"}, "give 11 signs"),
        ({"step": "3"}, "'step' in the link is nothing this page has; use stop, answers, lang"),
        ({"lang": "xx"}, "use en, zh, ko"),
        ({"answers": "<b>--------"}, "give 11 signs"),
        ({"answers": "²----------"}, "give 11 signs"),
    ],
)
def test_a_link_with_nonsense_is_refused(query, says):
    with pytest.raises(KdalabError, match=says):
        read_place(query)


@pytest.mark.parametrize("stop", ["0", "13", "999"])
def test_a_stop_that_does_not_exist_is_refused_with_those_that_do(stop):
    assert len(STOPS) == 11  # and the score
    with pytest.raises(KdalabError, match=f"^stop={stop} in the link; .* the stops 1 to 12$"):
        read_place({"stop": stop})
    assert read_place({"stop": "12"}).done


@pytest.mark.parametrize("lang", LANGUAGES)
def test_the_score_counts_and_each_doubt_leads_to_the_step_that_answers_it(lang):
    end = all_right().moved(99)
    page = show.question_html(end, lang, lang)
    assert t(lang, "tour.score", right=11, of=11) in page
    assert t(lang, "tour.score-all") in page
    links = re.findall(r'<a href="([^"]+)">([^<]+)</a>', page)
    assert [html.unescape(href) for href, _ in links] == [x.link(x.after, lang) for x in told()]
    assert len({text for _, text in links}) == len(STOPS)
    wrong = Place(end.at, "-" + end.answers[1:5] + "0" + end.answers[6:])
    assert show.right_answers(wrong).count(True) == 9
    page = show.question_html(wrong, lang)
    assert t(lang, "tour.score", right=9, of=11) in page
    assert t(lang, "tour.score-left", open=1) in page
    assert t(lang, "tour.score-all") not in page


def test_beside_the_score_stand_the_pages_that_the_tour_has_not_shown():
    page = show.next_html(all_right().moved(99), _pages.listed(), "en", "ko")
    slugs = re.findall(r'href="\./(\w+)\?lang=ko"', page)
    assert {*slugs, *(x.stop.page for x in told()), "tour"} == {p.slug for p in _pages.listed()}
    assert len(set(slugs)) == len(slugs)


@every_stop
def test_every_figure_of_an_answer_stands_on_the_page_at_the_step_it_leads_to(number):
    x = told()[number]
    film, step = x.film, x.after
    seen = [film.sentence(step, "en"), film.why(step, "en"), film.picture(step, "en")]
    seen += [str(cell) for table in film.tables(step, "en") for row in table.rows for cell in row]
    seen += [figure.to_json() for figure in film.figures("en")]
    page = re.sub(r"<[^>]+>", " ", " ".join(seen)).replace(" %", "%")
    for figure in re.findall(r"\d[\d,.]*\d|\d", show.say("en", x, "told")):
        assert re.search(rf"(?<![\d.,]){re.escape(figure)}(?![\d]|[.,]\d)", page), figure


def test_the_api_gives_every_question_in_a_language():
    found = questions("ko")
    assert len(found) == len(STOPS)
    assert all(q["right"] in q["options"] for q in found)
    assert re.search("[가-힣]", found[0]["doubt"])
    json.dumps(found)
    with pytest.raises(gr.Error, match="use one of"):
        questions("xx")


def test_the_picture_of_a_question_shows_no_scores_and_that_of_the_answer_does():
    x = next(x for x in told() if x.stop.name == "retention")
    posed, answered = (x.picture(answered, "en") for answered in (False, True))
    assert x.values["score"] in answered
    assert x.values["score"] not in posed
    assert t("en", "retention.recency") not in posed
    assert "<svg" in posed


def test_the_answer_on_density_is_shown_as_it_was_asked_without_a_budget():
    x = next(x for x in told() if x.stop.name == "density")
    shown = x.lesson.settings(dict(x.stop.given))
    assert shown["memory"] == "unlimited"
    assert shown["interval"] == x.values["free"]
    assert f"{x.values['free_share']}%" in x.film.sentence(x.after, "en")


@pytest.mark.parametrize("lang", LANGUAGES)
def test_the_longest_option_is_not_the_right_one_as_a_rule(lang):
    longest = 0
    for number, x in enumerate(told()):
        texts = {option: len(text) for text, option in show.choices(Place(number), lang)}
        longest += texts[x.right] == max(texts.values())
    assert longest <= len(STOPS) // 2


@pytest.mark.parametrize("name", ["cow", "donate", "unified"])
def test_the_picture_of_a_question_draws_nothing_of_later_steps(name):
    x = next(x for x in told() if x.stop.name == name)
    posed, page = x.picture(False, "en"), x.film.picture(x.before, "en")
    assert len(posed) < len(page)
    assert "<svg" in posed
    assert t("en", "sharing.word-overwritten") not in posed
    assert t("en", "unified.note-refused") not in posed
    assert x.picture(True, "en") == x.film.picture(x.after, "en")


def test_the_partial_hit_that_the_answer_names_is_that_of_the_page_with_the_switch_off():
    values = next(x.values for x in told() if x.stop.name == "partial")
    fine = _film("partial", shared=15_000, block=8192, unit=128).data()
    assert values["fine"] == fine["restore"] == 14_976


def test_the_price_of_donating_is_that_of_the_strategies():
    values = next(x.values for x in told() if x.stop.name == "donate")
    kept = _film("sharing", strategy="copy").found.held
    assert (values["own"], values["spares"], values["copy"]) == (3, 2, kept)
