"""Every word of every picture stands inside it, whatever the step, the fault and the language."""

from __future__ import annotations

from pathlib import Path

import pytest

from demos import _pages
from kdalab.viz import css

pytestmark = [pytest.mark.browser, pytest.mark.slow]

LESSONS = [p.module.LESSON for p in _pages.listed() if hasattr(p.module, "LESSON")]

STYLE = Path(css.__file__).with_name("pictures.css").read_text("utf-8")
OUTSIDE = """() => [...document.querySelectorAll('svg')].flatMap((svg) => {
  const wide = svg.viewBox.baseVal.width;
  const own = svg.getCTM();
  return [...svg.querySelectorAll('text')].map((text) => {
    const box = text.getBBox(), at = own.inverse().multiply(text.getCTM());
    return [text.textContent, at.a * box.x + at.e, at.a * (box.x + box.width) + at.e];
  }).filter(([, left, right]) => wide && right > left && (left < -2 || right > wide + 2));
})"""


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.slug)
def test_no_word_of_a_picture_is_cut_at_its_edge(browser, lesson):
    page = browser.new_context().new_page()
    films = [{}, *({c.key: [name]} for c in lesson.broken for name in c.options)]
    for settings in films:
        film = lesson.play(lesson.settings(settings))
        for lang in ("en", "zh", "ko"):
            for step in range(film.last + 1):
                page.set_content(f"<style>{STYLE}</style>{film.picture(step, lang)}")
                assert page.evaluate(OUTSIDE) == [], (settings, lang, step)
    page.context.close()
