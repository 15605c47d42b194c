"""What a page refuses it says in the reader's language, and a script's mistakes have an answer."""

from __future__ import annotations

import json
import re
import urllib.request

import gradio as gr
import pytest

from demos import _pages
from demos._controls import Number
from demos._lesson import guard, opened
from kdalab.phrases import phrases

LESSONS = {p.slug: p.module.LESSON for p in _pages.listed() if hasattr(p.module, "LESSON")}

REFUSED = [
    ("partial", {"nope": "1"}),
    ("partial", {"lang": "xx"}),
    ("partial", {"step": "99"}),
    ("partial", {"step": "x"}),
    ("partial", {"shared": "20001"}),
    ("partial", {"shared": "many"}),
    ("partial", {"block": "7"}),
    ("partial", {"breaks": "all"}),
    ("restore", {"a": ""}),
    ("restore", {"a": "x" * 800}),
    ("modes", {"mode": "some"}),
    ("sizes", {"tp": "8", "model": "tiny"}),
    ("sizes", {"config": "a"}),
    ("sizes", {"config": "[" * 50_000}),
    ("sizes", {"config": '{"model_type": "llama"}'}),
    ("sizes", {"config": '{"model_type": "kimi_linear"}'}),
    ("sizes", {"config": "[1]"}),
    ("sizes", {"config": '{"model_type": "kimi_linear", "a": 1, "a": 2}'}),
    ("lab", {"pasted": "a"}),
]


def refusal(slug, query, lang):
    with pytest.raises(gr.Error) as refused:
        guard(opened, LESSONS[slug], query, lang=lang)
    return refused.value


@pytest.mark.parametrize(
    ("slug", "query"), REFUSED, ids=[f"{s}-{'-'.join(q)}-{i}" for i, (s, q) in enumerate(REFUSED)]
)
def test_a_refusal_is_in_the_phrase_book(slug, query):
    english = refusal(slug, query, "en").message
    for lang, mark in (("zh", "[一-鿿]"), ("ko", "[가-힣]")):
        said = refusal(slug, query, lang)
        assert said.message != english, english
        assert said.title != "This cannot be run"
        assert re.search(mark, said.message)


def test_the_phrase_book_reads_a_refusal_s_numbers():
    said = phrases().find("zh", "shared = 20001; use 1 to 20000")
    assert said == "shared = 20001；可用范围是 1 到 20000"


def post(hub, name, data):
    """The last event that a plain HTTP caller of a named endpoint gets."""
    url = f"{hub}/gradio_api/call/{name}"
    head = {"content-type": "application/json"}
    sent = urllib.request.Request(url, json.dumps({"data": data}).encode(), head)
    with urllib.request.urlopen(sent, timeout=30) as answer:
        event = json.load(answer)["event_id"]
    with urllib.request.urlopen(f"{url}/{event}", timeout=30) as answer:
        return answer.read().decode()


@pytest.mark.parametrize("slug", [p.slug for p in _pages.listed()])
def test_an_endpoint_says_how_many_values_it_takes(hub, slug):
    name = "lang" if slug == "tour" else "settings"
    for data in ([], [{}, {}]):
        said = post(hub, slug, data)
        assert f'data\\" has {len(data)} values; give 1: {name}' in said
    assert '"error": null' not in post(hub, slug, [["a"]])


@pytest.mark.parametrize("slug", LESSONS)
def test_a_number_out_of_range_is_answered_with_its_name_and_range(hub, slug):
    for control in LESSONS[slug].controls:
        if isinstance(control, Number):
            said = post(hub, slug, [{control.key: control.high + 1}])
            assert f"{control.key} = " in said
            assert f"use {control.low:g} to {control.high:g}" in said
