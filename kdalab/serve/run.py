"""One process: a socket, an app behind the guard, a line when it is ready, and a clean end."""

from __future__ import annotations

import json
import os
import secrets
import socket
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kdalab.errors import KdalabError
from kdalab.serve.guard import LOOPBACK, Guard
from kdalab.serve.limits import Limits

if TYPE_CHECKING:
    from fastapi import FastAPI

TOKEN_VARIABLE = "KDALAB_TOKEN"
"""Where the token comes from, if not from a file: never from the command line, which others see."""

LEAST_TOKEN = 16
SEND_BUFFER = 256 << 10
"""Bytes that the kernel keeps for a reader that does not read."""


@dataclass(frozen=True)
class Place:
    """Where a process listens, and what it asks of callers.

    Raises:
        KdalabError: an address that others can reach, without a token; or a token that is short.
    """

    host: str = "127.0.0.1"
    port: int = 0
    token: str = ""

    def __post_init__(self) -> None:
        if self.token and (
            len(self.token) < LEAST_TOKEN or not self.token.isascii() or " " in self.token
        ):
            raise KdalabError(
                f"a token has at least {LEAST_TOKEN} ASCII characters and no space. This one "
                f"would do: {secrets.token_urlsafe(24)}"
            )
        if not self.token and self.host not in LOOPBACK:
            raise KdalabError(
                f"{self.host} can be reached by others: set {TOKEN_VARIABLE}, or --token-file, to "
                "a token that callers must send; or bind to 127.0.0.1"
            )
        if not 0 <= self.port <= 65535:
            raise KdalabError(f"port {self.port}; ports are 0 to 65535, and 0 takes a free one")


def read_token(file: Path | None) -> str:
    """The token from a file, else from the environment; "" for none.

    Raises:
        KdalabError: the file cannot be read, or is empty.
    """
    if file is None:
        return os.environ.get(TOKEN_VARIABLE, "").strip()
    try:
        token = file.read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        raise KdalabError(f"{file}: {error}") from None
    if not token:
        raise KdalabError(f"{file} is empty; it holds one token")
    return token


def serve(
    build: Callable[[], FastAPI],
    place: Place,
    role: str,
    limits: Limits,
    as_json: bool = False,
    watch_stdin: bool = False,
    ready: Callable[[str], None] | None = None,
    until: threading.Event | None = None,
) -> None:
    """Serve until SIGINT or SIGTERM (or, with ``watch_stdin``, until standard input closes).

    Args:
        build: makes the app; the address is taken before, so that a busy port is known at once.
        ready: called with the URL instead of printing it.
        until: ends it as well, when it is set.

    Raises:
        KdalabError: the address is taken or is none of this machine's.
    """
    import uvicorn

    from kdalab.serve.connection import protocol

    listening = listen(place)
    port = listening.getsockname()[1]
    host = f"[{place.host}]" if ":" in place.host else place.host
    url = f"http://{host}:{port}"
    hosts = LOOPBACK if place.host in LOOPBACK and not place.token else None
    config = uvicorn.Config(
        Guard(build(), limits, place.token, hosts),
        log_level="critical",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws="none",
        http=protocol(limits),
        h11_max_incomplete_event_size=limits.header_bytes,
        timeout_graceful_shutdown=3,
    )
    server = uvicorn.Server(config)
    if watch_stdin:
        threading.Thread(target=_end_with_stdin, args=(server,), daemon=True).start()
    if until is not None:
        threading.Thread(target=_end_with_event, args=(server, until), daemon=True).start()
    if ready is not None:
        ready(url)
    elif as_json:
        print(json.dumps({"role": role, "url": url, "pid": os.getpid()}), flush=True)
    else:
        print(f"kdalab {role} at {url} (Ctrl-C ends it)", flush=True)
    server.run(sockets=[listening])


def listen(place: Place) -> socket.socket:
    """A listening socket.

    Raises:
        KdalabError: the address is taken or is none of this machine's.
    """
    family = socket.AF_INET6 if ":" in place.host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        made.bind((place.host, place.port))
        made.listen(256)
    except OSError as error:
        made.close()
        raise KdalabError(
            f"{place.host}:{place.port}: {error.strerror or error}. Give another --port (0 takes "
            "a free one)"
        ) from None
    return made


def _end_with_event(server: object, until: threading.Event) -> None:
    until.wait()
    server.should_exit = True  # type: ignore[attr-defined]


def _end_with_stdin(server: object) -> None:
    """Whoever started this process has gone: end as well."""
    while sys.stdin.buffer.read(4096):
        pass
    server.should_exit = True  # type: ignore[attr-defined]
