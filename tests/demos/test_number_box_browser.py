"""A number typed into a box runs with Enter, once, and meanwhile the old run looks old."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.browser

_BUSY = "Number(document.body.dataset.kdBusy || 0) > 0"


def opened(browser, url):
    page = browser.new_context(locale="en-US").new_page()
    page.goto(url)
    page.wait_for_selector("#kd-picture svg")
    page.wait_for_timeout(300)
    return page


def test_enter_runs_a_typed_number_once(browser, hub):
    page = opened(browser, f"{hub}/density")
    runs = []

    def note(request):
        """A run with the number; the page's own beginning may still ask for something as well."""
        if "/queue/join" in request.url and 256 in request.post_data_json["data"]:
            runs.append(request.url)

    page.on("request", note)
    box = page.locator("#kd-budget input[type=number]")
    box.fill("256")
    box.press("Enter")
    query = "document.querySelector('#kd-stepbar [data-query]').dataset.query"
    page.wait_for_function(f"{query}.includes('budget=256')")
    page.locator("#kd-why").click()
    page.wait_for_timeout(600)
    assert len(runs) == 1, runs
    page.context.close()


def test_the_old_run_is_dim_and_not_to_be_copied_while_a_long_one_goes_on(browser, hub):
    page = opened(browser, f"{hub}/lab?model=kimi-linear-48b&system=SGLang")
    copies = page.locator("#kd-picture [data-copy]")
    assert copies.first.is_visible()
    box = page.locator("#kd-memory input[type=number]")
    box.fill("23")
    box.press("Enter")
    page.wait_for_function(_BUSY)
    page.wait_for_function(f"!({_BUSY})")
    assert "--memory 23" in page.inner_text("#kd-picture")
    # A short file's run ends before all is dim: the mark of a run by hand, then.
    page.evaluate("document.body.dataset.kdBusy = 1")
    dim = """() => ['#kd-picture .kd-scroll', '#kd-why', '#kd-plot-0', '#kd-fold-table']
        .every((s) => getComputedStyle(document.querySelector(s)).opacity < 0.5)"""
    page.wait_for_function(dim)
    assert not copies.first.is_visible()
    page.evaluate("document.body.dataset.kdBusy = 0")
    page.wait_for_function("getComputedStyle(document.querySelector('#kd-why')).opacity === '1'")
    assert copies.first.is_visible()
    page.context.close()


REFUSED = [
    ("state", "decay", "", "en", "decay has no value; use 0.8 to 1"),
    ("tree", "states", "999999", "zh", "states = 999999；可用范围"),
    ("tree", "states", "-5", "en", "states = -5; use 2 to 12"),
]


@pytest.mark.parametrize(("slug", "key", "typed", "lang", "said"), REFUSED)
def test_a_number_that_cannot_be_is_refused_in_words_and_goes_back_to_the_run(
    browser, hub, slug, key, typed, lang, said
):
    page = opened(browser, f"{hub}/{slug}?lang={lang}")
    page.wait_for_selector(f"#kd-stepbar [data-query*='lang={lang}']", state="attached")
    box = page.locator(f"#kd-{key} input[type=number]")
    shown = box.input_value()
    assert shown not in ("", typed)
    box.fill(typed)
    box.press("Tab")
    page.get_by_text(said).first.wait_for()
    value = f"document.querySelector('#kd-{key} input[type=number]').value"
    page.wait_for_function(f"{value} === '{shown}'")
    query = page.evaluate("document.querySelector('#kd-stepbar [data-query]').dataset.query")
    assert f"{key}=" not in query  # the run is the one that was there
    assert page.locator("[data-testid=status-tracker] > .error").count()
    assert not page.locator("[data-testid=status-tracker] > .error >> visible=true").count()
    page.context.close()
