"""What a page saves as a picture: in the theme shown, without a style sheet, with all its words."""

from __future__ import annotations

import re
import struct
from xml.etree import ElementTree

import pytest

from kdalab.viz.palette import DARK, LIGHT

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def context(browser):
    opened = browser.new_context(viewport={"width": 1280, "height": 860}, locale="en-US")
    yield opened
    opened.close()


def saved(page, button):
    with page.expect_download() as download:
        page.click(f"#kd-{button}")
    return download.value.suggested_filename, download.value.path().read_bytes()


def rgb(colour):
    return "rgb({}, {}, {})".format(*(int(colour[i : i + 2], 16) for i in (1, 3, 5)))


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_picture_is_saved_in_the_theme_shown_and_needs_no_style_sheet(context, hub, theme):
    page = context.new_page()
    page.goto(f"{hub}/tree?step=5&__theme={theme}")
    page.wait_for_function("document.querySelector('#kd-stepbar input')?.value === '5'")
    page.wait_for_selector("html:not(.kd-waits) #kd-picture svg")
    words = page.locator("#kd-picture svg text").all_text_contents()
    name, data = saved(page, "picture-svg")
    assert name == "kdalab-tree-step-5.svg"
    text = data.decode()
    root = ElementTree.fromstring(text)
    look = DARK if theme == "dark" else LIGHT
    assert root.find("{*}rect").get("fill") == rgb(look.background)
    assert not re.search(r"var\(|class=|<style|data-", text)
    drawn = ["".join(node.itertext()) for node in root.iter("{http://www.w3.org/2000/svg}text")]
    assert drawn == words
    plain = [node for node in root.iter("{http://www.w3.org/2000/svg}text") if node.get("fill")]
    assert rgb(look.text) in {node.get("fill") for node in plain}

    name, data = saved(page, "picture-png")
    assert name == "kdalab-tree-step-5.png"
    width, height = struct.unpack(">II", data[16:24])
    assert (width, height) == (2 * int(root.get("width")), 2 * int(root.get("height")))
    page.close()


def test_a_table_s_words_are_in_the_picture_and_charts_have_files_of_their_own(context, hub):
    page = context.new_page()
    page.goto(f"{hub}/lab?step=1")
    page.wait_for_selector("html:not(.kd-waits) #kd-picture table")
    head = page.locator("#kd-picture th").first.inner_text()
    _, data = saved(page, "picture-svg")
    assert head in "".join(ElementTree.fromstring(data.decode()).itertext())
    page.wait_for_selector("#kd-plot-0 .js-plotly-plot svg.main-svg")
    name, data = saved(page, "charts-svg")
    assert name == "kdalab-lab-charts.svg"
    axis = page.locator("#kd-plot-0 .xtitle").text_content()
    assert axis in "".join(ElementTree.fromstring(data.decode()).itertext())
    page.close()
