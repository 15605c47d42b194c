"""Two processes and one fault at a time: the right tokens or a named error, and nothing leaks."""

from __future__ import annotations

import json
import random
import socket
import threading
import time
from urllib.parse import urlsplit

import httpx
import pytest
from serve.faulty import FAULTS
from serve.serving import PIECE_S, SIZES, Stand, assert_no_leak, calm, leaks, single

from kdalab.serve.processes import start, wait_ready


def fresh(seed: int, n: int = 200) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(256) for _ in range(n)]


def test_tokens_are_those_of_one_process_and_a_known_prefix_does_not_travel(running: Stand) -> None:
    calm(running)
    first, second = fresh(1, 128), fresh(1, 128) + fresh(2, 100)
    for tokens in (first, second, first):
        answer = running.ask(tokens, 6)
        assert answer.status_code == 200, answer.text
        assert answer.json()["choices"][0]["token_ids"] == single(tokens, 6)
    # Decode kept what it got at 128 tokens, so only the rest is asked for; the state always comes.
    assert [a["have"] for a in running.proxy.asked[-3:]] == [0, 128, 128]
    facts = answer.json()["kdalab"]
    assert facts["held"] == 128
    assert "fallback" not in facts
    assert_no_leak(running)


def test_streamed_tokens_are_the_same_and_end_with_done(running: Stand) -> None:
    calm(running)
    tokens = fresh(3, 70)
    answer = running.ask(tokens, 5, stream=True)
    lines = [x.removeprefix("data: ") for x in answer.text.strip().split("\n\n")]
    assert lines.pop() == "[DONE]"
    events = [json.loads(x) for x in lines]
    ids = [t for e in events for t in e["choices"][0]["token_ids"]]
    assert ids == single(tokens, 5)
    assert events[-1]["choices"][0]["finish_reason"] == "length"
    assert events[-1]["usage"]["total_tokens"] == 75


@pytest.mark.parametrize("fault", [f for f in FAULTS if f != "none"])
def test_a_spoiled_transfer_is_found_and_made_good(running: Stand, fault: str) -> None:
    running.proxy.fault_of = lambda tokens, attempt: fault if attempt == 0 else "none"
    tokens = fresh(100 + FAULTS.index(fault), 150)
    begin = time.monotonic()
    answer = running.ask(tokens, 4)
    took = time.monotonic() - begin
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["token_ids"] == single(tokens, 4)
    retried = "retries" in answer.json()["kdalab"]
    if fault not in ("twice", "out of order", "state first", "refused"):
        assert retried
    elif took < PIECE_S:  # beyond, a busy machine may have let a piece be late
        assert not retried
    assert_no_leak(running)


def test_what_had_arrived_before_a_cut_is_not_sent_again(running: Stand) -> None:
    running.proxy.fault_of = lambda tokens, attempt: "cut" if attempt == 0 else "none"
    tokens = fresh(5, 200)
    assert running.ask(tokens, 3).json()["choices"][0]["token_ids"] == single(tokens, 3)
    assert [a["have"] for a in running.proxy.asked[-2:]] == [0, 64]
    assert_no_leak(running)


def test_when_no_state_comes_decode_prefills_itself(running: Stand) -> None:
    running.proxy.fault_of = lambda tokens, attempt: "state lost"
    tokens = fresh(6, 150)
    answer = running.ask(tokens, 4).json()
    assert answer["choices"][0]["token_ids"] == single(tokens, 4)
    assert "the state" in answer["kdalab"]["fallback"]
    assert_no_leak(running)


def test_prefill_killed_in_the_middle_costs_nothing_but_time(running: Stand) -> None:
    calm(running)
    victim = wait_ready(start("prefill", ["--port", "0", *SIZES, "--slow", "0.2"]))
    target, running.proxy.target = running.proxy.target, victim.url
    try:
        running.proxy.pieces = 0
        running.proxy.after_piece = lambda count: victim.kill() if count == 2 else None
        tokens = fresh(7, 300)
        answer = running.ask(tokens, 5).json()
        assert not victim.is_running
        assert answer["choices"][0]["token_ids"] == single(tokens, 5)
        assert answer["kdalab"]["fallback"]
    finally:
        running.proxy.target = target
        victim.end()
    assert_no_leak(running)


