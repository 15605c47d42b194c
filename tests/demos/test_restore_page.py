"""The page without a browser: its functions, its public address, and what it refuses."""

from __future__ import annotations

import html
import json

import gradio as gr
import pytest
from gradio_client import Client

from demos import _page, app
from demos import _restore_draw as draw
from demos import _restore_run as page_run
from demos import _restore_settings as rs
from demos._text import t
from kdalab.errors import KdalabError
from kdalab.lessons import RESTORE
from kdalab.words import LANGUAGES

DEFAULTS = {"a": "", "b": "", "c": "", "spacing": 0, "tokens": 8, "faults": []}


@pytest.fixture(scope="module")
def client(hub):
    return Client(hub, verbose=False)


@pytest.mark.parametrize("name", list(RESTORE))
def test_every_frame_of_every_example_can_be_drawn(name):
    settings = rs.checked(name)
    for step in range(page_run.last_step(settings) + 1):
        at, picture, why, bar, tables, log = page_run.frame(settings, step, draw.ALL)
        assert at == step
        sentence = draw.esc(rs.recording(settings).steps[step].sentence)
        assert sentence in why
        assert sentence in bar
        assert picture.count("<svg") == 3
        assert tables.count("<table") == 4
        assert log.count("<tr") == len(rs.recording(settings).events) + 1


def test_going_back_draws_what_going_forward_drew():
    settings = rs.checked("fan-out")
    last = page_run.last_step(settings)
    forward = [page_run.frame(settings, i, draw.ALL) for i in range(last + 1)]
    back = [page_run.frame(settings, i, draw.ALL) for i in range(last, -1, -1)]
    assert forward == back[::-1]


def test_the_log_filters_by_request():
    settings = rs.checked("fork")
    events = rs.recording(settings).events
    log = page_run.frame(settings, 0, "B")[-1]
    assert log.count("<tr") == 1 + sum(e.request == "B" for e in events)
    assert page_run.frame(settings, 0, "nobody")[-1] == page_run.frame(settings, 0, draw.ALL)[-1]


def test_the_step_bar_marks_restore_copy_checkpoint_and_eviction():
    settings = rs.checked("pressure")
    run = rs.recording(settings)
    bar = _page.step_bar_html(run.steps, 0, "q=1")
    for kind in ("restore", "snapshot", "evict", "finish"):
        assert bar.count(f'class="{kind}') == sum(s.tone == kind for s in run.steps)
    assert bar.count("data-step") == len(run.steps)
    assert "<b>R</b> match or restore" in bar
    assert "<b>R</b> 匹配或恢复" in _page.step_bar_html(run.steps, 0, "q=1", lang="zh")


def test_a_page_without_a_notebook_says_so_and_names_no_other():
    assert "jupyter lab notebooks/01_restore" in _page.notebook_html("restore")
    assert "ipynb" not in _page.notebook_html("no such topic")
    assert "no notebook for this page" in _page.notebook_html("no such topic")


def test_a_step_bar_escapes_its_address():
    run = rs.recording(rs.checked("again"))
    assert '"><img' not in _page.step_bar_html(run.steps, 0, 'a="><img src=x>')


@pytest.mark.parametrize("pick", ["node:2", "checkpoint:1", "active:0", "checkpoint:11", "node:99"])
def test_a_pick_is_explained(pick):
    run = rs.recording(rs.checked("fan-out"))
    step = next(i for i, s in enumerate(run.steps) if s.kind == "CopiedOnWrite")
    seen = draw.zoom(run, step, pick)
    assert f"step {step}" in seen.title
    matrix = draw.matrix_html(run, step, seen.slot, 0, 0)
    assert ("<svg" in matrix) == (pick in ("node:2", "checkpoint:1"))


@pytest.mark.parametrize(
    "pick", ["", "node:", "node:-1", "node:1x", "<b>:1", "page:1", "node:9999999"]
)
def test_a_pick_that_is_none_is_refused(pick):
    run = rs.recording(rs.checked("fan-out"))
    with pytest.raises(KdalabError, match="cannot be looked at"):
        draw.zoom(run, 5, pick)


def test_wrong_input_becomes_a_message_not_a_traceback():
    with pytest.raises(gr.Error, match="unknown scenario"):
        page_run.guard(page_run.run_controls, "nope", "", "", "", None, 8, [])


def test_the_code_section_shows_the_code_that_runs():
    from demos._restore_reading import CODE

    page = html.unescape(_page.code_html(CODE))
    assert "def lookup(self, key: PrefixKey) -> Lookup:" in page
    assert "kdalab/cache/radix.py" in page


def test_each_page_has_one_public_address_and_it_is_named(client):
    named = client.view_api(return_format="dict", print_info=False)["named_endpoints"]
    assert sorted(named) == sorted(f"/{page.slug}" for page in app.pages())
    names = [p["parameter_name"] for p in named["/restore"]["parameters"]]
    assert names == ["scenario", "a", "b", "c", "spacing", "tokens", "faults"]


def test_a_script_gets_the_numbers_of_the_page(client):
    answer = client.predict(scenario="fan-out", **DEFAULTS, api_name="/restore")
    run = rs.recording(rs.checked("fan-out"))
    assert [s["sentence"] for s in answer["steps"]] == [s.sentence for s in run.steps]
    assert len(answer["events"]) == len(run.events)
    (measured,) = answer["measured"]
    assert (measured["restore"], measured["logits"], measured["first_difference"]) == (192, 0, None)
    json.dumps(answer)


def test_a_script_sees_what_a_fault_breaks(client):
    arguments = DEFAULTS | {"faults": ["skip_replay"]}
    answer = client.predict(scenario="fan-out", **arguments, api_name="/restore")
    assert answer["measured"][0]["logits"] > 0.01


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"tokens": 10_000}, "use 1 to 32"),
        ({"spacing": 65}, "64, 128, 192, 256"),
        ({"a": "x" * 5_000, "b": "y"}, "Shorten it"),
        ({"faults": ["all"]}, "known: skip_replay"),
    ],
)
def test_the_server_checks_every_number_again(client, change, says):
    with pytest.raises(Exception, match=says):
        client.predict(scenario="fan-out", **(DEFAULTS | change), api_name="/restore")


def test_pages_share_nothing_and_serve_no_files():
    options = _page.launch_options()
    assert options["share"] is False
    assert options["ssr_mode"] is False
    assert options["allowed_paths"] == []
    assert "http" not in options["head"].replace("http://www.w3.org", "")


def test_every_page_has_an_address_a_question_and_a_sentence():
    listed = app.pages()
    assert len({p.slug for p in listed}) == len(listed)
    for page in listed:
        for lang in LANGUAGES:
            assert t(lang, f"{page.slug}.question").endswith(("?", "？"))
            assert page.title(lang)
