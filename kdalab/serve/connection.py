"""One TCP connection, before it has asked for anything: how long it may wait, and who goes first.

uvicorn times a connection out only between two requests. One that never sends a whole head would
stay for ever, and as many as the server takes would lock everybody out. Here a head has ``head_s``
seconds from its first byte (or from the connection), however its bytes drip; and when there are
more than ``connections``, those that ask nothing are closed, the ones that never did first.
"""

from __future__ import annotations

import asyncio
import sys
from http import HTTPStatus
from typing import ClassVar

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from kdalab.serve.errors import ServeError
from kdalab.serve.guard import answer_parts
from kdalab.serve.limits import Limits

SPARE = 2
"""So many times ``connections`` are read at all, to be answered by the guard."""


def protocol(limits: Limits) -> type[Connection]:
    """The class of a server's connections."""
    return type("LimitedConnection", (Connection,), {"limits": limits})


class Connection(H11Protocol):
    """uvicorn's, with a deadline for the head, room for newcomers, and errors as JSON."""

    limits: ClassVar[Limits] = Limits()
    _deadline: asyncio.TimerHandle | None = None
    _since = 0.0  # when it began to ask nothing
    _has_sent = False

    @property
    def is_asking(self) -> bool:
        """Whether a request of it is being read or answered."""
        return self.cycle is not None and not self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A newcomer."""
        super().connection_made(transport)
        self._wait(self.limits.head_s)
        if len(self.connections) > self.limits.connections:
            self._make_room()

    def data_received(self, data: bytes) -> None:
        """More of a head or a body."""
        self._has_sent = True
        super().data_received(data)
        if self.is_asking:
            self._stop()
        elif self._deadline is None:  # what drips does not begin anew
            self._wait(self.limits.head_s)

    def on_response_complete(self) -> None:
        """Between two requests uvicorn's own, shorter wait begins."""
        self._stop()
        self._since = self.loop.time()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nobody is there any more."""
        self._stop()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """What is no HTTP, or too long a head, in the shape of every other error."""
        problem = sys.exc_info()[1]
        if getattr(problem, "error_status_hint", 400) == 431:
            text = f"the head of a request has at most {self.limits.header_bytes:,} bytes"
            self._refuse(ServeError("headers_too_large", text))
        else:
            text = f"this is no valid HTTP request: {problem or msg}"
            self._refuse(ServeError("invalid_request", text[:300]))

    # -- inside ------------------------------------------------------------------------------

    def _wait(self, seconds: float) -> None:
        self._since = self.loop.time()
        self._deadline = self.loop.call_later(seconds, self._too_slow)

    def _stop(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_slow(self) -> None:
        self._deadline = None
        if self.is_asking:
            return
        if self._has_sent:
            text = f"the head of the request did not arrive within {self.limits.head_s:g} s"
            self._refuse(ServeError("timeout", text))
        else:
            self.transport.close()

    def _make_room(self) -> None:
        """Close one that asks nothing; when all ask something, and far too many, this one."""
        idle = [c for c in self._others() if not c.is_asking]
        if idle:
            first = min(idle, key=lambda c: (not c.transport.is_closing(), c._has_sent, c._since))
            first.transport.abort()
        elif len(self.connections) > SPARE * self.limits.connections:
            text = f"{len(self.connections) - 1} connections are open, and all ask something"
            self._refuse(ServeError("too_many_connections", text))

    def _others(self) -> list[Connection]:
        return [c for c in self.connections if isinstance(c, Connection) and c is not self]

    def _refuse(self, error: ServeError) -> None:
        """Answer without the app, unless it has begun to; then close."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            headers, body = answer_parts(error)
            first = f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}"
            lines = [first, *(f"{k}: {v}" for k, v in headers)]
            self.transport.write("\r\n".join([*lines, "", ""]).encode() + body)
        if self.cycle is not None:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.transport.close()
