"""A page on a telephone: one line of menus, the touched part of the picture in sight."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.browser


def test_a_narrow_page_shows_its_menus_in_a_line_and_what_the_step_touched(browser, hub):
    page = browser.new_context(viewport={"width": 400, "height": 860}).new_page()
    page.goto(f"{hub}/tree")
    page.wait_for_selector("#kd-picture svg")
    page.wait_for_timeout(300)
    assert page.locator("nav.kd-nav .kd-groups").bounding_box()["height"] < 60

    group = page.locator("nav.kd-nav .kd-menu.here")
    box = group.locator("summary").bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 400
    group.locator("summary").click()
    link = group.locator("a[href='./density']")
    shown = link.bounding_box()
    assert shown["x"] >= 0
    assert shown["x"] + shown["width"] <= 400
    link.click()  # it can be reached: nothing covers or clips it
    page.wait_for_url("**/density*")

    page.goto(f"{hub}/modes?step=6")
    page.wait_for_selector("#kd-picture svg .now", state="attached")
    page.wait_for_timeout(300)
    outside = page.evaluate(
        """() => { const box = document.querySelector('#kd-picture .kd-scroll');
        const seen = box.getBoundingClientRect();
        const at = box.querySelector('.now').getBoundingClientRect();
        const wide = box.scrollWidth > box.clientWidth;
        return [wide, at.left >= seen.left, at.right <= seen.right] }"""
    )
    assert outside == [True, True, True]
    tops = page.evaluate(
        """() => [...document.querySelectorAll('.kd-marks button:not(.plain)')]
        .map((b) => b.getBoundingClientRect()).map((b) => [b.left, b.top])"""
    )
    close = [(a, b) for i, a in enumerate(tops) for b in tops[:i]
             if abs(a[0] - b[0]) < 20 and abs(a[1] - b[1]) < 20]  # fmt: skip
    assert close == []
    page.context.close()


def test_a_narrow_screen_says_where_a_picture_goes_on_until_its_end(browser, hub):
    page = browser.new_context(viewport={"width": 400, "height": 860}).new_page()
    sign = """(id) => [':before', ':after'].map(
        (side) => getComputedStyle(document.getElementById(id), side).content)"""
    end = """(id) => document.querySelectorAll(`#${id} .kd-scroll`)
        .forEach((box) => { box.scrollLeft = 9999; })"""
    for path, box in (
        ("", "kd-teaser"),
        ("tree?step=0", "kd-picture"),
        ("tour?stop=2", "kd-picture"),
    ):
        page.goto(f"{hub}/{path}")
        page.wait_for_selector(f"html:not(.kd-waits) #{box} .kd-scroll.more-right")
        assert "›" in page.evaluate(sign, box)[1]
        page.evaluate(end, box)
        page.wait_for_selector(f"#{box} .kd-scroll.more-left:not(.more-right)")
        before, after = page.evaluate(sign, box)
        assert "‹" in before
        assert after == "none"
    page.context.close()


def test_the_way_home_stays_in_sight_and_scrollbars_follow_the_theme(browser, hub):
    page = browser.new_context(viewport={"width": 400, "height": 860}).new_page()
    page.goto(f"{hub}/transfer?__theme=dark")
    page.wait_for_selector("#kd-picture svg")
    page.wait_for_timeout(300)
    home, speech = (page.locator(x).bounding_box() for x in (".kd-home", "#kd-language"))
    assert home["x"] >= 0
    assert home["x"] + home["width"] < speech["x"]
    assert speech["x"] + speech["width"] <= 400
    line = page.locator(".kd-groups").bounding_box()
    assert line["width"] > 300
    group = page.locator(".kd-menu.here summary").bounding_box()
    assert line["x"] <= group["x"]
    assert group["x"] + group["width"] <= line["x"] + line["width"]
    assert page.evaluate("getComputedStyle(document.documentElement).colorScheme") == "dark"
    page.context.close()
