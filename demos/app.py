"""The hub: what this is, and a card for each page. ``python -m demos.app`` opens it."""

from __future__ import annotations

from typing import Any

import gradio as gr

from demos import _opening, _page, restore
from demos._blocks import App
from demos._nav import cards_html, first_html, nav_html
from demos._page import launch_options as launch_options
from demos._pages import Page, listed
from demos._spool import end_in_order as end_in_order
from demos._text import language_of, t
from demos._text import speak_first as speak_first
from kdalab.phrases import say_html
from kdalab.viz.legend import legend_html
from kdalab.viz.svg import esc
from kdalab.words import LANGUAGES

_QUIET: dict[str, Any] = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}


def pages() -> list[Page]:
    """Every page, in order."""
    return list(listed())


def build_app() -> gr.Blocks:
    """All pages in one app, each under its own address."""
    found = listed()
    with App(title="KDALab", fill_width=True, delete_cache=_page.DELETE_FILES) as app:
        gr.Navbar(visible=False)
        _home(app)
        for page in found:
            _route(app, page)
            gr.Navbar(visible=False)
            page.module.build(app)
    return app


def draw_pages(app: gr.Blocks, first: str = "") -> None:
    """Draw what the pages open with, in a thread, the page ``first`` before the others."""
    _opening.start(app, first)


def _route(app: gr.Blocks, page: Page) -> None:
    """What follows stands under ``/<slug>``.

    As ``with app.route(...)``, in the one context of the whole app: each context that is left
    writes out every component so far and builds a server, which took most of the hub's start.
    """
    app.pages.append((page.slug, page.title("en"), True))
    app.current_page = page.slug


def _home(app: gr.Blocks) -> None:
    """The front page: what this is, the pages by group, and one picture that is true."""
    with gr.Row(elem_classes="kd-top"):
        nav = _page.nav(nav_html(listed(), "", "en", ""))
        chooser = gr.Dropdown(
            [(name, code) for code, name in LANGUAGES.items()],
            value="en",
            label=t("en", "common.language"),
            elem_id="kd-language",
            container=False,
            min_width=110,
            scale=0,
        )
    heading, first, cards = _words("en", "")
    with gr.Row(elem_classes="kd-front"):
        with gr.Column(scale=3, min_width=320):
            parts = [_page.block(heading)]
        with gr.Column(scale=2, min_width=320):
            parts.append(_page.block(first))
    teaser, drawn = _page.picture("", "kd-teaser"), _opening.drawn_box()
    parts.append(_page.block(cards))
    _opening.later(app, "", lambda: [_teaser("en", "")], [teaser], drawn)

    def speak(code: str) -> tuple[Any, ...]:
        lang = code if code in LANGUAGES else "en"
        label = gr.Dropdown(value=lang, label=t(lang, "common.language"))
        return label, nav_html(listed(), "", lang, lang), *_front(lang, lang)

    outputs = [chooser, nav, *parts, teaser]
    chooser.input(speak, chooser, outputs, **_QUIET)

    def look(ready: str, http: gr.Request) -> tuple[Any, ...]:
        lang = language_of(http)
        chosen = lang if http.query_params.get("lang") in LANGUAGES else ""
        if lang == "en" and not chosen:
            last = gr.skip() if ready == _opening.DRAWN else _teaser("en", "")
            return *(gr.skip(),) * (len(outputs) - 1), last
        label = gr.Dropdown(value=lang, label=t(lang, "common.language"))
        return label, nav_html(listed(), "", lang, chosen), *_front(lang, chosen)

    app.load(look, drawn, outputs, **_QUIET)


def _front(lang: str, chosen: str) -> list[str]:
    return [*_words(lang, chosen), _teaser(lang, chosen)]


def _words(lang: str, chosen: str) -> list[str]:
    """What this is, where to begin, and every page."""
    heading = _page.heading_html(t(lang, "home.question"), t(lang, "home.sentence"))
    return [heading, first_html(lang, chosen), cards_html(listed(), lang, chosen)]


def _teaser(lang: str, chosen: str) -> str:
    """The restore page's own picture, so that the front page shows something true at once."""
    lesson = restore.LESSON
    film = lesson.play(lesson.default)
    step = film.opening
    link = f"restore?{lesson.query(lesson.default, step, chosen)}"
    return (
        f'<p class="kd-note kd-teaser">{esc(t(lang, "home.live"))} '
        f"{esc(film.sentence(step, lang))} "
        f'<a href="{esc(link)}">{esc(t(lang, "home.step"))}</a></p>{film.picture(step, lang)}'
        f"{say_html(lang, legend_html())}"
    )


if __name__ == "__main__":
    _page.launch_alone(build_app())
