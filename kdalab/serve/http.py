"""What the apps share: answers that are streamed with a deadline, and errors in one shape."""

from __future__ import annotations

import asyncio
import sys
import traceback
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from kdalab.errors import InvariantError, KdalabError
from kdalab.serve.errors import ServeError

T = TypeVar("T")

MODEL_HEADER = "x-kdalab-model"
"""Names the model of an answer."""


class GoneError(Exception):
    """The client has closed the connection; nobody reads an answer."""


class Stream(Response):
    """An answer of many parts. A reader that leaves one part unread for ``send_s`` seconds, or
    that goes, ends it; ``close`` is called in every case, once."""

    def __init__(
        self,
        parts: AsyncGenerator[bytes, None],
        close: Callable[[], object],
        media_type: str,
        send_s: float,
        model: str = "",
    ) -> None:
        self.parts, self.close, self.send_s = parts, close, send_s
        self.status_code, self.media_type, self.background = 200, media_type, None
        self.init_headers({"Cache-Control": "no-store", **({MODEL_HEADER: model} if model else {})})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI asks."""
        gone = asyncio.create_task(_until_gone(receive))
        work = asyncio.create_task(self._send(send))
        try:
            await asyncio.wait({gone, work}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (gone, work):
                task.cancel()
            await asyncio.gather(gone, work, return_exceptions=True)
            with suppress(Exception):
                await self.parts.aclose()
            self.close()

    async def _send(self, send: Send) -> None:
        start = {"status": self.status_code, "headers": self.raw_headers}
        await send({"type": "http.response.start", **start})
        async for part in self.parts:
            message = {"type": "http.response.body", "body": part, "more_body": True}
            # Not wait_for: in Python 3.11 it can lose the cancellation of who waits.
            async with asyncio.timeout(self.send_s):
                await send(message)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def while_there(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of ``work``, which is cancelled when the client goes.

    Raises:
        GoneError: it went.
    """
    gone = asyncio.create_task(_until_gone(request.receive))
    task = asyncio.create_task(work)
    try:
        await asyncio.wait({gone, task}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise GoneError
        return task.result()
    finally:
        gone.cancel()
        task.cancel()
        await asyncio.gather(gone, task, return_exceptions=True)


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def new_app(
    title: str, start: Callable[[], object], stop: Callable[[], Coroutine[Any, Any, None]]
) -> FastAPI:
    """An app whose errors are all in one shape.

    Args:
        start, stop: called when it begins and ends to serve.
    """

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        start()
        try:
            yield
        finally:
            await stop()

    app = FastAPI(title=title, lifespan=life, docs_url=None, redoc_url=None, openapi_url=None)

    @app.exception_handler(ServeError)
    async def serve_error(_: Request, error: ServeError) -> Response:
        return error_response(error)

    @app.exception_handler(HTTPException)
    async def http_error(_: Request, error: HTTPException) -> Response:
        code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "internal")
        return error_response(ServeError(code, str(error.detail)))

    @app.exception_handler(GoneError)
    async def gone(_: Request, __: GoneError) -> Response:
        return Response(status_code=499)

    @app.exception_handler(InvariantError)
    async def broken(_: Request, error: InvariantError) -> Response:
        return error_response(ServeError("internal", f"a rule does not hold: {error}"))

    @app.exception_handler(KdalabError)
    async def known(_: Request, error: KdalabError) -> Response:
        return error_response(ServeError("internal", str(error)))

    @app.exception_handler(Exception)
    async def unknown(_: Request, error: Exception) -> Response:
        traceback.print_exception(error, file=sys.stderr)
        return error_response(ServeError("internal", "an error that should not happen"))

    return app


def error_response(error: ServeError) -> Response:
    """The error as an answer."""
    return JSONResponse(error.body(), error.status, error.headers)
