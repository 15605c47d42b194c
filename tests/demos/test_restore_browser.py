"""The page in a real browser: it opens, steps, breaks on purpose, and lets no text run."""

from __future__ import annotations

import re
import time
from contextlib import contextmanager
from urllib.parse import urlencode

import pytest

pytestmark = pytest.mark.browser

WIDE = {"width": 1360, "height": 900}


@contextmanager
def opened(browser, url, size=WIDE, **options):
    """A page in a context of its own; on leaving, nothing may have gone wrong on the way."""
    context = browser.new_context(viewport=size, **options)
    page = context.new_page()
    trouble, requests = [], []
    page.on("console", lambda m: trouble.append(m.text) if m.type == "error" else None)
    page.on("pageerror", lambda e: trouble.append(str(e)))
    page.on("request", lambda r: requests.append(r.url))
    page.goto(url)
    page.wait_for_selector("#kd-picture .kd-tree")
    try:
        yield page
        host = url.split("/")[2]
        outside = [r for r in requests if not r.startswith((f"http://{host}/", "data:", "blob:"))]
        assert outside == []
        assert trouble == []
    finally:
        context.close()


def step_of(page):
    return int(re.search(r"step (\d+)", page.inner_text(".count")).group(1)) - 1


def wait_for_step(page, step):
    page.wait_for_function(
        "n => document.querySelector('.count')?.innerText.startsWith(`step ${n + 1} of`)", arg=step
    )


def type_prompts(page, texts):
    """Fill the boxes as a person would: not in the milliseconds in which they come into being."""
    boxes = {page.locator(f"#kd-{x} textarea"): text for x, text in texts.items()}
    for _ in range(20):
        for box, text in boxes.items():
            box.fill(text)
        page.wait_for_timeout(250)
        if all(box.input_value() == text for box, text in boxes.items()):
            return
    raise AssertionError("the boxes do not keep what is typed")


def last_of(page):
    return int(page.get_attribute("#kd-stepbar input[type=range]", "max"))


def test_the_page_opens_drawn_and_quick(browser, hub, capsys):
    started = time.perf_counter()
    context = browser.new_context(viewport=WIDE)
    page = context.new_page()
    page.goto(f"{hub}/restore")
    page.wait_for_selector(".kd-prompts .chevron")
    seconds = time.perf_counter() - started
    for css in (".kd-prompts", ".kd-tree", ".kd-slots"):
        box = page.locator(css).bounding_box()
        assert box["width"] > 600
        assert box["height"] > 60
    context.close()
    with capsys.disabled():
        print(f"\nfirst paint of the restore page: {seconds:.2f} s")
    assert seconds < 60


