"""A real prefill, decode and router, with a proxy that spoils transfers in between."""

from __future__ import annotations

import queue
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import httpx
from fastapi import FastAPI
from serve.faulty import Proxy

from kdalab.engine import Engine, EngineConfig
from kdalab.model import tiny_model
from kdalab.serve.limits import Limits
from kdalab.serve.processes import Child, Cluster, start, wait_ready
from kdalab.serve.run import Place, serve

SIZES = ["--port", "0", "--chunk", "64", "--pages", "160", "--slots", "4"]
QUICK = ["--limit", "piece_s=1.5", "--limit", "connect_s=1", "--limit", "queue_s=8"]


@dataclass
class Stand:
    """What a test talks to."""

    cluster: Cluster
    proxy: Proxy
    client: httpx.Client

    def child(self, role: str) -> Child:
        return self.cluster.children[role]

    def ask(self, tokens: list[int] | str, new: int, **more: Any) -> httpx.Response:
        body = {"prompt": tokens, "max_tokens": new, **more}
        return self.client.post(f"{self.cluster.url}/v1/completions", json=body)

    def counts(self, role: str) -> dict[str, Any]:
        found: dict[str, Any] = self.client.get(f"{self.child(role).url}/v1/conservation").json()
        return found

    def settled(self, role: str, seconds: float = 15.0) -> dict[str, Any]:
        """Conservation once nothing is under way; every rule is checked by the process itself."""
        until = time.monotonic() + seconds
        while True:
            found = self.counts(role)
            assert found.get("checked"), found
            if leaks(found) == [] or time.monotonic() > until:
                return found
            time.sleep(0.05)


def leaks(found: dict[str, Any]) -> list[str]:
    """What is held although nobody is served."""
    held = []
    for kind in ("latent_pages", "active_states", "checkpoints"):
        c = found[kind]
        assert c["total"] == c["free"] + c["active"] + c["cached"] + c["in_flight"]
        if c["active"] or c["in_flight"]:
            held.append(f"{kind}: {c}")
    if found["active_states"]["free"] != found["active_states"]["total"]:
        held.append(f"active states: {found['active_states']}")
    for name in ("leases", "holds", "live", "queued"):
        if found.get(name):
            held.append(f"{name}: {found[name]}")
    held += [f"{k}: {v}" for k, v in found["requests"].items() if v]
    if found.get("transfers", {}).get("open") or found.get("transfers", {}).get("bytes"):
        held.append(f"transfers: {found['transfers']}")
    return held


@contextmanager
def stand() -> Iterator[Stand]:
    cluster = Cluster()
    proxy = None
    client = httpx.Client(trust_env=False, timeout=60)
    try:
        prefill = cluster.children["prefill"] = start("prefill", [*SIZES, "--limit", "send_s=2"])
        proxy = Proxy("")
        decode = start("decode", [*SIZES, *QUICK, "--prefill", proxy.url])
        cluster.children["decode"] = decode
        proxy.target = wait_ready(prefill).url
        wait_ready(decode)
        router = ["--port", "0", "--decode", decode.url, "--also", prefill.url]
        cluster.children["router"] = start("router", router)
        wait_ready(cluster.children["router"])
        yield Stand(cluster, proxy, client)
    finally:
        client.close()
        cluster.end()
        if proxy is not None:
            proxy.close()


@contextmanager
def in_thread(
    build: Callable[[], FastAPI], role: str, limits: Limits, token: str = ""
) -> Iterator[str]:
    """A server in a thread of this process; its address."""
    ready: queue.Queue[str] = queue.Queue()
    place = Place(token=token)
    arguments = (build, place, role, limits, False, False, ready.put, ended := threading.Event())
    thread = threading.Thread(target=serve, args=arguments, daemon=True)
    thread.start()
    yield ready.get(timeout=60)
    ended.set()
    thread.join(20)


@lru_cache(maxsize=1)
def _engine() -> Engine:
    return Engine(tiny_model(), EngineConfig(n_pages=512, n_checkpoints=128))


def single(tokens: list[int], new: int) -> list[int]:
    """What one engine in one process generates."""
    engine = _engine()
    request = engine.submit(tokens, new)
    engine.run()
    return request.generated


def prompts(seed: int, n: int) -> Iterator[tuple[list[int], int]]:
    """Prompts that share prefixes in the ways prompts do, and new tokens for each."""
    draw = random.Random(seed)
    bases = [[draw.randrange(256) for _ in range(320)] for _ in range(4)]
    for _ in range(n):
        base = draw.choice(bases)
        cut = draw.choice((0, 64, 128, 192, 256, draw.randrange(300)))
        rest = [draw.randrange(256) for _ in range(draw.choice((0, 1, 30, 64, 100)))]
        yield (base[:cut] + rest or base[:5]), draw.randint(1, 6)
