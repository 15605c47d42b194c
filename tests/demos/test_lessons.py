"""What holds for every page built on the common frame, without a browser."""

from __future__ import annotations

import json
import re
from pathlib import Path
from urllib.parse import parse_qsl

import pytest

from demos import _pages
from demos._controls import Choice, Number, Settings, Switches, Text, checked
from demos._lesson import Lesson, clipped, numbers_of, read_link
from demos._text import t
from demos._uploads import UPLOADS
from kdalab.errors import KdalabError
from kdalab.lab.generate import generated_trace, shape
from kdalab.lab.request import report_of
from kdalab.lessons.uploads import UploadedTrace
from kdalab.viz.svg import esc
from kdalab.words import LANGUAGES

DEMOS = Path(_pages.__file__).parent
LESSONS = [p.module.LESSON for p in _pages.listed() if hasattr(p.module, "LESSON")]
every_lesson = pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.slug)


def settings_to_try(lesson: Lesson) -> list[Settings]:
    """The default, every preset, both ends of every number, every option and every switch.

    Of a page with long runs what the trace does not depend on is tried with a short file.
    """
    given: list[dict] = [{}]
    for control in lesson.controls:
        if isinstance(control, Choice):
            given += [{control.key: o} for o in control.options]
        if isinstance(control, Number):
            given += [{control.key: control.low}, {control.key: control.high}]
        if isinstance(control, Switches):
            given += [{control.key: [o]} for o in control.options]
    if lesson.long:
        own = short_file()
        given = [g if not g or {"trace", "requests"} & g.keys() else g | own for g in given]
    return [lesson.settings(g) for g in given]


def short_file() -> dict:
    """Settings that take a visitor's file of 12 requests."""
    trace = generated_trace(12, shape("agent-like"), 0, "mine")
    read = UploadedTrace("mine", trace, False, report_of(trace))
    return {"trace": "file", "file": UPLOADS.keep("someone", read)}


