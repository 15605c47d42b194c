"""Pages are built empty, drawn in a thread or by their first visitor, and each run is made once."""

from __future__ import annotations

import threading

import gradio as gr
import pytest

from demos import _opening, _page, _pages
from demos._kept import Kept
from demos._layout import frame_at
from kdalab.errors import KdalabError


def test_what_two_ask_for_at_once_is_made_once_and_both_get_it():
    made, go = [], threading.Event()

    def make(key):
        made.append(key)
        assert go.wait(10)
        return key * 2

    kept, got = Kept(make), []
    threads = [threading.Thread(target=lambda: got.append(kept("a"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert not kept.has("a")
    go.set()
    for thread in threads:
        thread.join(10)
    assert got == ["aa"] * 4
    assert made == ["a"]
    assert kept.has("a")


def test_what_raises_is_not_kept():
    answers = iter([KdalabError("no"), None])

    def make(key):
        error = next(answers)
        if error:
            raise error
        return key

    kept = Kept(make)
    with pytest.raises(KdalabError):
        kept(1)
    assert kept(1) == 1


def test_the_oldest_goes_first_and_use_keeps_young():
    made = []
    kept = Kept(lambda key: made.append(key) or key, limit=2)
    for key in (1, 2, 1, 3, 1, 2):
        assert kept(key) == key
    assert made == [1, 2, 3, 2]


@pytest.fixture(scope="module")
def app():
    from demos import app

    return app.build_app()


def shown(app, slug, elem_id):
    """A component as a visitor of ``slug`` gets it."""
    on_page = set(app.config["page"][slug]["components"])
    (props,) = [
        c["props"]
        for c in app.config["components"]
        if c["id"] in on_page and c["props"].get("elem_id") == elem_id
    ]
    return props


def test_building_plays_nothing_and_drawing_fills_every_page(app):
    lessons = [p.module.LESSON for p in _pages.listed() if hasattr(p.module, "LESSON")]
    slug = lessons[0].slug
    assert not shown(app, slug, "kd-picture").get("value")
    _opening.draw_all(app, first=lessons[-1].slug)
    for lesson in lessons:
        film = lesson.play(lesson.default)
        at = film.opening
        _, picture, why, bar, _, _ = frame_at(lesson, lesson.default, at, ("en", ""), "")
        assert shown(app, lesson.slug, "kd-picture")["value"] == picture
        assert shown(app, lesson.slug, "kd-why")["value"] == why
        assert shown(app, lesson.slug, "kd-stepbar")["value"] == bar
        for index in range(lesson.figures):
            assert shown(app, lesson.slug, f"kd-plot-{index}")["value"]["type"] == "plotly"
        picked = shown(app, lesson.slug, "kd-fold-zoom")["visible"]
        assert picked == ("data-pick" in picture)


def test_a_refused_link_is_answered_with_every_output_of_its_page(app):
    refusals = [fn for fn in app.fns.values() if fn.name == "refused"]
    assert len(refusals) == sum(hasattr(p.module, "LESSON") for p in _pages.listed())
    for fn in refusals:
        assert len(fn.fn(({"none": "1"}, "ko"))) == len(fn.outputs)


def test_pages_stand_as_gradio_s_own_routes_do(app):
    with gr.Blocks() as other:
        gr.HTML("")
    for page in _pages.listed():
        with other.route(page.title("en"), f"/{page.slug}"):
            gr.HTML("")
    assert app.pages[1:] == other.pages[1:]
    found = [set(app.config["page"][page.slug]["components"]) for page in _pages.listed()]
    assert all(found)
    assert len(set.union(*found)) == sum(map(len, found))


def test_a_page_that_nobody_drew_is_drawn_when_it_is_opened(client_of):
    lesson = next(p.module.LESSON for p in _pages.listed() if hasattr(p.module, "LESSON"))
    page = _page.build_lesson(lesson, None)
    look = next(fn.fn for fn in page.fns.values() if getattr(fn.fn, "__name__", "") == "look")
    drawn = look("", client_of(""))
    film = lesson.play(lesson.default)
    assert film.picture(film.opening, "en") in drawn
    skipped = look(_opening.DRAWN, client_of(""))
    assert film.picture(film.opening, "en") not in skipped
    follows = look("", client_of("step=1"))
    assert film.picture(film.opening, "en") not in follows  # the link's own event draws it
    broken = look("", client_of("step=x"))
    assert film.picture(film.opening, "en") in broken


@pytest.fixture
def client_of():

    from starlette.datastructures import QueryParams

    class Visit:
        def __init__(self, query):
            self.query_params = QueryParams(query)
            self.headers = {}

    return Visit


def test_the_server_forgets_the_least_recently_used_visit():
    with gr.Blocks() as app:
        gr.State(0)
    app.launch(prevent_thread_lock=True, quiet=True, **_page.launch_options())
    try:
        kept = app.state_holder
        for visit in range(_page.MAX_VISITS + 5):
            kept[f"visit {visit}"]
        assert len(kept.session_data) == len(kept.time_last_used) == _page.MAX_VISITS
        assert "visit 4" not in kept
        assert "visit 5" in kept
    finally:
        app.close(verbose=False)


def test_a_program_that_ends_draws_no_further_page(monkeypatch):
    drawn = []
    with gr.Blocks() as page:
        box = _opening.drawn_box()
        for slug in ("a", "b"):
            _opening.later(page, slug, lambda slug=slug: drawn.append(slug) or [], [], box)

    class Ended:
        @staticmethod
        def is_alive():
            return False

    monkeypatch.setattr(_opening.threading, "main_thread", Ended)
    thread = _opening.start(page)
    thread.join(10)
    assert drawn == []
    assert not thread.daemon  # cut off inside torch, it would take the process down with it
