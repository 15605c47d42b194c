"""Who may ask, how much, how fast; and what is said to those who may not."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from serve.serving import in_thread, single
from typer.testing import CliRunner

from kdalab.cli.main import build_app
from kdalab.errors import KdalabError
from kdalab.serve.decoding import DecodeRole
from kdalab.serve.errors import ServeError
from kdalab.serve.images import Images
from kdalab.serve.limits import Limits
from kdalab.serve.roles import ModelOptions, decode_app
from kdalab.serve.router import router_app
from kdalab.serve.run import Place, listen

TOKEN = "a-token-of-many-characters"
SMALL = Limits(
    body_bytes=20_000, prompt_tokens=300, new_tokens=50, queue_s=0.3, body_s=0.5, requests=2
)


@pytest.fixture(scope="module")
def decode() -> Iterator[str]:
    """A decode process with one slot that prefills by itself."""
    options = ModelOptions(n_active=1, limits=SMALL, slow_s=0.04)
    with in_thread(lambda: decode_app(options, []), "decode", SMALL) as url:
        yield url


@pytest.fixture(scope="module")
def router(decode: str) -> Iterator[str]:
    with in_thread(lambda: router_app([decode], [], SMALL), "router", SMALL) as url:
        yield url


def error_of(answer: httpx.Response, status: int) -> str:
    """The name of an error in OpenAI's shape."""
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return str(error["code"])


def complete(url: str, **body: Any) -> httpx.Response:
    body = {"prompt": [1, 2, 3], "max_tokens": 2, **body}
    return httpx.post(f"{url}/v1/completions", json=body, trust_env=False, timeout=60)


@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [1, -2]}, "prompt"),
        ({"prompt": [1, 2**40]}, "prompt"),
        ({"prompt": [1.5]}, "prompt"),
        ({"prompt": [999]}, "prompt"),
        ({"prompt": [True]}, "prompt"),
        ({"prompt": [1] * 301}, "prompt"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"max_tokens": 51}, "max_tokens"),
        ({"temperature": 0.7}, "temperature"),
        ({"n": 2}, "n"),
        ({"stop_token_ids": [1] * 65}, "stop_token_ids"),
        ({"unheard_of": 1}, "unheard_of"),
    ],
)
def test_every_number_of_a_client_is_checked(
    router: str, wrong: dict[str, Any], param: str
) -> None:
    answer = complete(router, **wrong)
    assert error_of(answer, 400) == "invalid_request"
    assert answer.json()["error"]["param"] == param


def test_other_requests_are_refused_in_the_same_shape(router: str, decode: str) -> None:
    post = f"{router}/v1/completions"
    kind = {"content-type": "application/json"}
    with httpx.Client(trust_env=False, timeout=60) as c:
        assert error_of(c.get(f"{router}/nothing"), 404) == "not_found"
        assert error_of(c.get(post), 405) == "method_not_allowed"
        assert error_of(c.post(post, content=b"{", headers=kind), 400) == "invalid_request"
        deep = b"[" * 5000
        assert error_of(c.post(post, content=deep, headers=kind), 400) == "invalid_request"
        assert error_of(c.post(post, content=b"{}"), 415) == "unsupported_media_type"
        large = b'"' + b"x" * 20_000 + b'"'
        assert error_of(c.post(post, content=large, headers=kind), 413) == "too_large"
        drip = (b"x" * 1000 for _ in range(40))  # no Content-Length
        assert error_of(c.post(post, content=drip, headers=kind), 413) == "too_large"
        many = {f"x-{i}": "1" for i in range(70)}
        assert error_of(c.get(f"{router}/healthz", headers=many), 431) == "headers_too_large"
        other = {"host": "evil.example"}
        assert error_of(c.get(f"{router}/healthz", headers=other), 421) == "wrong_host"
        assert error_of(complete(router, model="another"), 404) == "not_found"
        nobody = {"identity": {}, "tokens": [1], "have": 0, "transfer": "x"}
        assert c.post(f"{decode}/v1/prefill", json=nobody).status_code == 404


def test_a_body_that_never_ends_is_given_up(router: str) -> None:
    where = urlsplit(router)
    with socket.create_connection((where.hostname, where.port), timeout=10) as raw:
        head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n"
        raw.sendall(head.encode() + b"Content-Type: application/json\r\n\r\n{")
        answer = raw.recv(4096)
    assert answer.startswith(b"HTTP/1.1 408")


