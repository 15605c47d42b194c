"""Prefill, decode and encode in one thread, stepped by hand: what a lesson looks at piece by piece.

The roles are those of the processes, with their engines, checks, retries and fallbacks. What is
left out is the thread of each engine and HTTP: a piece goes from one role to the other as the
bytes that would be written to the connection, and ``carry`` may lose, change or delay them.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from kdalab.model import VisionEncoder
from kdalab.serve.encoding import embedding_piece
from kdalab.serve.errors import ServeError
from kdalab.serve.images import picture
from kdalab.serve.limits import Limits
from kdalab.serve.outgoing import Outgoing, PrefillRole
from kdalab.serve.remote import Remote
from kdalab.serve.schema import Encode, Prefill, parsed
from kdalab.serve.worker import EngineWorker

T = TypeVar("T")

Carry = Callable[[AsyncIterator[bytes]], AsyncIterator[bytes]]
"""From the frames that are sent to the bytes that arrive."""


class SteppedWorker(EngineWorker):
    """An engine that steps when it is told to; what others ask of it happens at once."""

    async def call(self, act: Callable[[], T], undo: Callable[[T], object] | None = None) -> T:
        return act()

    def post(self, act: Callable[[], T]) -> Future[T]:
        done: Future[T] = Future()
        try:
            done.set_result(act())
        except Exception as error:
            done.set_exception(error)
        return done

    def turn(self) -> bool:
        """One step; False when there is nothing to do."""
        if not self._has_work():
            return False
        self.engine.step()
        self.after_step()
        return True


class Answer:
    """What the decode role reads of a response."""

    def __init__(self, status: int, parts: AsyncIterator[bytes]) -> None:
        self.status_code, self._parts = status, parts

    def aiter_raw(self) -> AsyncIterator[bytes]:
        """The body as it comes."""
        return self._parts


class PrefillWire(Remote):
    """The way to a prefill role in this process."""

    def __init__(self, role: PrefillRole, worker: SteppedWorker, carry: Carry) -> None:
        self.role, self.worker, self.carry = role, worker, carry

    @asynccontextmanager
    async def stream(self, url: str, body: dict[str, Any]) -> AsyncIterator[Any]:
        """POST /v1/prefill: as ``roles.prefill_app`` answers it."""
        asked = parsed(Prefill, json.dumps(body).encode())
        try:
            out = await self.role.begin(asked)
        except ServeError as error:
            yield Answer(500, _once(json.dumps(error.body()).encode()))
            return
        try:
            yield Answer(200, self.carry(self._frames(out)))
        finally:
            self.role.end(out)

    async def _frames(self, out: Outgoing) -> AsyncIterator[bytes]:
        frames = self.role.frames(out)
        while True:
            while not out.ready and not out.done and self.worker.turn():
                pass
            try:
                yield await anext(frames)
            except StopAsyncIteration:
                return

    async def close(self) -> None:
        """Nothing is open."""


class EncodeWire(Remote):
    """The way to encoders in this process.

    Args:
        carry: from the address that is asked and the frame that it sends to the bytes that arrive.
    """

    def __init__(
        self, encoder: VisionEncoder, limits: Limits, carry: Callable[[str, bytes], bytes]
    ) -> None:
        self.encoder, self.limits, self.carry = encoder, limits, carry

    @asynccontextmanager
    async def stream(self, url: str, body: dict[str, Any]) -> AsyncIterator[Any]:
        """POST /v1/encode: as ``encoding.encode_app`` answers it, without its pool."""
        asked = parsed(Encode, json.dumps(body).encode())
        of, most = self.encoder.fingerprint, self.limits.image_pixels
        p = picture(asked, 0, bytes.fromhex(asked.salt), of, most)
        frame = embedding_piece(p, self.encoder.encode(p.pixels, p.height, p.width), of)
        yield Answer(200, _once(self.carry(url, frame)))

    async def close(self) -> None:
        """Nothing is open."""


async def _once(data: bytes) -> AsyncIterator[bytes]:
    yield data
