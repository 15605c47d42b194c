"""A page's picture as a file: well-formed, styled by itself, with everything that was shown."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from demos import _pages
from kdalab.viz.picture_file import picture_file
from kdalab.viz.svg import document, text
from kdalab.viz.tables import Table, table_html

LESSONS = [p.module.LESSON for p in _pages.listed() if hasattr(p.module, "LESSON")]


def test_pictures_under_each_other_become_one_and_keep_their_heights():
    first = document(text(1, 2, "one < two"), 100, "a", css_class="kd-tree")
    second = document(text(1, 2, "three"), 50, "b", css_class="kd-orders")
    made = picture_file(f'<div class="kd-scroll">{first}{second}</div>', "a title")
    root = ElementTree.fromstring(made.text)
    assert (made.suffix, made.media_type) == ("svg", "image/svg+xml")
    assert root.get("height") == str(16 + 100 + 12 + 50 + 16)
    groups = root.findall("{*}g")
    assert [g.get("transform") for g in groups] == ["translate(16 16)", "translate(16 128)"]
    assert groups[0].get("class") == "kd-svg kd-tree"
    assert "".join(groups[0].itertext()) == "one < two"
    assert "--kd-bg" in root.find("{*}style").text


def test_a_table_becomes_a_page():
    made = picture_file(table_html(Table("numbers", ("a",), ((1,),))), "<b>")
    assert made.suffix == "html"
    assert "<table" in made.text
    assert "<title>&lt;b&gt;</title>" in made.text


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.slug)
def test_the_opening_picture_of_every_page_is_a_good_file(lesson):
    film = lesson.play(lesson.default)
    shown = film.picture(film.opening, "ko")
    made = picture_file(shown, "x", "dark")
    if made.suffix == "svg":
        root = ElementTree.fromstring(made.text)
        assert len(root.findall("{*}g")) == shown.count("<svg")
    else:
        assert shown in made.text
