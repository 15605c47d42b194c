"""Many requests, one thing that goes wrong with each: never a wrong token, never a leak."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections import Counter

import httpx
import pytest
from serve.faulty import ENCODE_FAULTS
from serve.plan import CLIENT_FAULTS, KILLS, Ask, asks
from serve.serving import Stand, assert_no_leak, calm

MAY_FAIL = ("out_of_slots", "too_many_requests", "unavailable", "transfer_failed")
"""Errors after which a client asks again; they come while a process is down."""


class Client:
    """Asks until it gets an answer, and counts what came."""

    def __init__(self, running: Stand) -> None:
        self.running = running
        self.counts: Counter[str] = Counter()
        self.facts: Counter[str] = Counter()
        self.lock = threading.Lock()
        self.errors: list[str] = []

    def work(self, mine: list[Ask]) -> None:
        with httpx.Client(trust_env=False, timeout=60) as http:
            for ask in mine:
                try:
                    outcome = self._ask(http, ask)
                except Exception as error:  # shown by the test, on its own thread
                    outcome = "no answer"
                    self.errors.append(f"{ask.fault}: {type(error).__name__} {error}"[:300])
                with self.lock:
                    self.counts[outcome] += 1

    def _ask(self, http: httpx.Client, ask: Ask) -> str:
        url = f"{self.running.cluster.url}/v1/completions"
        if ask.fault == "client goes":
            with http.stream("POST", url, json={**ask.body, "stream": True}) as answer:
                next(answer.iter_raw(), b"")
            return "left"
        if ask.fault == "client goes early":
            with contextlib.suppress(httpx.TimeoutException):
                http.post(url, json=ask.body, timeout=0.02)
            return "left"
        until = time.monotonic() + 60
        kill = ask.fault == "decode killed in its answer"
        while time.monotonic() < until:
            ids, code = self._killing(http, url, ask) if kill else self._whole(http, url, ask)
            kill = False
            if ids is not None:
                return "right" if ids == ask.expected else "wrong"
            assert code in MAY_FAIL, code
            with self.lock:
                self.counts["asked again"] += 1
            time.sleep(0.5)
        return "no answer"

    def _whole(self, http: httpx.Client, url: str, ask: Ask) -> tuple[list[int] | None, str]:
        answer = http.post(url, json=ask.body)
        plain = answer.json()
        if answer.status_code != 200:
            return None, str(plain["error"]["code"])
        with self.lock:
            self.facts.update(x for x in ("retries", "fallback") if x in plain["kdalab"])
        return plain["choices"][0]["token_ids"], ""

    def _killing(self, http: httpx.Client, url: str, ask: Ask) -> tuple[list[int] | None, str]:
        """Reads the first token, and ends the process that makes the next ones."""
        ids: list[int] = []
        body = {**ask.body, "stream": True}
        with http.stream("POST", url, json=body) as answer:
            if answer.status_code != 200:
                return None, str(json.loads(answer.read())["error"]["code"])
            for line in answer.iter_lines():
                if not line or line == "data: [DONE]":
                    continue
                event = json.loads(line.removeprefix("data: "))
                if "error" in event:
                    return None, str(event["error"]["code"])
                if not ids:
                    self.running.kill("decode")
                ids += event["choices"][0]["token_ids"]
                assert ids == ask.expected[: len(ids)], "a token before the end was wrong"
        return ids, ""


def at_random(running: Stand, plan: list[Ask]) -> Client:
    """The requests in four threads."""
    running.killed.clear()
    of_prompt = {a.tokens: a.fault for a in plan}
    of_image = {
        p.base64: a.fault for a in plan if a.fault.startswith("encode") for p in a.pictures[:1]
    }
    for proxy in (running.proxy, running.encode_proxy):
        proxy.attempts.clear()
        proxy.fired.clear()
    running.proxy.acts = {
        "prefill killed": lambda: running.kill("prefill"),
        "decode killed": lambda: running.kill("decode"),
    }
    running.encode_proxy.before = {"killed": lambda: running.kill("encode")}

    def fault_of(tokens: list[int], attempt: int) -> str:
        fault = of_prompt.get(tuple(tokens), "none")
        return "none" if attempt or fault.startswith("encode") else fault

    def encode_fault_of(data: str, attempt: int) -> str:
        return "none" if attempt else of_image.get(data, "none").removeprefix("encode ")

    running.proxy.fault_of, running.encode_proxy.fault_of = fault_of, encode_fault_of
    client = Client(running)
    threads = [threading.Thread(target=client.work, args=(plan[i::4],)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    running.wait_revived()
    calm(running)
    return client


@pytest.mark.parametrize(
    ("n", "kills"),
    [
        (40, 0),
        pytest.param(500, 3, marks=[pytest.mark.slow, pytest.mark.timeout(1200)], id="500"),
    ],
)
def test_random_requests_with_a_fault_each(running: Stand, n: int, kills: int) -> None:
    plan = asks(n, seed=n, kills=kills)
    client = at_random(running, plan)
    counts = client.counts
    fired = {k: v for k, v in running.proxy.fired.items() if k not in ("none", *CLIENT_FAULTS)}
    encoder = {k: v for k, v in running.encode_proxy.fired.items() if k != "none"}
    print(f"\n{n} requests, {sum(bool(a.pictures) for a in plan)} with images: {dict(counts)}")
    print(f"attempts after a fault: {dict(client.facts)}; killed: {dict(Counter(running.killed))}")
    print(f"faults of transfers: {fired}\nfaults of the encoder: {encoder}")
    assert client.errors == []
    assert counts["wrong"] == 0
    assert counts["right"] + counts["left"] == n
    assert counts["right"] == sum(a.fault not in CLIENT_FAULTS for a in plan)
    assert len(encoder) >= min(n // 20, len(ENCODE_FAULTS))
    if kills:
        assert set(running.killed) == {"prefill", "encode", "decode"}
        assert len(running.killed) >= kills * len(KILLS) // 2
    assert_no_leak(running)
