"""Two readers of one hub, and text that would like to be a script."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.browser


def step_of(page):
    return page.input_value("#kd-stepbar input[type=range]")


def opened(browser, url):
    page = browser.new_context().new_page()
    page.goto(url)
    page.wait_for_selector("#kd-stepbar input[type=range]")
    return page


def test_two_contexts_do_not_see_each_other_s_steps_and_settings(browser, hub):
    one = opened(browser, f"{hub}/tree?step=3")
    two = opened(browser, f"{hub}/tree?step=9&states=3")
    for page, step in ((one, "3"), (two, "9")):
        page.wait_for_function(
            "n => document.querySelector('#kd-stepbar input[type=range]').value === n", arg=step
        )
    for _ in range(2):
        before = step_of(one)
        one.click("#kd-forward")
        one.wait_for_function(
            "n => document.querySelector('#kd-stepbar input[type=range]').value !== n", arg=before
        )
    assert (step_of(one), step_of(two)) == ("5", "9")
    assert "states=3" in two.url
    assert "states" not in one.url
    for page in (one, two):
        page.context.close()


@pytest.mark.parametrize(("slug", "box"), [("sizes", "config")])
def test_pasted_markup_runs_nothing(browser, hub, slug, box):
    page = browser.new_context().new_page()
    page.goto(f"{hub}/{slug}")
    page.wait_for_selector("#kd-picture :is(svg, table)")
    page.locator(f"#kd-{box} textarea").fill('<img src=x onerror="window.bad=1"><script>1</script>')
    page.click("#kd-run")
    page.locator(".toast-body, [data-testid='toast-body']").first.wait_for()
    page.wait_for_timeout(300)
    assert page.evaluate("window.bad") is None
    assert page.locator("img[src=x]").count() == 0
    page.context.close()
