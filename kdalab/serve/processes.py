"""Encode, prefill, decode and a router as processes of this machine, started and ended together."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from kdalab.errors import KdalabError

START_S = 120.0
END_S = 8.0


@dataclass
class Child:
    """A process of ours: its role, its address, and how it is ended."""

    role: str
    process: subprocess.Popen[bytes]
    url: str = ""

    @property
    def is_running(self) -> bool:
        """True until it ends."""
        return self.process.poll() is None

    def kill(self) -> None:
        """End it at once, as a crash would."""
        self.process.kill()
        self.process.wait(END_S)

    def ask_to_end(self) -> None:
        """It watches its standard input, and ends with it."""
        if self.process.stdin is not None and not self.process.stdin.closed:
            self.process.stdin.close()

    def end(self) -> None:
        """Have it end, and see that it does."""
        if self.is_running:
            self.ask_to_end()
            try:
                self.process.wait(END_S)
            except subprocess.TimeoutExpired:
                self.kill()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()


def start(role: str, arguments: Sequence[str], env: Mapping[str, str] | None = None) -> Child:
    """Start ``kdalab serve ROLE`` on a free port; its address is not known yet (``wait_ready``)."""
    command = [sys.executable, "-m", "kdalab.cli.main", "serve", role, "--json", "--watch-stdin"]
    process = subprocess.Popen(
        [*command, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **(env or {})},
        # Ctrl-C in a terminal goes to the whole group; who started it ends it.
        start_new_session=True,
    )
    return Child(role, process)


def wait_ready(child: Child, seconds: float = START_S) -> Child:
    """Wait for the line that says where it listens.

    Raises:
        KdalabError: it ended first, or took too long.
    """
    lines: queue.Queue[bytes] = queue.Queue()
    stream = child.process.stdout
    assert stream is not None
    threading.Thread(target=lambda: lines.put(stream.readline()), daemon=True).start()
    until = time.monotonic() + seconds
    while True:
        try:
            line = lines.get(timeout=0.2)
            break
        except queue.Empty:
            if time.monotonic() > until:
                child.end()
                raise KdalabError(f"{child.role} was not ready after {seconds:.0f} s") from None
    if not line:
        code = child.process.wait(END_S)
        raise KdalabError(f"{child.role} ended before it was ready (exit code {code})")
    child.url = str(json.loads(line)["url"])
    return child


@dataclass
class Cluster:
    """A router at ``url``, and what stands behind it."""

    children: dict[str, Child] = field(default_factory=dict)

    @property
    def url(self) -> str:
        """The router's address."""
        return self.children["router"].url

    def end(self) -> None:
        """End all of it, the router first."""
        for child in self.children.values():
            child.ask_to_end()
        for child in reversed(self.children.values()):
            child.end()

    def ended(self) -> str:
        """The role of a process that has ended of itself; "" while all run."""
        return next((c.role for c in self.children.values() if not c.is_running), "")


@contextmanager
def start_cluster(
    model: Sequence[str] = (),
    decode: Sequence[str] = (),
    router: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    encode: Sequence[str] | None = None,
) -> Iterator[Cluster]:
    """Prefill, decode and router, ended on the way out whatever happens.

    Args:
        model: arguments of prefill and decode ("--model", ...).
        decode, router: further arguments of each.
        encode: arguments of an encode process, of the same model; None starts none, and requests
            with images fail.

    Raises:
        KdalabError: one of them did not start; the others are ended.
    """
    cluster = Cluster()

    def begin(role: str, arguments: Sequence[str]) -> str:
        cluster.children[role] = start(role, arguments, env)
        return wait_ready(cluster.children[role]).url

    try:
        encoders = ["--encode", begin("encode", encode)] if encode is not None else []
        prefill = begin("prefill", [*model, *encoders])
        back = ["--decode", begin("decode", [*model, *encoders, "--prefill", prefill, *decode])]
        also = [x for url in (prefill, *encoders[1:]) for x in ("--also", url)]
        begin("router", [*back, *also, *router])
        yield cluster
    finally:
        cluster.end()
