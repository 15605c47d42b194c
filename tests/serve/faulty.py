"""A proxy in front of prefill or encode that does to one answer what networks do, and peers."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from kdalab.serve.pieces import HEAD, MAGIC
from kdalab.serve.run import Place, listen

FAULTS = (
    "none",
    "twice",
    "out of order",
    "corrupted byte",
    "corrupted head",
    "cut",
    "cut within a piece",
    "state lost",
    "state first",
    "stale transfer",
    "refused",
    "stalled",
)

ENCODE_FAULTS = ("corrupted byte", "corrupted head", "cut within a piece", "state lost", "refused")
"""Those that mean something for the one piece of an encoder's answer."""


class CutError(Exception):
    """Ends the connection without its end."""


class Proxy:
    """Forwards to ``target``. ``fault_of(what, attempt)`` names what goes wrong with the answer to
    a prompt's ids or an image's base64. What ``before`` and ``acts`` name is done to a process:
    before its answer, or after its first piece."""

    def __init__(self, target: str, path: str = "/v1/prefill") -> None:
        self.target, self.path = target, path
        self.fault_of: Callable[[Any, int], str] = lambda what, attempt: "none"
        self.after_piece: Callable[[int], None] = lambda count: None
        self.before: dict[str, Callable[[], object]] = {}
        self.acts: dict[str, Callable[[], object]] = {}
        self.attempts: Counter[Any] = Counter()
        self.fired: Counter[str] = Counter()
        self.pieces = 0
        self.last: bytes = b""  # the last piece of the transfer before
        self.asked: list[dict[str, Any]] = []
        app = Starlette(routes=[Route(path, self._answer, methods=["POST"])])
        sock = listen(Place())
        self.url = f"http://127.0.0.1:{sock.getsockname()[1]}"
        config = uvicorn.Config(app, log_level="critical", access_log=False, ws="none")
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run, args=([sock],), daemon=True)
        self.thread.start()

    def close(self) -> None:
        self.server.should_exit = True
        self.thread.join(10)

    async def _answer(self, request: Request) -> Response:
        body = await request.json()
        self.asked.append({k: v for k, v in body.items() if k != "identity"})
        what = body["tokens"] if "tokens" in body else body["data"]
        key = tuple(what) if isinstance(what, list) else what
        fault = self.fault_of(what, self.attempts[key])
        self.attempts[key] += 1
        self.fired[fault] += 1
        if fault == "refused":
            error = {"message": "busy", "type": "x", "param": None, "code": "too_many_requests"}
            return Response(json.dumps({"error": error}), 429)
        if fault in self.before:
            self.before[fault]()
        return StreamingResponse(self._closing(fault, body))

    async def _closing(self, fault: str, body: dict[str, Any]) -> AsyncIterator[bytes]:
        """Whoever leaves, the connection behind is closed at once, not when memory is collected."""
        async with (
            aclosing(self._forward(body)) as frames,
            aclosing(self._spoil(fault, frames)) as s,
        ):
            async for part in s:
                yield part

    async def _forward(self, body: dict[str, Any]) -> AsyncGenerator[bytes, None]:
        """The frames of the real answer, one by one; any other answer is a cut."""
        async with (
            httpx.AsyncClient(trust_env=False, timeout=60) as client,
            client.stream("POST", f"{self.target}{self.path}", json=body) as answer,
        ):
            if answer.status_code != 200:
                raise CutError(await answer.aread())
            pending = b""
            async for data in answer.aiter_raw():
                pending += data
                while len(pending) >= HEAD.size:
                    magic, _, length = HEAD.unpack(pending[: HEAD.size])
                    assert magic == MAGIC
                    if len(pending) < HEAD.size + length:
                        break
                    yield pending[: HEAD.size + length]
                    pending = pending[HEAD.size + length :]
                    self.pieces += 1
                    self.after_piece(self.pieces)

    async def _spoil(self, fault: str, frames: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
        n, frame, stale = 0, b"", self.last
        if fault in ("out of order", "state first"):
            held = [f async for f in frames]
            order = held[::-1] if fault == "out of order" else [held[-1], *held[:-1]]
            for frame in order:
                yield frame
            return
        if fault == "state lost":
            held = [f async for f in frames]
            for frame in held[:-1]:
                yield frame
            return
        async for frame in frames:
            n += 1
            if fault in self.acts and n == 1:
                self.acts[fault]()
            if fault == "stalled" and n == 1:
                await asyncio.sleep(2.5)
            if fault == "corrupted byte" and n == 1:
                spoiled = bytearray(frame)
                spoiled[len(frame) * 2 // 3] ^= 4
                yield bytes(spoiled)
                continue
            if fault == "corrupted head" and n == 1:
                yield frame[:9] + bytes([frame[9] ^ 32]) + frame[10:]
                continue
            if fault == "stale transfer" and n == 1 and stale:
                yield stale
            if fault == "cut within a piece" and n == 1:
                yield frame[: len(frame) // 2]
                raise CutError
            yield frame
            self.last = frame
            if fault == "twice":
                yield frame
            if fault == "cut" and n == 1:
                raise CutError