def test_a_token_is_asked_of_everybody() -> None:
    build = lambda: router_app(["http://127.0.0.1:9"], [], SMALL, TOKEN)  # noqa: E731
    with (
        in_thread(build, "router", SMALL, TOKEN) as url,
        httpx.Client(trust_env=False, timeout=60) as c,
    ):
        assert c.get(f"{url}/healthz").status_code == 200
        for headers in ({}, {"authorization": "Bearer no"}, {"authorization": TOKEN}):
            answer = c.get(f"{url}/v1/conservation", headers=headers)
            assert error_of(answer, 401) == "unauthorized"
            assert answer.headers["www-authenticate"] == "Bearer"
        right = {"authorization": f"Bearer {TOKEN}"}
        assert c.get(f"{url}/v1/conservation", headers=right).status_code == 200
        body = {"prompt": [1], "max_tokens": 1}
        answer = c.post(f"{url}/v1/completions", json=body, headers=right)
        assert error_of(answer, 503) == "unavailable"
        assert answer.headers["retry-after"] == "1"


def test_without_a_token_nothing_is_bound_to_other_addresses(monkeypatch: Any) -> None:
    monkeypatch.delenv("KDALAB_TOKEN", raising=False)
    done = CliRunner().invoke(build_app(), ["serve", "prefill", "--host", "0.0.0.0"])
    assert isinstance(done.exception, KdalabError)
    assert "can be reached by others" in str(done.exception)
    with pytest.raises(KdalabError, match="at least 16"):
        Place("0.0.0.0", 0, "short")
    assert Place("0.0.0.0", 0, TOKEN).token == TOKEN
    taken = listen(Place())
    with taken, pytest.raises(KdalabError, match="free one"):
        listen(Place(port=taken.getsockname()[1]))


def test_one_slot_is_waited_for_and_then_refused_by_name(router: str) -> None:
    """One slot: the second request waits and is refused, a third finds the queue full."""
    url = f"{router}/v1/completions"
    body = {"prompt": list(range(64)), "max_tokens": 50, "stream": True}
    with httpx.stream("POST", url, json=body, trust_env=False, timeout=60) as answer:
        parts = answer.iter_raw()
        next(parts)
        found: list[httpx.Response] = []
        ask = lambda: found.append(complete(router))  # noqa: E731
        threads = [threading.Thread(target=ask) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    codes = sorted((a.status_code, a.json()["error"]["code"]) for a in found)
    assert codes == [(429, "too_many_requests"), (503, "out_of_slots")]
    assert all(a.headers["retry-after"] == "1" for a in found)
    answer = complete(router)
    assert answer.json()["choices"][0]["token_ids"] == single([1, 2, 3], 2)


def test_without_a_fallback_the_error_has_a_name() -> None:
    limits = Limits(connect_s=0.5, retries=1)
    dead = listen(Place())
    url = f"http://127.0.0.1:{dead.getsockname()[1]}"
    dead.close()
    build = lambda: decode_app(ModelOptions(limits=limits), [url], fallback=False)  # noqa: E731
    with in_thread(build, "decode", limits) as decode:
        body = {"prompt": [1, 2, 3], "max_tokens": 2}
        answer = httpx.post(f"{decode}/v1/generate", json=body, trust_env=False, timeout=60)
        error = json.loads(answer.text)["error"]
        assert error["code"] == "transfer_failed"
        assert "ConnectError" in error["message"]
        found = httpx.get(f"{decode}/v1/conservation", trust_env=False, timeout=60).json()
        assert found["requests"] == {"waiting": 0, "running": 0, "receiving": 0}
        assert found["counts"]["retries"] == 1


def test_other_weights_are_refused_and_the_field_is_named() -> None:
    from kdalab.serve.roles import prefill_app

    limits = Limits(retries=0)
    build = lambda: prefill_app(ModelOptions(seed=1, limits=limits))  # noqa: E731
    with in_thread(build, "prefill", limits) as prefill:
        options = ModelOptions(limits=limits)
        worker = options.worker()[1]
        worker.start()

        async def ask() -> ServeError | None:
            images = Images(worker.engine.model, 0, [], limits)
            role = DecodeRole(worker, limits, images, [prefill], fallback=False)
            live = await role.begin([1, 2, 3], 2, [])
            items = [item async for item in role.tokens(live)]
            role.end(live)
            await role.close()
            return ServeError.of_body(items[-1], "")

        # In a thread of its own: the browser tests leave a running loop in this one.
        with ThreadPoolExecutor(1) as apart:
            error = apart.submit(asyncio.run, ask()).result()
        assert error is not None
        assert error.code == "transfer_failed"
        assert "model_version" in error.message
        worker.close()
