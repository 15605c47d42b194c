"""What every request passes before anything looks into it: who asks, how much, how fast."""

from __future__ import annotations

import asyncio
import hmac
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kdalab.serve.errors import ServeError
from kdalab.serve.limits import Limits

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK = ("127.0.0.1", "localhost", "::1")
"""Hosts that nobody else can reach."""


class Guard:
    """ASGI middleware: connections, headers, host, token, type and size of the body, its time.

    A body is read here as a whole (it is small) before the app sees the request.

    Args:
        token: what ``Authorization: Bearer`` must say; "" asks for none.
        hosts: values of ``Host`` that are answered, without the port; None: any. Without a token
            a web page could otherwise reach a server on this machine under a name of its own.
    """

    def __init__(
        self, app: ASGIApp, limits: Limits, token: str = "", hosts: Sequence[str] | None = None
    ) -> None:
        self.app, self.limits, self.hosts = app, limits, hosts
        self.token = token.encode()
        self.open = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI asks."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            return
        self.open += 1
        try:
            try:
                self._check(scope)
                body = await self._body(scope, receive)
            except ServeError as error:
                await refuse(send, error)
                return
            if body is not None:
                # The server leaves the body of an answer to HEAD out by itself.
                asked = {**scope, "method": "GET"} if scope["method"] == "HEAD" else scope
                await self.app(asked, _Replay(body, receive), send)
        finally:
            self.open -= 1

    def _check(self, scope: Scope) -> None:
        limits, headers = self.limits, scope["headers"]
        if self.open > limits.connections:
            text = f"{limits.connections} requests are open, the most that this process takes"
            raise ServeError("too_many_connections", text)
        size = sum(len(k) + len(v) for k, v in headers) + len(scope.get("raw_path") or b"")
        size += len(scope["query_string"])
        if len(headers) > limits.header_count or size > limits.header_bytes:
            text = f"at most {limits.header_count} headers of {limits.header_bytes:,} bytes in all"
            raise ServeError("headers_too_large", text)
        found = {bytes(k).lower(): bytes(v) for k, v in headers}
        if self.hosts is not None:
            host = found.get(b"host", b"").decode("latin-1")
            name = host[: host.index("]") + 1] if host.startswith("[") else host.split(":")[0]
            if name.strip("[]").lower() not in self.hosts:
                raise ServeError("wrong_host", f"this server answers as {', '.join(self.hosts)}")
        if self.token and scope["path"] != "/healthz":
            kind, _, given = found.get(b"authorization", b"").partition(b" ")
            if kind.lower() != b"bearer" or not hmac.compare_digest(given.strip(), self.token):
                raise ServeError("unauthorized", "send 'Authorization: Bearer TOKEN'")
        if scope["method"] == "POST":
            if found.get(b"content-type", b"").split(b";")[0].strip().lower() != (
                b"application/json"
            ):
                raise ServeError("unsupported_media_type", "send Content-Type: application/json")
            length = found.get(b"content-length")
            if length is not None and not length.isdigit():
                raise ServeError("invalid_request", "Content-Length is no number")
            if length is not None and (len(length) > 15 or int(length) > limits.body_bytes):
                raise ServeError("too_large", f"a body has at most {limits.body_bytes:,} bytes")

    async def _body(self, scope: Scope, receive: Receive) -> bytes | None:
        """The whole body; None when the client has gone."""
        if scope["method"] != "POST":
            return b""
        data, more = bytearray(), True
        try:
            async with asyncio.timeout(self.limits.body_s):
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return None
                    data += message.get("body", b"")
                    more = message.get("more_body", False)
                    if len(data) > self.limits.body_bytes:
                        text = f"a body has at most {self.limits.body_bytes:,} bytes"
                        raise ServeError("too_large", text)
        except TimeoutError:
            text = f"the body did not arrive within {self.limits.body_s:g} s"
            raise ServeError("timeout", text) from None
        return bytes(data)


class _Replay:
    """Gives a body that was read already, then whatever comes (a disconnect)."""

    def __init__(self, body: bytes, receive: Receive) -> None:
        self.body: bytes | None = body
        self.receive = receive

    async def __call__(self) -> Message:
        if self.body is not None:
            body, self.body = self.body, None
            return {"type": "http.request", "body": body, "more_body": False}
        return await self.receive()


async def refuse(send: Send, error: ServeError) -> None:
    """Answer with an error and have the connection closed: its body may be unread."""
    headers, body = answer_parts(error)
    pairs = [(k.lower().encode(), v.encode()) for k, v in headers]
    await send({"type": "http.response.start", "status": error.status, "headers": pairs})
    await send({"type": "http.response.body", "body": body})


def answer_parts(error: ServeError) -> tuple[list[tuple[str, str]], bytes]:
    """Headers and body of an answer after which the connection is closed."""
    body = json.dumps(error.body()).encode()
    headers = {
        "Content-Type": "application/json",
        "Content-Length": str(len(body)),
        "Connection": "close",
        **error.headers,
    }
    return list(headers.items()), body
