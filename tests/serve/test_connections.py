"""Connections that ask nothing, or ask badly: none of them locks anybody out."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from serve.serving import in_thread
from typer.testing import CliRunner

from kdalab.cli.main import build_app
from kdalab.errors import KdalabError
from kdalab.serve.limits import Limits
from kdalab.serve.router import router_app

SMALL = Limits(connections=8, head_s=1.0, body_s=60.0, header_bytes=4096)
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@pytest.fixture(scope="module")
def router() -> Iterator[str]:
    with in_thread(lambda: router_app(["http://127.0.0.1:9"], [], SMALL), "router", SMALL) as url:
        yield url


def dialled(url: str) -> socket.socket:
    where = urlsplit(url)
    assert where.hostname is not None
    assert where.port is not None
    return socket.create_connection((where.hostname, where.port), timeout=30)


def rest(raw: socket.socket) -> bytes:
    """Everything until the server closes."""
    found = b""
    while data := raw.recv(65536):
        found += data
    return found


def for_ok(raw: socket.socket, ask: bytes) -> None:
    """Ask, and read one whole answer."""
    raw.sendall(ask)
    found = b""
    while not found.endswith(b"}"):
        data = raw.recv(4096)
        assert data, found
        found += data
    assert found.startswith(b"HTTP/1.1 200 OK")


def answered(found: bytes) -> tuple[int, dict[str, str], dict[str, Any]]:
    head, _, body = found.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {k.lower(): v for k, _, v in (line.partition(": ") for line in lines)}
    return int(first.split()[1]), headers, json.loads(body)["error"]


def is_healthy(url: str) -> bool:
    return httpx.get(f"{url}/healthz", trust_env=False, timeout=60).status_code == 200


def test_idle_connections_lock_nobody_out_and_are_closed(router: str) -> None:
    with ExitStack() as stack:
        idle = [stack.enter_context(dialled(router)) for _ in range(120)]
        for _ in range(5):
            assert is_healthy(router)
        for raw in idle:  # one that stays open would make this wait, and fail
            with suppress(ConnectionResetError):
                assert raw.recv(100) == b""


def test_a_connection_between_two_requests_outlives_those_that_never_asked(router: str) -> None:
    with ExitStack() as stack, dialled(router) as kept:
        ask = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
        for_ok(kept, ask)
        for _ in range(30):
            stack.enter_context(dialled(router))
        for_ok(kept, ask)


def test_a_head_that_drips_is_given_up(router: str) -> None:
    with dialled(router) as raw:
        started = time.monotonic()
        raw.sendall(HEAD)
        raw.settimeout(0.1)
        found = b""
        while not found and time.monotonic() - started < 30:
            raw.sendall(b"X-A: 1\r\n")
            try:
                found = raw.recv(4096)
            except TimeoutError:
                continue
    assert time.monotonic() - started > 0.8 * SMALL.head_s
    status, _, error = answered(found)
    assert (status, error["code"]) == (408, "timeout")


def test_when_all_ask_something_the_next_is_told_to_come_back(router: str) -> None:
    with ExitStack() as stack:
        for _ in range(SMALL.connections):
            asking = stack.enter_context(dialled(router))
            asking.sendall(HEAD + b"Expect: 100-continue\r\nContent-Length: 50\r\n\r\n")
            assert asking.recv(100).startswith(b"HTTP/1.1 100 "), "its body is waited for"
        late = stack.enter_context(dialled(router))
        late.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        status, headers, error = answered(rest(late))
        assert (status, error["code"]) == (503, "too_many_connections")
        assert headers["retry-after"] == "1"
        for _ in range(SMALL.connections):  # as many again are read, and no more
            late = stack.enter_context(dialled(router))
            late.sendall(HEAD + b"Content-Length: 50\r\n\r\n{")
        status, headers, error = answered(rest(late))
        assert (status, error["code"]) == (503, "too_many_connections")
        assert headers["retry-after"] == "1"
    assert is_healthy(router)


@pytest.mark.parametrize(
    ("said", "status", "code"),
    [
        (b"\x16\x03\x01\x02\x00\x01" * 20 + b"\r\n\r\n", 400, "invalid_request"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nbad header\r\n\r\n", 400, "invalid_request"),
        (HEAD + b"Content-Length: -5\r\n\r\n", 400, "invalid_request"),
        (HEAD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n", 400, "invalid_request"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\nno chunk\r\n", 400, "invalid_request"),
        (HEAD + b"Content-Length: 1000000000000000000\r\n\r\n", 413, "too_large"),
        (HEAD + b"X: " + b"a" * 100_000, 431, "headers_too_large"),
    ],
    ids=lambda x: str(x)[-40:],
)
def test_what_is_no_request_is_refused_as_everything_else(
    router: str, said: bytes, status: int, code: str
) -> None:
    with dialled(router) as raw:
        raw.sendall(said)
        found = answered(rest(raw))
    assert (found[0], found[2]["code"]) == (status, code)
    assert set(found[2]) == {"message", "type", "param", "code"}
    assert found[1]["content-type"] == "application/json"


def test_head_is_answered_as_get_without_a_body(router: str) -> None:
    answer = httpx.head(f"{router}/healthz", trust_env=False, timeout=60)
    assert (answer.status_code, answer.content) == (200, b"")
    assert httpx.head(f"{router}/nothing", trust_env=False, timeout=60).status_code == 404
    assert httpx.head(f"{router}/v1/completions", trust_env=False, timeout=60).status_code == 405


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "-1", "0"])
def test_a_limit_is_a_finite_number(value: str) -> None:
    for name in ("queue_s", "requests"):
        arguments = ["serve", "router", "--decode", "http://127.0.0.1:9"]
        done = CliRunner().invoke(build_app(), [*arguments, "--limit", f"{name}={value}"])
        assert isinstance(done.exception, KdalabError)
        assert "limit" in str(done.exception)
    if value != "0":
        done = CliRunner().invoke(build_app(), ["serve", "prefill", "--slow", value])
        assert done.exit_code == 2
        assert "seconds" in done.output
    with pytest.raises(KdalabError, match="whole number"):
        Limits(requests=1.5)  # type: ignore[arg-type]
