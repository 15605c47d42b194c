"""The document says its language, and Korean lines break between words."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.browser

_IS = "(tag) => document.documentElement.lang === tag"
_BREAK = "(box) => getComputedStyle(document.querySelector(box)).wordBreak"


@pytest.mark.parametrize(("path", "box"), [("", ".kd-cards p"), ("chunks", ".kd-sentence"),
                                           ("tour", ".kd-page h1")])  # fmt: skip
def test_a_page_says_its_language_from_its_link_and_after_another_is_chosen(
    browser, hub, path, box
):
    page = browser.new_context(viewport={"width": 1280, "height": 900}, locale="en-US").new_page()
    page.goto(f"{hub}/{path}?lang=zh")
    page.wait_for_function(_IS, arg="zh-CN")
    page.goto(f"{hub}/{path}")
    page.wait_for_selector(box)
    page.wait_for_function(_IS, arg="en")
    assert page.evaluate(_BREAK, box) == "normal"
    page.locator("#kd-language input").click()
    page.get_by_role("option", name="한국어").click()
    page.wait_for_function(_IS, arg="ko")
    page.wait_for_function(f"(box) => ({_BREAK})(box) === 'keep-all'", arg=box)
    page.context.close()
