"""A visitor's own trace on a page: run, private, refused where it is none, and never kept."""

from __future__ import annotations

import gzip
import json
import os
import tempfile
import time
from pathlib import Path

import pytest
from gradio_client import Client, handle_file

from demos import _work
from demos._page import MAX_UPLOAD_BYTES
from demos._uploads import UPLOADS
from kdalab.lab.generate import CHAT, generate, write_jsonl
from kdalab.lab.readers import open_trace
from kdalab.lab.run import replay_setup
from kdalab.lab.setup import Setup

pytestmark = pytest.mark.browser

TAG = "<img src=x onerror='window.bad=1'>"


def kept():
    """Files that Gradio holds on this machine."""
    folder = Path(os.environ.get("GRADIO_TEMP_DIR") or Path(tempfile.gettempdir()) / "gradio")
    return {p for p in folder.rglob("*mine*") if p.is_file()}


@pytest.fixture
def trace(tmp_path):
    file = tmp_path / "mine.jsonl"
    write_jsonl(file, generate(60, CHAT), 512)
    return file


def opened(browser, url):
    page = browser.new_context().new_page()
    page.goto(url)
    page.wait_for_selector("#kd-picture svg")
    page.wait_for_timeout(300)
    return page


def upload(page, file):
    page.set_input_files("#kd-file-file input[type=file]", str(file))


def test_an_uploaded_trace_runs_is_private_and_is_not_kept(browser, hub, trace):
    before = kept()
    page = opened(browser, f"{hub}/lab?model=kimi-linear-48b&system=SGLang")
    other = opened(browser, f"{hub}/lab")
    upload(page, trace)
    page.wait_for_function("document.querySelector('#kd-file-note').innerText.includes('60 req')")
    page.wait_for_function("document.querySelector('#kd-why').innerText.includes('all 60 of 60')")
    assert "mine" not in page.url
    assert "trace" not in page.url
    assert "mine.jsonl" in page.inner_text("#kd-picture")
    assert "mine" not in other.inner_text("body")
    assert page.locator("#kd-stop").is_hidden()
    assert kept() <= before
    page.click("#kd-file-remove")
    page.wait_for_function("document.querySelector('#kd-picture').innerText.includes('--made-up')")
    assert not [t for t, (_, x) in UPLOADS._kept.items() if x.name == "mine.jsonl"]
    for one in (page, other):
        one.context.close()


def test_hostile_files_are_refused_in_words_and_leave_nothing(browser, hub, tmp_path):
    before = kept()
    page = opened(browser, f"{hub}/density")
    for number, (content, says) in enumerate(
        [
            (gzip.compress(b"\n" * (300 << 20), 1), "unpacked to over 4 MiB, more than 200 times"),
            ("{}".encode("utf-16"), "UTF-16"),
            (b"\x80\x04\x95\x00" + TAG.encode(), "no UTF-8 text"),
            (f"{TAG},Timestamp\n1,2\n".encode(), "has no format that is known"),
            (b"\n", "is empty"),
            (
                f"Timestamp,Request tokens,Response tokens\n{TAG},{TAG},{TAG}\n".encode(),
                "holds no usable request",
            ),
        ]
    ):
        file = tmp_path / f"mine{number}.csv"
        file.write_bytes(content)
        upload(page, file)
        page.get_by_text(says).first.wait_for()
    assert page.evaluate("window.bad") is None
    assert page.locator("img[src=x]").count() == 0
    assert kept() <= before
    assert "agents, 300 requests" in page.input_value("#kd-trace input")
    page.context.close()


def test_a_file_over_the_limit_is_refused_by_the_server_itself(browser, hub, tmp_path):
    before = kept()
    big = tmp_path / "mine.jsonl"
    with big.open("wb") as out:
        out.truncate(MAX_UPLOAD_BYTES + (1 << 20))
    page = opened(browser, f"{hub}/density")
    upload(page, big)
    page.locator(".toast-body, [data-testid='toast-body']").first.wait_for()
    assert "agents, 300 requests" in page.input_value("#kd-trace input")
    assert kept() <= before
    page.context.close()


def test_a_script_gets_the_numbers_of_its_file(hub, trace, tmp_path):
    before = kept()
    client = Client(hub, verbose=False)
    settings = {"model": "kimi-linear-48b", "memory": 8, "system": "SGLang"}
    answer = client.predict(handle_file(trace), settings, api_name="/lab_file")
    wanted = replay_setup(open_trace(trace), Setup.parse("model=kimi-linear-48b memory=8GiB"))
    assert answer["data"]["account"]["hit_tokens"] == wanted.hit_tokens
    assert answer["data"]["total_requests"] == 60
    assert answer["settings"]["file"] == ""
    bad = tmp_path / "mine-bad.csv"
    bad.write_text(json.dumps({"a": 1}))
    for slug in ("lab", "density"):
        with pytest.raises(Exception, match="has no format that is known") as refused:
            client.predict(handle_file(bad), {}, api_name=f"/{slug}_file")
        assert "Traceback" not in str(refused.value)
    with pytest.raises(Exception, match="no setting named"):
        client.predict(handle_file(trace), {"x": 1}, api_name="/lab_file")
    assert kept() <= before


def test_a_long_run_is_stopped_and_the_page_goes_on(browser, hub, tmp_path, monkeypatch):
    at = _work.Work.at

    def slowly(work, key, done, total):
        """A run that is still there when a slow browser comes to stop it."""
        if key.startswith("lab."):
            time.sleep(0.2)
        at(work, key, done, total)

    file = tmp_path / "mine.jsonl"
    write_jsonl(file, generate(4000, CHAT), 512)
    page = opened(browser, f"{hub}/lab?requests=5000&memory=256")
    was = page.inner_text("#kd-why")
    with monkeypatch.context() as patch:
        patch.setattr(_work.Work, "at", slowly)
        upload(page, file)
        page.wait_for_function("document.body.innerText.match(/replay \\d/)")
        page.click("#kd-stop")
        page.wait_for_selector("#kd-stop", state="hidden")
    page.get_by_text("Stopped. What is shown is still the run before.").wait_for()
    assert page.inner_text("#kd-why") == was
    page.locator("#kd-requests input").click()
    page.get_by_role("option", name="100", exact=True).click()
    page.wait_for_function("document.querySelector('#kd-why').innerText.includes('first 100 of')")
    page.context.close()
