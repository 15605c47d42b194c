"""Text as it comes: what was said stays true, little is held back, and stop strings end it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from serve.serving import in_thread, single

from kdalab.serve.limits import Limits
from kdalab.serve.roles import ModelOptions, decode_app
from kdalab.serve.router import router_app
from kdalab.serve.text import Text


def decoded(ids: list[int]) -> str:
    return bytes(i % 256 for i in ids).decode(errors="replace")


def pieces(text: Text, ids: list[int]) -> list[str]:
    return [text.push(i) for i in ids]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from([97, 0xC3, 0xA9, 0xE2, 0x82, 0xAC, 0xF0, 0x9F, 0x98, 0x80, 0xFF])))
def test_the_pieces_are_the_whole_and_at_most_three_tokens_wait(ids: list[int]) -> None:
    text, said = Text(decoded), ""
    for n, i in enumerate(ids, 1):
        said += text.push(i)
        whole = decoded(ids[:n])
        assert whole.startswith(said)
        assert len(whole) - len(said) <= 3
    assert said + text.end() == decoded(ids)


def test_bytes_that_are_no_text_are_not_held_until_the_end() -> None:
    given_ = pieces(Text(decoded), [0xFF] * 10)
    assert "".join(given_) == "\ufffd" * 7
    assert given_[3:] == ["\ufffd"] * 7


def test_a_character_is_said_when_it_is_whole() -> None:
    assert pieces(Text(decoded), list("a😀b".encode())) == ["a", "", "", "", "😀", "b"]


@settings(max_examples=300, deadline=None)
@given(st.text("ab", max_size=20), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3))
def test_the_text_ends_before_the_first_stop_string(whole: str, stops: list[str]) -> None:
    text, said = Text(decoded, stops), ""
    for n, byte in enumerate(whole.encode(), 1):
        said += text.push(byte)
        found = [whole[:n].find(s) for s in stops if s in whole[:n]]
        assert text.has_stopped is bool(found)
        if found:
            assert said == whole[: min(found)]
            return
    assert said + text.end() == whole


@pytest.fixture(scope="module")
def router() -> Iterator[str]:
    with (
        in_thread(lambda: decode_app(ModelOptions(), []), "decode", Limits()) as d,
        in_thread(lambda: router_app(["http://127.0.0.1:9", d], []), "router", Limits()) as url,
    ):
        yield url


def complete(url: str, **body: Any) -> httpx.Response:
    body = {"prompt": [5, 6, 7], "max_tokens": 20, **body}
    return httpx.post(f"{url}/v1/completions", json=body, trust_env=False, timeout=60)


def test_stop_strings_and_tokens_end_an_answer(router: str) -> None:
    ids = single([5, 6, 7], 20)
    plain = complete(router).json()["choices"][0]
    assert plain["token_ids"] == ids
    at = next(n for n in range(4, 20) if ids[n] < 128 and ids[n] not in ids[:n])
    stop = chr(ids[at])
    found = complete(router, stop=stop).json()
    choice = found["choices"][0]
    assert choice["token_ids"] == ids[: at + 1], "what was computed is counted"
    assert choice["text"] == plain["text"][: plain["text"].index(stop)]
    assert choice["finish_reason"] == "stop"
    assert found["usage"]["completion_tokens"] == at + 1
    by_token = complete(router, stop_token_ids=[ids[at]]).json()["choices"][0]
    assert by_token == choice
    streamed = ""
    body = {"prompt": [5, 6, 7], "max_tokens": 20, "stop": ["unheard of", stop], "stream": True}
    with httpx.stream(
        "POST", f"{router}/v1/completions", json=body, trust_env=False, timeout=60
    ) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                streamed += json.loads(line[6:])["choices"][0]["text"]
    assert streamed == choice["text"]
    assert complete(router, stop="unheard of").json()["choices"][0] == plain


def test_the_defaults_of_openai_may_be_written_out(router: str) -> None:
    nulls = ("best_of", "echo", "frequency_penalty", "logit_bias", "logprobs", "n", "seed", "stop")
    nulls += ("presence_penalty", "stream", "stream_options", "suffix", "temperature", "top_p")
    plain = complete(router).json()["choices"]
    assert complete(router, **dict.fromkeys(nulls)).json()["choices"] == plain
    said: dict[str, Any] = {"n": 1, "best_of": 1, "echo": False, "frequency_penalty": 0}
    said |= {"presence_penalty": 0.0, "logit_bias": {}, "temperature": 0, "top_p": 1, "stop": []}
    assert complete(router, **said).json()["choices"] == plain


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"prompt": ""}, "or a list of token ids that is not empty"),
        ({"prompt": []}, "or a list of token ids that is not empty"),
        ({"prompt": [1, 2, -3]}, "prompt[2] is not"),
        ({"prompt": [1, 2.5]}, "prompt[1] is not"),
        ({"prompt": ["a"]}, "prompt[0] is not"),
        ({"prompt": {"a": 1}}, "give a text"),
        ({"prompt": None}, "prompt is missing"),
        ({"temperature": 0.7}, "decoding is greedy"),
        ({"logprobs": 3}, "log probabilities are not given"),
        ({"logit_bias": {"5": 1}}, "without a bias"),
        ({"presence_penalty": 1}, "without a penalty"),
        ({"suffix": "x"}, "only written on"),
        ({"n": 2}, "one answer"),
        ({"stop": ["a"] * 5}, "up to 4 strings"),
        ({"stop": [""]}, "1 to 256 characters"),
        ({"stop": 5}, "up to 4 strings"),
        ({"tools": []}, "tools: it is unknown"),
    ],
)
def test_what_is_refused_says_what_is_allowed(
    router: str, wrong: dict[str, Any], said: str
) -> None:
    answer = complete(router, **wrong)
    error = answer.json()["error"]
    assert answer.status_code == 400
    assert said in error["message"]
    assert error["param"] == next(iter(wrong))
    assert "valid string" not in error["message"]


def test_models_are_those_of_every_decode_process_that_answers(router: str) -> None:
    found = httpx.get(f"{router}/v1/models", trust_env=False, timeout=60).json()
    assert [card["id"] for card in found["data"]] == ["tiny"]
    k3 = ModelOptions(model="tiny-k3")
    with (
        in_thread(lambda: decode_app(k3, []), "decode", Limits()) as k,
        in_thread(lambda: decode_app(ModelOptions(), []), "decode", Limits()) as d,
        in_thread(lambda: router_app([k, "http://127.0.0.1:9", d], []), "router", Limits()) as r,
    ):
        found = httpx.get(f"{r}/v1/models", trust_env=False, timeout=60).json()
        assert {card["id"] for card in found["data"]} == {"tiny", "tiny-k3"}
        for model in ("tiny", "tiny-k3") * 2:
            answer = complete(r, model=model)
            assert answer.status_code == 200
            assert answer.json()["model"] == model
