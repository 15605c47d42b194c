"""A page on a telephone: one line of menus, the touched part of the picture in sight."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.browser


def test_a_narrow_page_shows_its_menus_in_a_line_and_what_the_step_touched(browser, hub):
    page = browser.new_context(viewport={"width": 400, "height": 860}).new_page()
    page.goto(f"{hub}/tree")
    page.wait_for_selector("#kd-picture svg")
    page.wait_for_timeout(300)
    assert page.locator("nav.kd-nav").bounding_box()["height"] < 60

    group = page.locator("nav.kd-nav .kd-menu.here")
    box = group.locator("summary").bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 400
    group.locator("summary").click()
    link = group.locator("a[href='./density']")
    shown = link.bounding_box()
    assert shown["x"] >= 0
    assert shown["x"] + shown["width"] <= 400
    link.click(timeout=3000)  # it can be reached: nothing covers or clips it
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
