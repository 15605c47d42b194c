"""Figures made of pictures: every format, equal for equal drawings, nothing unescaped."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from kdalab.errors import KdalabError
from kdalab.viz.drawing import GAP, MARGIN, TITLE, Drawing, write_drawing
from kdalab.viz.export import NoBrowserError, find_browser
from kdalab.viz.svg import WIDTH, document, rect, text

PICTURE = document(rect(0, 0, 40, 20, "kd-kv") + text(4, 14, "A <b>"), 50, "one & two")
DRAWING = Drawing("T <i>", (("first", PICTURE), ("", PICTURE)), ("n",), (("<td>",),))
SVG = "{http://www.w3.org/2000/svg}"


def test_parts_stand_below_each_other_at_their_own_size() -> None:
    root = ET.fromstring(DRAWING.svg())
    inner = root.findall(f"{SVG}svg")
    assert [e.get("width") for e in inner] == [str(WIDTH)] * 2
    first, second = (float(e.get("y") or 0) for e in inner)
    assert first > MARGIN + TITLE  # below the title and its caption
    assert second == first + 50 + GAP  # no caption, no line for it
    assert float(root.get("height") or 0) == second + 50 + MARGIN


def test_text_is_escaped_in_every_text_format() -> None:
    for shown in (DRAWING.svg(), DRAWING.page()):
        assert "<i>" not in shown
        assert "<b>" not in shown
    assert "&lt;td&gt;" in DRAWING.page()


def test_equal_drawings_give_equal_files(tmp_path: Path) -> None:
    again = Drawing("T <i>", (("first", PICTURE), ("", PICTURE)), ("n",), (("<td>",),))
    for kind in ("svg", "html", "json"):
        one = write_drawing(DRAWING, tmp_path / "a" / f"x.{kind}", kind).read_bytes()
        assert one == write_drawing(again, tmp_path / f"y.{kind}", kind).read_bytes()
    found = json.loads((tmp_path / "y.json").read_text())
    assert [p["caption"] for p in found["pictures"]] == ["first", ""]
    assert found["table"] == {"columns": ["n"], "rows": [["<td>"]]}


def test_a_theme_or_format_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KdalabError, match="theme"):
        DRAWING.svg("sepia")
    with pytest.raises(KdalabError, match="format"):
        write_drawing(DRAWING, tmp_path / "x.gif", "gif")
    with pytest.raises(KdalabError, match=r"no picture of kdalab\.viz"):
        Drawing("T", (("", "<p>hello</p>"),)).svg()


def test_without_a_browser_only_png_and_pdf_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROWSER_PATH", str(tmp_path / "missing"))
    with pytest.raises(NoBrowserError):
        write_drawing(DRAWING, tmp_path / "x.png", "png")
    assert write_drawing(DRAWING, tmp_path / "x.svg", "svg").is_file()
    assert not (tmp_path / "x.png").exists()


@pytest.mark.browser
def test_chromium_draws_it_at_its_size_and_in_its_colours(tmp_path: Path) -> None:
    if find_browser() is None:
        pytest.skip("no Chromium found")
    from PIL import Image

    file = write_drawing(DRAWING, tmp_path / "x.png", "png", theme_name="dark")
    with Image.open(file) as picture:
        assert picture.width == 2 * (WIDTH + 2 * MARGIN)
        assert sum(picture.convert("RGB").getpixel((2, 2))) < 150  # the dark background
        assert len(picture.convert("RGB").getcolors(1 << 20)) > 5
    pdf = write_drawing(DRAWING, tmp_path / "x.pdf", "pdf")
    assert pdf.read_bytes().startswith(b"%PDF")
