"""A link with settings shows its own run first, or nothing yet; never the page's default run."""

from __future__ import annotations

import pytest

from demos._text import t

pytestmark = pytest.mark.browser

# What was to be seen in each frame since the page began: the step of the address, if visible.
# What hides a run gives up after 8 s (wait.js), sooner than a busy machine may answer. It does not
# here, so what ends the waiting is what the page was told.
_RECORD = """
const later = window.setTimeout;
window.setTimeout = (what, ms, ...more) => later(what, ms === 8000 ? 600000 : ms, ...more);
window.kdSeen = [];
const look = () => {
  requestAnimationFrame(look);
  const shown = document.querySelector('#kd-picture :is(svg, table, .kd-note)');
  const holder = document.querySelector('#kd-stepbar [data-query]');
  if (!shown || !holder || getComputedStyle(shown).visibility !== 'visible') return;
  const query = holder.dataset.query;
  if (window.kdSeen.at(-1) !== query) window.kdSeen.push(query);
};
look();
"""


def seen(browser, url, until):
    context = browser.new_context(viewport={"width": 1280, "height": 860}, locale="en-US")
    page = context.new_page()
    page.add_init_script(_RECORD)
    page.goto(url)
    page.wait_for_function(f"window.kdSeen.some((q) => q.includes('{until}'))")
    page.wait_for_timeout(300)
    found = page.evaluate("window.kdSeen")
    context.close()
    return found


@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        ("partial?preset=large&step=5", "step=5"),
        ("partial?step=3", "step=3"),
        ("partial?step=7", "step=7"),  # the same that the page would have opened with
        ("tour?stop=3&answers=0----------", "stop=3"),
    ],
)
def test_the_first_run_seen_is_the_one_that_was_asked_for(browser, hub, path, wanted):
    found = seen(browser, f"{hub}/{path}", wanted)
    assert all(wanted in query for query in found), found


def test_a_language_or_a_theme_hides_nothing(browser, hub):
    found = seen(browser, f"{hub}/partial?lang=zh&__theme=dark", "lang=zh")
    assert found[0] == "step=7"


def test_a_refused_link_ends_the_waiting(browser, hub):
    found = seen(browser, f"{hub}/partial?step=99", "step=7")
    assert found == ["step=7"]


def test_a_refused_link_leaves_the_page_in_the_reader_s_language(browser, hub):
    context = browser.new_context(viewport={"width": 1280, "height": 860}, locale="ko-KR")
    page = context.new_page()
    page.goto(f"{hub}/partial?step=99")
    question = t("ko", "partial.question")
    page.wait_for_function("q => document.querySelector('h1')?.innerText === q", arg=question)
    page.wait_for_function("() => location.search === '?step=7'")
    context.close()


def test_a_preset_whose_values_were_changed_says_so(browser, hub):
    context = browser.new_context(viewport={"width": 1280, "height": 860}, locale="en-US")
    page = context.new_page()
    page.goto(f"{hub}/density?budget=64")
    page.wait_for_selector("html:not(.kd-waits) #kd-picture svg")
    name = "agents, tight memory"
    chosen = "n => document.querySelector('#kd-preset input').value === n"
    page.wait_for_function(chosen, arg=f"{name} (changed)")
    budget = page.locator("#kd-budget input[type=number]")
    budget.fill("16")
    budget.blur()
    page.wait_for_function(chosen, arg=name)
    page.locator("#kd-model input").click()
    page.get_by_role("option", name="kimi-linear-48b", exact=True).click()
    page.wait_for_function(chosen, arg=f"{name} (changed)")
    context.close()
