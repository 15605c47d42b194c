"""The tour in a real browser: predict, see, go on, come back; two readers apart."""

from __future__ import annotations

import pytest
from test_lessons_browser import opened

from demos._text import t
from demos._tour_stops import STOPS, told

pytestmark = pytest.mark.browser


def wait_for_address(page, text):
    page.wait_for_function("q => location.search.includes(q)", arg=text)


def predict(page, option):
    page.locator("#kd-options input").nth(option).check()
    page.click("#kd-check")
    page.wait_for_selector("#kd-why h3")


def test_a_reader_goes_from_the_first_doubt_to_the_score(browser, hub):
    with opened(browser, f"{hub}/tour") as page:
        for number, x in enumerate(told()):
            page.wait_for_function(
                "q => document.querySelector('#kd-question h2')?.innerText === q",
                arg=t("en", f"tour.{x.stop.name}-doubt", **x.values),
            )
            predict(page, x.stop.options.index(x.right))
            assert "As you predicted" in page.inner_text("#kd-why")
            assert page.locator("#kd-picture svg").count() > 0
            assert page.locator("#kd-options input").first.is_disabled()
            page.click("#kd-forward")
            wait_for_address(page, f"stop={number + 2}&")
        page.get_by_text("11 of 11 predicted rightly").wait_for()
        assert not page.locator("#kd-options").is_visible()
        page.locator("#kd-tour-en button").nth(2).click()
        wait_for_address(page, "stop=3&")
        assert t("en", "tour.density-doubt") in page.inner_text("#kd-question")
        page.click("#kd-again")
        wait_for_address(page, "answers=" + "-" * len(STOPS))
        page.wait_for_selector("#kd-check")


def test_the_keyboard_alone_is_enough(browser, hub):
    with opened(browser, f"{hub}/tour") as page:
        page.locator("#kd-options input").first.focus()
        page.keyboard.press("Tab")
        page.keyboard.press("Space")  # the second option; nothing is decided yet
        assert page.locator("#kd-check").is_visible()
        page.keyboard.press("Tab")
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.id") == "kd-check"
        page.keyboard.press("Enter")
        page.wait_for_selector("#kd-why h3")
        wait_for_address(page, "answers=1")
        page.evaluate("document.activeElement.blur()")
        page.keyboard.press("ArrowRight")
        wait_for_address(page, "stop=2&")
        page.keyboard.press("ArrowLeft")
        wait_for_address(page, "stop=1&")


def test_a_link_opens_the_same_place_and_leads_into_a_page(browser, hub):
    with opened(browser, f"{hub}/tour?stop=2&answers=20---------") as page:
        page.get_by_text("Not as predicted. It is: at 192").wait_for()
        page.locator("#kd-why a").click()
        page.wait_for_selector("#kd-stepbar input[type=range]")
        page.wait_for_function(
            "document.querySelector('#kd-stepbar input[type=range]')?.value == 13"
        )


def test_checking_without_a_choice_asks_for_one(browser, hub):
    with opened(browser, f"{hub}/tour") as page:
        page.click("#kd-check")
        page.get_by_text("Choose one of the answers first.").wait_for()
        assert page.locator("#kd-check").is_visible()
        predict(page, 1)


def test_a_wrong_link_is_explained(browser, hub):
    with opened(browser, f"{hub}/tour?answers=xyz") as page:
        page.get_by_text("give 11 signs").wait_for()
        page.wait_for_function("location.search === ''")


def test_a_wrong_link_to_a_page_is_explained_and_leaves_the_address(browser, hub):
    with opened(browser, f"{hub}/restore?step=99999&__theme=dark") as page:
        page.get_by_text("this run has the steps 0 to").wait_for()
        page.wait_for_function("location.search === '?__theme=dark'")
        assert page.locator("#kd-stepbar input[type=range]").is_visible()


@pytest.mark.parametrize("lang", ["zh", "ko"])
def test_every_label_of_the_way_is_in_the_reader_s_language(browser, hub, lang):
    with opened(browser, f"{hub}/tour?lang={lang}&stop=11") as page:
        page.wait_for_selector(f"#kd-tour-{lang} button")
        shown = page.locator(f"#kd-tour-{lang} button").all_inner_texts()
        for stop, text in zip(STOPS, shown, strict=False):
            assert t(lang, f"tour.{stop.name}-short") in text
        assert not page.locator("#kd-tour-en").is_visible()
        assert t(lang, "tour.again") in page.inner_text("#kd-again")


@pytest.mark.parametrize("query", ["stop=-1", "stop=99", "answers=x"])
def test_a_refused_link_begins_the_tour_in_the_reader_s_language(browser, hub, query):
    with opened(browser, f"{hub}/tour?{query}&lang=zh") as page:
        page.get_by_text(f"链接中的 {query.partition('=')[0]}=").wait_for()
        page.wait_for_selector("#kd-tour-zh button")
        page.get_by_text(t("zh", "tour.check")).wait_for()
        wait_for_address(page, "stop=1&answers=-----------&lang=zh")


def test_two_readers_do_not_disturb_each_other(browser, hub):
    with opened(browser, f"{hub}/tour") as one, opened(browser, f"{hub}/tour?stop=4") as two:
        predict(one, 2)
        wait_for_address(one, "answers=2----------")
        assert two.locator("#kd-check").is_visible()
        predict(two, 0)
        wait_for_address(two, "answers=---0-------")
        assert "answers=2----------" in one.url
