"""Calls to other processes of this kind: with a deadline each, and no proxy in between."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from kdalab.serve.errors import ServeError
from kdalab.serve.limits import Limits

MAX_ANSWER = 1 << 20
"""Bytes of an answer that is no stream."""


class Remote:
    """An HTTP client. The settings of the environment (proxies) are not for these calls."""

    def __init__(self, limits: Limits, token: str = "") -> None:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        waits = httpx.Timeout(limits.piece_s, connect=limits.connect_s)
        self.client = httpx.AsyncClient(
            headers=headers,
            timeout=waits,
            trust_env=False,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=16),
        )

    @asynccontextmanager
    async def stream(self, url: str, body: dict[str, Any]) -> AsyncIterator[httpx.Response]:
        """POST, and an answer that is read as it comes."""
        async with self.client.stream("POST", url, json=body) as answer:
            yield answer

    async def get(self, url: str) -> Any:
        """The JSON of a GET.

        Raises:
            ServeError: what the other side reports, or that it cannot be reached.
        """
        try:
            async with self.client.stream("GET", url) as answer:
                if answer.status_code != 200:
                    raise await error_of(answer, f"{url} answers {answer.status_code}")
                return json.loads(await bounded(answer))
        except (httpx.HTTPError, OSError, ValueError) as error:
            if isinstance(error, ServeError):
                raise
            raise ServeError("unavailable", f"{url}: {type(error).__name__} {error}") from None

    async def close(self) -> None:
        """Close every connection."""
        await self.client.aclose()


async def bounded(answer: httpx.Response) -> bytes:
    """The whole body, if it is small."""
    data = bytearray()
    async for part in answer.aiter_raw():
        data += part
        if len(data) > MAX_ANSWER:
            raise ServeError("unavailable", f"an answer of more than {MAX_ANSWER:,} bytes")
    return bytes(data)


async def error_of(answer: httpx.Response, otherwise: str) -> ServeError:
    """The error that an answer of another status reports, with its Retry-After."""
    try:
        error = ServeError.of_body(json.loads(await bounded(answer)), otherwise)
    except (ValueError, httpx.HTTPError):
        error = ServeError("unavailable", otherwise)
    said = answer.headers.get("retry-after", "")
    if error.wait_s is not None and said.isdecimal() and len(said) < 6:
        error.wait_s = int(said)
    return error
