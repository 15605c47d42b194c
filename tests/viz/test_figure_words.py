"""Figures in the reader's language and theme."""

from __future__ import annotations

import re

import plotly.graph_objects as go
import pytest

from demos import _pages
from kdalab.viz.css import figures_stylesheet
from kdalab.viz.figure_words import said_figure
from kdalab.viz.palette import DARK, LIGHT

DRAWN = [p.module.LESSON for p in _pages.listed() if getattr(p.module, "LESSON", None)]
DRAWN = [lesson for lesson in DRAWN if lesson.figures]


@pytest.mark.parametrize("lesson", DRAWN, ids=lambda lesson: lesson.slug)
def test_titles_and_axes_of_every_page_s_figures_speak_the_reader_s_language(lesson):
    film = lesson.play(lesson.default)
    for lang, script in (("zh", "[一-鿿]"), ("ko", "[가-힣]")):
        for figure in film.figures(lang):
            said = said_figure(lang, figure)
            assert re.search(script, said.layout.title.text), said.layout.title.text
            if lesson.slug in ("lab", "sizes"):  # their words are the book's, not the page's
                for axis in (said.layout.xaxis, said.layout.yaxis):
                    assert re.search(script, axis.title.text), axis.title.text


def test_what_the_book_does_not_know_and_english_stay():
    figure = go.Figure(layout={"title": {"text": "Something else"}})
    assert said_figure("ko", figure).layout.title.text == "Something else"
    figure = go.Figure(layout={"title": {"text": "What memory buys"}})
    assert said_figure("en", figure).layout.title.text == "What memory buys"
    assert said_figure("zh", figure).layout.title.text == "内存换来什么"


def test_every_colour_of_the_light_theme_has_its_counterpart_in_the_dark():
    rules = figures_stylesheet()
    assert f'[style*="fill: rgb(27, 31, 36)"] {{ fill: {DARK.text} !important; }}' in rules
    assert f'[style*="stroke: rgb(225, 228, 232)"] {{ stroke: {DARK.grid} !important; }}' in rules
    assert tuple(bytes.fromhex(LIGHT.text[1:])) == (27, 31, 36)
    assert tuple(bytes.fromhex(LIGHT.grid[1:])) == (225, 228, 232)
