"""A real encode, prefill, decode and router, with proxies that spoil answers in between."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

import httpx
from fastapi import FastAPI
from serve.faulty import Proxy

from kdalab.engine import Engine, EngineConfig
from kdalab.engine.media import Media
from kdalab.model import tiny_model
from kdalab.serve.limits import Limits
from kdalab.serve.processes import Child, Cluster, start, wait_ready
from kdalab.serve.run import Place, serve

SIZES = ["--chunk", "64", "--pages", "160", "--slots", "4"]
PIECE_S = 1.5  # a piece that takes longer is a fault
QUICK = ["--limit", f"piece_s={PIECE_S}", "--limit", "connect_s=1", "--limit", "queue_s=8"]


@dataclass
class Stand:
    """What a test talks to."""

    cluster: Cluster
    proxy: Proxy  # between decode and prefill
    encode_proxy: Proxy  # between both and encode
    client: httpx.Client
    arguments: dict[str, list[str]] = field(default_factory=dict)
    revivals: dict[str, threading.Thread] = field(default_factory=dict)
    killed: list[str] = field(default_factory=list)

    def kill(self, role: str) -> None:
        """End a process as a crash would, and have it come back at the same address."""
        before = self.revivals.get(role)
        if before is not None and before.is_alive():
            return  # it is down already
        child = self.child(role)
        child.kill()
        self.killed.append(role)
        thread = threading.Thread(target=self._revive, args=(role, child), daemon=True)
        self.revivals[role] = thread
        thread.start()

    def _revive(self, role: str, old: Child) -> None:
        old.end()
        port = str(urlsplit(old.url).port)
        again = start(role, [*self.arguments[role], "--port", port])
        self.cluster.children[role] = again
        wait_ready(again)

    def wait_revived(self) -> None:
        for thread in self.revivals.values():
            thread.join(60)
            assert not thread.is_alive()

    def child(self, role: str) -> Child:
        return self.cluster.children[role]

    def ask(self, tokens: list[int] | str, new: int, **more: Any) -> httpx.Response:
        body = {"prompt": tokens, "max_tokens": new, **more}
        return self.client.post(f"{self.cluster.url}/v1/completions", json=body)

    def counts(self, role: str) -> dict[str, Any]:
        found: dict[str, Any] = self.client.get(f"{self.child(role).url}/v1/conservation").json()
        return found

    def settled(self, role: str, seconds: float = 60.0) -> dict[str, Any]:
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
    if found["embeddings"]["readers"]:
        held.append(f"embeddings: {found['embeddings']}")
    if found["role"] == "encode":
        return held + ([f"open: {found['open']}"] if found["open"] else [])
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


def assert_no_leak(running: Stand) -> None:
    for role in ("encode", "prefill", "decode"):
        assert leaks(running.settled(role)) == []


def calm(running: Stand) -> None:
    for proxy in (running.proxy, running.encode_proxy):
        proxy.fault_of = lambda what, attempt: "none"
        proxy.after_piece = lambda count: None


@contextmanager
def stand() -> Iterator[Stand]:
    cluster = Cluster()
    proxy, encode_proxy = Proxy(""), Proxy("", "/v1/encode")
    client = httpx.Client(trust_env=False, timeout=60)
    encoder = ["--encode", encode_proxy.url]
    arguments = {
        "encode": [],
        "prefill": [*SIZES, *encoder, "--limit", "send_s=2"],
        "decode": [*SIZES, *QUICK, *encoder, "--prefill", proxy.url],
    }
    try:
        for role, more in arguments.items():  # all at once: each takes seconds to begin
            cluster.children[role] = start(role, [*more, "--port", "0"])
        encode_proxy.target = wait_ready(cluster.children["encode"]).url
        proxy.target = wait_ready(cluster.children["prefill"]).url
        decode = wait_ready(cluster.children["decode"]).url
        also = [x for url in (proxy.target, encode_proxy.target) for x in ("--also", url)]
        router = start("router", ["--port", "0", "--decode", decode, *also])
        cluster.children["router"] = router
        wait_ready(router)
        yield Stand(cluster, proxy, encode_proxy, client, arguments)
    finally:
        client.close()
        cluster.end()
        proxy.close()
        encode_proxy.close()


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


def single(tokens: Sequence[int], new: int, media: Media | None = None) -> list[int]:
    """What one engine in one process generates."""
    engine = _engine()
    request = engine.submit(tokens, new, media=media)
    engine.run()
    return request.generated