def test_decode_killed_before_the_last_piece_leaves_nothing_in_prefill(running: Stand) -> None:
    calm(running)
    slow = wait_ready(start("prefill", ["--port", "0", *SIZES, "--slow", "0.2"]))
    victim = wait_ready(start("decode", ["--port", "0", *SIZES, "--prefill", slow.url]))
    try:
        seen: list[str] = []

        def ask() -> None:
            try:
                body = {"prompt": fresh(8, 600), "max_tokens": 4}
                answer = httpx.post(
                    f"{victim.url}/v1/generate", json=body, trust_env=False, timeout=60
                )
                seen.append(answer.text)
            except httpx.HTTPError as error:
                seen.append(type(error).__name__)

        asking = threading.Thread(target=ask)
        asking.start()
        address = f"{slow.url}/v1/conservation"
        for _ in range(200):
            found = running.client.get(address).json()
            if found["transfers"]["open"] and found["latent_pages"]["active"]:
                break
            time.sleep(0.02)
        else:
            pytest.fail("no transfer began")
        victim.kill()
        asking.join(60)
        assert seen == ["RemoteProtocolError"] or seen == ["ReadError"]
        for _ in range(1200):
            found = running.client.get(address).json()
            if not leaks(found):
                break
            time.sleep(0.05)
        assert leaks(found) == []
    finally:
        victim.end()
        slow.end()


def test_a_client_that_goes_takes_its_request_with_it(running: Stand) -> None:
    calm(running)
    body = {"prompt": fresh(9, 250), "max_tokens": 900, "stream": True}
    url = f"{running.cluster.url}/v1/completions"
    with running.client.stream("POST", url, json=body) as answer:
        pieces = answer.iter_raw()  # kept: an iterator that is dropped closes the connection
        next(pieces)
        assert running.counts("decode")["live"] == 1
    assert_no_leak(running)
    # The same while nothing is streamed: the connection is cut while the prompt is prefilled.
    with pytest.raises(httpx.ReadTimeout):
        running.client.post(url, json={**body, "stream": False}, timeout=0.3)
    assert_no_leak(running)


def test_a_reader_that_does_not_read_is_let_go(running: Stand) -> None:
    calm(running)
    identity = running.client.get(f"{running.child('prefill').url}/v1/identity").json()["identity"]
    asked = {"transfer": "a" * 32, "identity": identity, "tokens": fresh(10, 2400), "have": 0}
    body = json.dumps(asked).encode()
    where = urlsplit(running.child("prefill").url)
    with socket.socket() as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw.connect((where.hostname, where.port))
        head = f"POST /v1/prefill HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n"
        raw.sendall(head.encode() + b"Content-Type: application/json\r\n\r\n" + body)
        for _ in range(100):
            if running.counts("prefill")["transfers"]["open"]:
                break
            time.sleep(0.02)
        assert_no_leak(running)


def test_a_prompt_that_never_fits_is_refused_at_once(running: Stand) -> None:
    calm(running)
    answer = running.ask(fresh(31, 2600), 4)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_request")
    assert "latent pages" in answer.json()["error"]["message"]
    assert_no_leak(running)


def test_steps_that_were_scheduled_too_many_change_nothing_that_was_sent(running: Stand) -> None:
    calm(running)
    ahead = wait_ready(start("prefill", ["--port", "0", *SIZES, "--over-schedule", "3"]))
    target, running.proxy.target = running.proxy.target, ahead.url
    try:
        for i in range(3):
            tokens = fresh(40 + i, 64 * (i + 1))
            answer = running.ask(tokens, 5).json()
            assert answer["choices"][0]["token_ids"] == single(tokens, 5)
            assert "fallback" not in answer["kdalab"]
        for _ in range(1200):
            found = running.client.get(f"{ahead.url}/v1/conservation").json()
            if not leaks(found):
                break
            time.sleep(0.05)
        assert leaks(found) == []
    finally:
        running.proxy.target = target
        ahead.end()
