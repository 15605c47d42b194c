"""A trace's file on the lab page: read with limits, explained where refused, and not kept."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest

from demos.lab import LESSON

pytestmark = pytest.mark.browser


def lines(count):
    rows = [
        {"timestamp": i, "input_length": 1024, "output_length": 1, "hash_ids": [i % 2, 2 + i % 3]}
        for i in range(count)
    ]
    return "".join(json.dumps(row) + "\n" for row in rows)


def kept():
    """Uploads still on this machine that hold something."""
    import os

    folder = Path(os.environ.get("GRADIO_TEMP_DIR") or Path(tempfile.gettempdir()) / "gradio")
    return {p for p in folder.rglob("mine*") if p.is_file() and p.stat().st_size}


def test_an_uploaded_trace_runs_and_is_not_kept(browser, hub, tmp_path):
    before = kept()
    good, bad = tmp_path / "mine.jsonl", tmp_path / "mine-bad.jsonl"
    good.write_text(lines(7))
    bad.write_bytes(b"\x80\x04\x95<script>window.bad = 1</script>")
    page = browser.new_page()
    page.goto(f"{hub}/lab")
    page.wait_for_selector("#kd-picture table")
    page.set_input_files("#kd-pasted-file input[type=file]", str(good))
    page.wait_for_function(
        "t => document.querySelector('#kd-pasted textarea')?.value === t", arg=lines(7)
    )
    page.wait_for_function("location.search.includes('pasted=')")
    page.set_input_files("#kd-pasted-file input[type=file]", str(bad))
    page.get_by_text("the file is no UTF-8 text").first.wait_for()
    assert page.evaluate("window.bad") is None
    assert page.input_value("#kd-pasted textarea") == lines(7)
    page.close()
    assert kept() <= before


def test_the_box_and_its_file_have_one_limit():
    (box,) = [c for c in LESSON.texts if c.upload]
    assert box.limit == 1_000_000
