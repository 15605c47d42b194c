"""What scripts may count on, and what they may not do: every page's public address."""

from __future__ import annotations

import threading

import pytest
from gradio_client import Client

from demos import _pages
from demos._controls import Choice, Number, Switches, Text
from demos._uploads import Upload
from kdalab.errors import KdalabError

LESSONS = [p.module.LESSON for p in _pages.listed() if hasattr(p.module, "LESSON")]
every_lesson = pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.slug)

TAG = "<img src=x onerror=alert(1)>"
HUGE, DEEP = 10**30, [[[[[[]]]]]]


@pytest.fixture(scope="module")
def client(hub):
    return Client(hub, verbose=False)


def hostile(control):
    """Values that no control of this kind may take."""
    never = [None, {"a": 1}, DEEP, True]
    numbers = [HUGE, -HUGE, 10**400, -(10**400), -1, 1e308, "NaN", "inf", "-inf", "0x10", ""]
    if isinstance(control, Number):
        return [*never, *[n for n in numbers if n != -1 or control.low > -1], TAG, "1; 2"]
    if isinstance(control, Choice):
        allowed = {str(o) for o in control.options}
        return [*never, *[n for n in numbers if str(n) not in allowed], TAG, "no-such-choice"]
    if isinstance(control, Switches):
        return [None, {"a": 1}, DEEP, True, HUGE, TAG, ["no-such-switch"], [TAG], [None]]
    if isinstance(control, Upload):
        return [None, {"a": 1}, DEEP, True, HUGE, TAG, "../../etc/passwd", "a" * 22]
    assert isinstance(control, Text)
    return [None, {"a": 1}, DEEP, True, HUGE, ["a"], "x" * (control.limit + 1)]


def refusal(client, slug, settings):
    """The message that a script gets, which must be one."""
    with pytest.raises(Exception) as caught:
        client.predict(settings, api_name=f"/{slug}")
    return str(caught.value)


def test_every_page_has_its_named_endpoint_and_no_other(client):
    named = client.view_api(return_format="dict", print_info=False)["named_endpoints"]
    files = [f"/{lesson.slug}_file" for lesson in LESSONS if lesson.uploads]
    assert sorted(named) == sorted([*(f"/{page.slug}" for page in _pages.listed()), *files])
    for lesson in LESSONS:
        names = [p["parameter_name"] for p in named[f"/{lesson.slug}"]["parameters"]]
        assert names == ["settings"]


@every_lesson
def test_a_script_gets_the_default_and_finds_its_way_back(client, lesson):
    answer = client.predict({}, api_name=f"/{lesson.slug}")
    assert set(answer) == {"query", "settings", "steps", "data"}
    assert set(answer["settings"]) == {c.key for c in lesson.controls}
    assert len(answer["steps"]) == lesson.play(lesson.default).last + 1


@every_lesson
def test_hostile_values_of_every_control_become_one_clear_message(client, lesson):
    """Every value goes through the endpoint's own function, one a page over the wire as well."""
    from demos._lesson import numbers_of

    numbers = numbers_of(lesson)
    for control in lesson.controls:
        values = hostile(control)
        for value in values:
            with pytest.raises(Exception, match=control.key) as caught:
                numbers({control.key: value})
            assert type(caught.value).__name__ == "Error", (control.key, value)
            assert len(str(caught.value)) < 1_000
    said = refusal(client, lesson.slug, {control.key: values[-1]})
    assert control.key in said
    assert "Traceback" not in said
    assert 'File "' not in said


@pytest.mark.parametrize("settings", [[], "x", 7, None, {"no such setting": 1}, {TAG: TAG}])
def test_settings_that_are_none_are_refused(client, settings):
    said = refusal(client, LESSONS[0].slug, settings)
    assert "settings" in said or "no setting named" in said
    assert "Traceback" not in said


@every_lesson
def test_text_of_a_visitor_is_shown_as_text(lesson):
    for control in lesson.texts:
        try:
            film = lesson.play(lesson.settings({control.key: TAG}))
        except KdalabError:
            continue  # refused by name; anything else is a bug
        for step in range(film.last + 1):
            shown = film.picture(step, "en") + film.why(step, "en") + film.sentence(step, "en")
            assert "<img" not in film.picture(step, "en") + film.why(step, "en"), shown[:200]


def test_private_events_are_not_open_to_a_script_by_a_name(client):
    for name in ("/handler", "/run", "/look", "/take", "/as_json", "/as_file", "/lambda"):
        with pytest.raises(ValueError, match="Cannot find"):
            client.predict(api_name=name)


def test_eight_sessions_at_once_get_what_they_asked_for(hub):
    lesson = next(x for x in LESSONS if x.slug == "chunks")
    answers: dict[int, int] = {}

    def visit(pieces):
        one = Client(hub, verbose=False)
        found = one.predict({"pieces": pieces}, api_name=f"/{lesson.slug}")
        answers[pieces] = len(found["data"]["pieces"])

    wanted = [2, 3, 4, 5, 6, 7, 8, 2]
    threads = [threading.Thread(target=visit, args=(n,)) for n in wanted]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert answers == {n: n for n in wanted}
