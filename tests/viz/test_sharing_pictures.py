"""Pictures of slots, of the unified buffer and of a verify step: well formed, and to scale."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from functools import lru_cache

import pytest

from demos import sharing, unified, verify
from kdalab.lessons import SlotView
from kdalab.viz.sharing import owners_svg
from kdalab.viz.unified import frontiers_figure

WORDS = {
    w: w
    for w in (
        "pool", "active-pool", "checkpoint-pool", "queued", "given", "history", "active", "spare",
        "kept", "waiting", "cached", "free", "alias", "overwritten", "seen",
    )
}  # fmt: skip
HOSTILE = "<script>alert(1)</script>\"'&"


@lru_cache
def film_of(page):
    return page.LESSON.play(page.LESSON.default)


@pytest.mark.parametrize("page", [sharing, unified, verify])
@pytest.mark.parametrize("lang", ["en", "ko"])
def test_every_step_is_well_formed(page, lang):
    film = film_of(page)
    for step in range(film.last + 1):
        root = ElementTree.fromstring(film.picture(step, lang))
        assert root.tag == "div"
        assert len(root) >= 1


def test_slots_name_their_owner_and_are_escaped():
    slots = [
        SlotView("active:0", "active", HOSTILE, 70),
        SlotView("checkpoint:0", "cached", "", 64, (HOSTILE,)),
    ]
    shown = owners_svg(slots, [HOSTILE], words=WORDS, label=HOSTILE)
    root = ElementTree.fromstring(shown)
    assert "<script>" not in shown
    titles = [x.text for x in root.iter() if x.tag.endswith("title")]
    assert any(HOSTILE in str(x) and "active" in str(x) for x in titles)


@pytest.mark.parametrize("word", ["given, 0 B copied", "交出，复制了零字节，仍在原处", "cached"])
def test_words_at_an_edge_stay_inside_the_picture(word):
    slots = [SlotView(f"active:{i}", "cached", "", 64) for i in range(14)]
    words = WORDS | {"given": word, "cached": word}
    moves = [("active:0", "active:0"), ("active:13", "active:13")]
    shown = owners_svg(slots, ["A"], words=words, label="", moves=moves)
    root = ElementTree.fromstring(shown)
    half = 0.5 * sum(5.5 if c.isascii() else 10.5 for c in word)  # at 10.5 px
    texts = [x for x in root.iter() if x.text == word]
    assert len(texts) == 16
    for text in texts:
        x, kind = float(text.get("x")), text.get("class").split()
        left = x - (half if "mid" in kind else 2 * half if "end" in kind else 0)
        assert left >= 0
        assert left + 2 * half <= 860


def test_bytes_of_the_unified_picture_are_drawn_to_one_scale():
    film = film_of(unified)
    found, step = film.found, film.opening
    svg = re.search(r"<svg.*?</svg>", film.picture(step, "en"), re.DOTALL).group()
    root = ElementTree.fromstring(svg)
    scale = 860 / found.total
    boxes = {"kv own": found.page_bytes, "s own": found.state_bytes}
    layout, split = found.layouts[step], found.splits[step]
    counts = {
        "kv own": len(layout.pages) + sum(p is not None for p in split.pages),
        "s own": len(layout.states) + sum(s is not None for s in split.states),
    }
    for css, size in boxes.items():
        widths = [float(x.get("width")) for x in root.iter() if x.get("class") == css]
        assert len(widths) == counts[css]
        assert all(abs(w + 1 - size * scale) < 0.02 for w in widths)


def test_the_figure_s_frontiers_never_cross():
    found = film_of(unified).found
    words = dict.fromkeys(("title", "subtitle", "x", "y", "kv", "state", "holes", "cut"), "w")
    figure = frontiers_figure(
        [x.low for x in found.layouts], [x.high for x in found.layouts],
        [x.holes for x in found.layouts], total=found.total, cut=1, words=words,
    )  # fmt: skip
    low, _, high, _ = (trace.y for trace in figure.data)
    assert all(a <= b for a, b in zip(low, high, strict=True))
    assert figure.layout.height == 420