@every_lesson
def test_every_setting_runs_and_every_step_speaks_three_languages(lesson):
    for settings in settings_to_try(lesson):
        film = lesson.play(settings)
        assert 0 <= film.opening <= film.last
        steps = {0, film.opening, film.last, film.last // 2}
        for lang in LANGUAGES if settings == lesson.default else ["en"]:
            for step in range(film.last + 1) if settings == lesson.default else steps:
                assert film.sentence(step, lang).strip()
                assert "<svg" in film.picture(step, lang) or "<table" in film.picture(step, lang)
                assert film.why(step, lang).startswith('<div class="kd-why">')
                assert film.tables(step, lang)
        json.dumps(film.data(), allow_nan=False)
        assert len(film.figures("en")) == lesson.figures


@every_lesson
def test_the_panel_beside_a_step_says_more_than_the_sentence_under_it(lesson):
    film = lesson.play(lesson.default)
    for step in {0, film.opening, film.last}:
        for lang in LANGUAGES:
            why = lesson.drawn(lesson.default, step, lang)[1]
            assert why.startswith('<div class="kd-why"><h3')
            if why.count("<h3") > 1:
                assert f">{esc(film.sentence(step, lang))}</p>" not in why


@every_lesson
def test_chinese_and_korean_pages_are_not_english(lesson):
    film = lesson.play(lesson.default)
    for lang, script in (("zh", "[一-鿿]"), ("ko", "[가-힣]")):
        said = [film.sentence(i, lang) for i in range(film.last + 1)]
        assert sum(bool(re.search(script, s)) for s in said) >= 0.9 * len(said), said


@pytest.mark.parametrize("slug", [p.slug for p in _pages.listed()])
def test_every_page_has_its_words_in_three_languages(slug):
    for lang, script in (("en", "[A-Za-z]"), ("zh", "[一-鿿]"), ("ko", "[가-힣]")):
        for key in ("title", "question", "sentence"):
            assert re.search(script, t(lang, f"{slug}.{key}"))


def without_a_file(lesson: Lesson, settings: Settings) -> Settings:
    """What a link can name: a visitor's file is nobody else's, and its choice is the default."""
    uploads = {c.key: c.default for c in lesson.uploads}
    own = {
        c.key: c.default
        for c in lesson.controls
        if isinstance(c, Choice) and c.own and settings[c.key] == c.own
    }
    return settings.changed(**uploads, **own)


@every_lesson
def test_a_link_names_the_settings_and_the_step(lesson):
    for settings in settings_to_try(lesson):
        query = dict(parse_qsl(lesson.query(settings, 1), keep_blank_values=True))
        again, step = read_link(lesson, query)
        assert again == without_a_file(lesson, settings)
        assert step == 1


@every_lesson
def test_nonsense_from_a_script_is_refused_by_name(lesson):
    bad = [float("nan"), float("inf"), -1e300, "<script>", None, [], {}, True, 10**30]
    for control in lesson.controls:
        for value in bad:
            if isinstance(control, Switches | Text) and value in ("<script>", []):
                continue  # a text may say anything, and no switch at all is fine
            with pytest.raises(KdalabError, match=control.key):
                checked(lesson.controls, {control.key: value})
    with pytest.raises(KdalabError, match="no setting named"):
        checked(lesson.controls, {"nowhere": 1})


@every_lesson
def test_the_api_returns_what_the_page_shows(lesson):
    numbers = numbers_of(lesson)({})
    film = lesson.play(lesson.default)
    assert len(numbers["steps"]) == film.last + 1
    assert numbers["steps"][-1]["sentence"] == film.sentence(film.last, "en")
    assert numbers["data"] == film.data()


@every_lesson
def test_pages_and_their_links_exist(lesson):
    slugs = {p.slug for p in _pages.listed()}
    assert set(lesson.next) <= slugs
    assert f"common.group-{lesson.group}" in t
    for key, _ in lesson.code:
        assert f"{lesson.slug}.{key}" in t


def test_steps_are_clipped_to_those_that_exist():
    film = LESSONS[0].play(LESSONS[0].default)
    assert clipped(-5, film) == 0
    assert clipped(1e300, film) == film.last
    assert clipped(float("nan"), film) == film.opening
    assert clipped("x", film) == film.opening


def test_no_text_of_the_catalogue_is_left_over():
    """Every key is named in some file, whole or by its part before a dash."""
    source = "\n".join(p.read_text("utf-8") for p in DEMOS.glob("*.py"))
    options = {
        f"{lesson.slug}.{c.key}-{o}" for lesson in LESSONS for c in lesson.controls
        if isinstance(c, Choice | Switches) for o in c.options
    } | {f"{lesson.slug}.{c.key}" for lesson in LESSONS for c in lesson.controls}  # fmt: skip
    unused = []
    for key in t.words.entries:
        name = key.split(".", 1)[1]
        stems = [name[: m.start()] for m in re.finditer("-", name)]
        named = any(re.search(rf"[\"'./]{re.escape(x)}[\"'{{-]", source) for x in [name, *stems])
        if not (named or key in options or name in ("title", "question", "sentence", "about")):
            unused.append(key)
    assert unused == []


def test_the_joint_page_says_why_no_state_is_there_and_opens_where_a_switch_leads():
    (joint,) = (lesson for lesson in LESSONS if lesson.slug == "joint")

    def keys(**given):
        film = joint.play(joint.settings(given))
        return [film._key(i) for i in range(6)], film

    assert keys(example="edit", spacing=192)[0][2:4] == ["recurrent-beyond", "conv-beyond"]
    assert keys(example="pressure", spacing=128)[0][2:4] == ["recurrent-none", "conv-none"]
    names, film = keys(example="pressure", spacing=64)
    assert film.run.token_match == 0
    assert names[5] == "joint-gone"
    assert film.opening == 5
    _, film = keys(breaks="skip-replay.drop-conv.one-letter")
    assert film.kinds[film.opening] == "one-letter"


def test_the_modes_page_says_that_mode_none_has_no_state_to_break():
    (modes,) = (lesson for lesson in LESSONS if lesson.slug == "modes")
    settings = modes.settings({"mode": "none", "breaks": "through"})
    film = modes.play(settings)
    assert "mode none keeps no state" in film.why(film.opening, "en")
    assert film.data() == modes.play(modes.settings({"mode": "none"})).data()
