"""Prefill processes with no room are well: they are waited for, in turn, and said to be full."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from fastapi.responses import JSONResponse
from serve.serving import in_thread, single

from kdalab.serve.limits import Limits
from kdalab.serve.roles import ModelOptions, decode_app, prefill_app
from kdalab.serve.router import router_app
from kdalab.serve.run import Place, listen
from kdalab.serve.turns import Turns


@contextmanager
def prefill(**more: Any) -> Iterator[str]:
    options = ModelOptions(chunk_tokens=64, **more)
    with in_thread(lambda: prefill_app(options), "prefill", options.limits) as url:
        yield url


@contextmanager
def decode(*prefills: str, fallback: bool = False, **more: Any) -> Iterator[str]:
    """A decode process and a router in front; the router's address and the decode's."""
    limits = Limits(**more)
    options = ModelOptions(limits=limits)
    build = lambda: decode_app(options, list(prefills), fallback)  # noqa: E731
    with in_thread(build, "decode", limits) as url:
        yield url


def ask(url: str, tokens: list[int], new: int = 3) -> list[dict[str, Any]]:
    body = {"prompt": tokens, "max_tokens": new}
    answer = httpx.post(f"{url}/v1/generate", json=body, trust_env=False, timeout=60)
    return [json.loads(line) for line in answer.text.splitlines()]


def ids(events: list[dict[str, Any]]) -> list[int]:
    assert "finish" in events[-1], events
    return [e["token"] for e in events if "token" in e]


def counts(url: str) -> dict[str, Any]:
    found: dict[str, Any] = httpx.get(f"{url}/v1/conservation", trust_env=False, timeout=60).json()
    return found


def prompts(n: int, size: int) -> list[list[int]]:
    return [[(7 * i + j * j) % 320 for j in range(size)] for i in range(n)]


def test_a_prefill_with_no_room_is_waited_for() -> None:
    asked = prompts(3, 130)
    with (
        prefill(limits=Limits(transfers=1), slow_s=0.2) as p,
        decode(p) as d,
        ThreadPoolExecutor(3) as pool,
    ):
        found = list(pool.map(lambda tokens: ask(d, tokens), asked))
        assert [ids(f) for f in found] == [single(tokens, 3) for tokens in asked]
        c = counts(d)["counts"]
        assert c["busy"] > 0
        assert (c["retries"], c["failed"], c["fallbacks"]) == (0, 0, 0)


@pytest.mark.parametrize(("fallback", "status"), [(False, 429), (True, 200)])
def test_when_it_has_no_room_for_too_long_that_is_what_is_said(fallback: bool, status: int) -> None:
    full = FastAPI()
    times = []

    @full.post("/v1/prefill")
    async def refuse() -> JSONResponse:
        times.append(1)
        error = {"message": "full", "type": "x", "param": None, "code": "too_many_requests"}
        return JSONResponse({"error": error}, 429, {"Retry-After": "2"})

    with (
        in_thread(lambda: full, "prefill", Limits()) as p,
        decode(p, fallback=fallback, queue_s=1.5) as d,
        in_thread(lambda: router_app([d], []), "router", Limits()) as r,
    ):
        body = {"prompt": [1, 2, 3], "max_tokens": 2}
        answer = httpx.post(f"{r}/v1/completions", json=body, trust_env=False, timeout=60)
        assert answer.status_code == status
        assert len(times) == 2, "at once, and when the time was over"
        if fallback:
            assert answer.json()["kdalab"]["fallback"] == "full"
        else:
            assert answer.json()["error"]["code"] == "too_many_requests"
            assert answer.headers["retry-after"] == "1"


def test_who_waits_in_the_queue_of_prefill_does_not_ask_again() -> None:
    asked = prompts(5, 400)  # seven steps of 0.15 s each: the last waits for 4.2 s
    with (
        prefill(n_active=1, slow_s=0.15) as p,
        decode(p, piece_s=2.5) as d,
        ThreadPoolExecutor(5) as pool,
    ):
        found = list(pool.map(lambda tokens: ask(d, tokens), asked))
        assert [ids(f) for f in found] == [single(tokens, 3) for tokens in asked]
        c = counts(d)["counts"]
        assert (c["transfers"], c["retries"], c["fallbacks"]) == (5, 0, 0)


def test_an_engine_that_hangs_gives_no_sign_of_life() -> None:
    with prefill(slow_s=2.5) as p, decode(p, fallback=True, piece_s=0.3, retries=0) as d:
        events = ask(d, [1, 2, 3])
        assert ids(events) == single([1, 2, 3], 3)
        assert events[-1]["fallback"].startswith("ReadTimeout")


def test_prefills_are_asked_in_turn_and_one_that_failed_comes_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kdalab.serve.turns.REST_S", 600.0)  # however long this takes
    with listen(Place()) as taken:
        dead = f"http://127.0.0.1:{taken.getsockname()[1]}"
    with ExitStack() as stack:
        first, second = (stack.enter_context(prefill()) for _ in range(2))
        d = stack.enter_context(decode(first, second, dead))
        for tokens in prompts(9, 20):
            assert ids(ask(d, tokens)) == single(tokens, 3)
        c = counts(d)["counts"]
        begun = [counts(p)["transfers"]["begun"] for p in (first, second)]
        assert sum(begun) == 9
        assert min(begun) >= 3
        assert (c["retries"], c["fallbacks"]) == (1, 0)


def test_turns() -> None:
    now = [100.0]
    turns = Turns(["a", "b", "c"], lambda: now[0])
    assert [turns.order() for _ in range(3)] == [list("abc"), list("bca"), list("cab")]
    turns.failed("b")
    assert [turns.order()[-1] for _ in range(3)] == ["b", "b", "b"]
    now[0] += 5
    assert [turns.order()[0] for _ in range(3)] == list("abc")
    assert Turns([]).order() == []


def test_the_bytes_are_told_even_when_the_first_token_is_the_last() -> None:
    with prefill() as p, decode(p) as d:
        told = []
        for i, tokens in enumerate(prompts(16, 50)):
            events = ask(d, tokens, 1 + 3 * (i == 0))
            assert ids(events) == single(tokens, 1 + 3 * (i == 0))
            told.append(events[-1].get("received_bytes"))
        assert None not in told
        assert len(set(told)) == 1
