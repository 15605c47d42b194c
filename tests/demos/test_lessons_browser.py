"""Every page in a real browser: it opens, steps, moves every control, speaks three languages."""

from __future__ import annotations

import re
from contextlib import contextmanager

import pytest

from demos import _pages
from demos._text import t

pytestmark = pytest.mark.browser

PAGES = _pages.listed()
LESSONS = [p.module.LESSON for p in PAGES if hasattr(p.module, "LESSON")]
every_lesson = pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.slug)

# Pages take turns: each opens in one of the two languages here, and in the other with -m slow.
SPOKEN = [
    pytest.param(listed.slug, lang, id=f"{listed.slug}-{lang}", marks=marks)
    for number, listed in enumerate(PAGES)
    for lang, marks in (
        (("zh", "ko")[number % 2], ()),
        (("ko", "zh")[number % 2], pytest.mark.slow),
    )
]


@contextmanager
def opened(browser, url, width=1360, **options):
    """A page in a context of its own; on leaving, nothing may have gone wrong on the way."""
    context = browser.new_context(viewport={"width": width, "height": 900}, **options)
    page = context.new_page()
    trouble, requests = [], []
    page.on("console", lambda m: trouble.append(m.text) if m.type == "error" else None)
    page.on("pageerror", lambda e: trouble.append(str(e)))
    page.on("request", lambda r: requests.append(r.url))
    page.goto(url)
    page.wait_for_selector("#kd-picture :is(svg, table)")
    try:
        yield page
        host = url.split("/")[2]
        outside = [r for r in requests if not r.startswith((f"http://{host}/", "data:", "blob:"))]
        assert outside == []
        assert trouble == []
    finally:
        context.close()


def wait_for_step(page, step):
    page.wait_for_function(
        "n => document.querySelector('#kd-stepbar input[type=range]')?.value == n", arg=str(step)
    )


@every_lesson
def test_a_page_opens_steps_to_its_end_and_back_and_moves_every_control(browser, hub, lesson):
    film = lesson.play(lesson.default)
    with opened(browser, f"{hub}/{lesson.slug}") as page:
        assert t("en", f"{lesson.slug}.question") in page.inner_text("h1")
        if film.last:
            wait_for_step(page, film.opening)
            for step in range(film.opening + 1, film.last + 1):
                page.click("#kd-forward")
                wait_for_step(page, step)
            page.click("#kd-first")
            wait_for_step(page, 0)
        for index in range(lesson.figures):
            plot = page.locator(f"#kd-plot-{index} .js-plotly-plot svg.main-svg").first
            plot.wait_for()
            box = plot.bounding_box()
            assert box is not None
            assert min(box["width"], box["height"]) > 100
        # A clip that names the whole address hides the lines once a step changes the address.
        clips = page.eval_on_selector_all(
            ".js-plotly-plot [clip-path]", "all => all.map(e => e.getAttribute('clip-path'))"
        )
        assert all(clip.startswith("url(#") for clip in clips), clips
        assert bool(clips) == bool(lesson.figures)
        for control in lesson.broken:
            other = next((o for o in control.options if o not in control.default), None)
            if other is None:
                continue
            box = page.get_by_label(t.option("en", lesson.slug, control.key, other), exact=True)
            box.check()
            value = ".".join(control.check([*control.default, other]))
            page.wait_for_function("q => location.search.includes(q)", arg=f"{control.key}={value}")
            box.uncheck()
            page.wait_for_function("q => !location.search.includes(q)", arg=f"{control.key}=")
        for control in lesson.row:
            box = page.locator(f"#kd-{control.key}")
            if hasattr(control, "options"):
                other = next((o for o in control.options if o != control.default), None)
                if other is None:
                    continue
                box.locator("input").click()
                label = t.option("en", lesson.slug, control.key, other)
                box.get_by_role("option", name=label, exact=True).click()
                page.wait_for_function("k => location.search.includes(k)", arg=f"{control.key}=")
            else:
                number = box.locator("input[type=number]")
                number.fill(str(control.low))
                number.press("Enter")
                number.blur()


@pytest.mark.parametrize(("slug", "lang"), SPOKEN)
def test_a_page_speaks_the_browser_s_language_dark_and_narrow(browser, hub, slug, lang):
    locale = {"zh": "zh-CN", "ko": "ko-KR"}[lang]
    url = f"{hub}/{slug}?__theme=dark"
    with opened(browser, url, width=400, locale=locale) as page:
        page.wait_for_function(
            "q => document.querySelector('h1')?.innerText === q",
            arg=t(lang, f"{slug}.question"),
        )
        script = "[一-鿿]" if lang == "zh" else "[가-힣]"
        assert re.search(script, page.inner_text("#kd-why"))
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth + 1")


def test_the_language_can_be_switched_on_the_page(browser, hub):
    lesson = LESSONS[0]
    with opened(browser, f"{hub}/{lesson.slug}") as page:
        page.locator("#kd-language input").click()
        page.get_by_role("option", name="한국어", exact=True).click()
        page.wait_for_function(
            "q => document.querySelector('h1')?.innerText === q",
            arg=t("ko", f"{lesson.slug}.question"),
        )
        page.wait_for_function("location.search.includes('lang=ko')")
        assert t("ko", "common.forward") in page.inner_text("#kd-forward")


def test_the_front_page_lists_every_page_and_speaks_korean(browser, hub):
    context = browser.new_context(viewport={"width": 1360, "height": 900}, locale="ko-KR")
    page = context.new_page()
    page.goto(f"{hub}/")
    page.wait_for_function(
        "q => document.querySelector('h1')?.innerText === q", arg=t("ko", "home.question")
    )
    cards = page.locator(".kd-cards a h3").all_inner_texts()
    first, *others = cards  # the tour stands before all, under the name of where to begin
    assert first == t("ko", "home.new")
    assert others == [p.title("ko") for p in PAGES if p.slug != "tour"]
    page.wait_for_selector("#kd-teaser svg")
    assert page.locator("#kd-teaser svg").first.bounding_box()["y"] < 450  # on the first screen
    context.close()