def test_stepping_to_the_end_and_back_shows_the_same(browser, hub, capsys):
    with opened(browser, f"{hub}/restore?scenario=fan-out&step=0") as page:
        wait_for_step(page, 0)
        last, seen, seconds = last_of(page), [], []
        for step in range(1, last + 1):
            seen.append(page.inner_html("#kd-picture"))
            started = time.perf_counter()
            page.click("#kd-forward")
            wait_for_step(page, step)
            seconds.append(time.perf_counter() - started)
        assert "Bit for bit the same" in page.inner_text("#kd-why")
        for step in range(last - 1, -1, -1):
            page.click("#kd-back")
            wait_for_step(page, step)
            assert page.inner_html("#kd-picture") == seen[step]
        with capsys.disabled():
            middle = sorted(seconds)[len(seconds) // 2] * 1e3
            print(f"\na step: median {middle:.0f} ms, longest {max(seconds) * 1e3:.0f} ms")


def test_keys_slider_and_marks_move_as_the_buttons_do(browser, hub):
    with opened(browser, f"{hub}/restore?scenario=fan-out&step=5") as page:
        wait_for_step(page, 5)
        page.keyboard.press("ArrowRight")
        wait_for_step(page, 6)
        page.keyboard.press("ArrowLeft")
        wait_for_step(page, 5)
        page.keyboard.press("End")
        wait_for_step(page, last_of(page))
        page.locator("#kd-stepbar [data-step='3']").click()
        wait_for_step(page, 3)
        page.locator("#kd-stepbar input[type=range]").focus()
        page.keyboard.press("ArrowRight")
        wait_for_step(page, 4)
        page.keyboard.press("Home")
        wait_for_step(page, 0)


def test_play_runs_to_the_end_and_stops(browser, hub):
    with opened(browser, f"{hub}/restore?scenario=fan-out&step=15") as page:
        wait_for_step(page, 15)
        page.click("#kd-play")
        page.wait_for_function("document.querySelector('#kd-play').innerText.includes('Pause')")
        wait_for_step(page, last_of(page))
        page.wait_for_function("document.querySelector('#kd-play').innerText.includes('Play')")


def test_the_address_follows_the_step_and_opens_it_again(browser, hub):
    with opened(browser, f"{hub}/restore?scenario=edit&spacing=64&step=9") as page:
        wait_for_step(page, 9)
        page.click("#kd-forward")
        wait_for_step(page, 10)
        page.wait_for_function("location.search.includes('step=10')")
        address, sentence = page.url, page.inner_text(".kd-sentence")
    assert "/restore?scenario=edit&spacing=64&step=10" in address
    with opened(browser, address) as page:
        wait_for_step(page, 10)
        assert page.inner_text(".kd-sentence") == sentence


def test_another_example_can_be_chosen(browser, hub):
    with opened(browser, f"{hub}/restore") as page:
        page.locator("#kd-scenario input").click()
        page.get_by_role("option", name="Checkpoints run out").click()
        page.wait_for_function("location.search.includes('scenario=pressure')")
        assert "restore point 0" in page.inner_text("#kd-picture")
        assert page.locator(".kd-tree .tomb").count() == 1


@pytest.mark.parametrize(("number", "fault"), [(0, "skip_replay"), (1, "drop_conv")])
def test_a_broken_invariant_shows_its_damage(browser, hub, number, fault):
    with opened(browser, f"{hub}/restore") as page:
        page.locator("#kd-fault input").nth(number).check()
        page.wait_for_function(f"location.search.includes('{fault}')")
        assert "Not the same numbers" in page.inner_text("#kd-why")
        values = page.locator("#kd-why .kd-table td.num").all_inner_texts()
        assert len(values) == 4
        assert all(float(v) > 0.01 for v in values)
        assert f"on purpose: {fault}" in page.inner_text("#kd-picture")


def test_a_hostile_prompt_is_shown_and_never_run(browser, hub):
    text = "<script>window.hacked=1</script><img src=x onerror='window.hacked=2'>${window.hacked=3}"
    query = urlencode({"scenario": "fan-out", "a": text + "{{x}} one", "b": text + "{{x}} two"})
    with opened(browser, f"{hub}/restore?{query}") as page:
        page.wait_for_function(
            "document.querySelector('#kd-picture')?.innerText.includes('<script>')"
        )
        for step in ("#kd-first", "#kd-last"):
            page.click(step)
            page.wait_for_timeout(200)
        assert page.evaluate("window.hacked") is None
        assert page.locator("#kd-picture script, #kd-picture img").count() == 0


def test_typed_prompts_run_and_a_wrong_one_is_explained(browser, hub):
    with opened(browser, f"{hub}/restore") as page:
        type_prompts(page, {"a": "x" * 300, "b": "x" * 250 + "y"})
        page.click("#kd-run")
        page.wait_for_function(
            "document.querySelector('#kd-picture')?.innerText.includes('match 192')"
        )
        page.locator("#kd-b textarea").fill("")
        page.click("#kd-run")
        page.get_by_text("prompt B is empty").wait_for()


def test_a_picked_node_opens_its_state(browser, hub):
    with opened(browser, f"{hub}/restore") as page:
        page.locator("[data-pick='node:1']").focus()
        page.keyboard.press("Enter")
        page.wait_for_selector("#kd-matrix svg")
        assert page.locator("#kd-matrix rect title").count() == 32 * 32
        assert "KDA layer 0, head 0" in page.inner_text("#kd-matrix")
        page.locator("#kd-zoom [data-pick='node:1/1.2']").focus()
        page.keyboard.press("Enter")
        page.wait_for_function(
            "document.querySelector('#kd-matrix')?.textContent.includes('KDA layer 1, head 2')"
        )


def test_events_can_be_downloaded(browser, hub):
    import json

    with opened(browser, f"{hub}/restore") as page:
        with page.expect_download() as saved:
            page.click("#kd-save")
        whole = json.loads(saved.value.path().read_text())
        assert whole["data"]["events"][0]["event"] == "Submitted"


@pytest.mark.parametrize("slug", ["", "restore"])
@pytest.mark.parametrize(("theme", "width"), [("light", 1360), ("dark", 360)])
def test_every_page_fits_its_window_in_both_themes(browser, hub, slug, theme, width):
    context = browser.new_context(viewport={"width": width, "height": 800})
    page = context.new_page()
    page.goto(f"{hub}/{slug}?__theme={theme}")
    page.wait_for_selector(".kd-svg")
    page.wait_for_timeout(400)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", ground)[:3])) < 200) == (theme == "dark")
    context.close()


def test_two_readers_do_not_disturb_each_other(browser, hub):
    with (
        opened(browser, f"{hub}/restore?scenario=fan-out&step=4") as one,
        opened(browser, f"{hub}/restore?scenario=edit&step=8") as two,
    ):
        wait_for_step(one, 4)
        wait_for_step(two, 8)
        one.click("#kd-forward")
        wait_for_step(one, 5)
        two.click("#kd-back")
        wait_for_step(two, 7)
        assert step_of(one) == 5
        assert "System prompt fan-out" in one.inner_text("body")
        assert "Edit in the middle" in two.inner_text("body")


def test_the_front_page_leads_to_every_page(browser, hub):
    context = browser.new_context(viewport=WIDE)
    page = context.new_page()
    page.goto(hub)
    page.locator(".kd-cards a[href$=restore]").click()
    page.wait_for_selector("#kd-stepbar .kd-bar")
    assert page.url.startswith(f"{hub}/restore")
    context.close()
