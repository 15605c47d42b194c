"""The process in front: OpenAI's completions, over decode processes. It holds no model."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import httpx
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

from kdalab.serve.errors import BUSY, ServeError
from kdalab.serve.http import MODEL_HEADER, Stream, new_app, while_there
from kdalab.serve.limits import Limits
from kdalab.serve.remote import Remote, error_of
from kdalab.serve.schema import Completion, parsed
from kdalab.serve.turns import Turns

MAX_LINE = 1 << 16
TRY_NEXT = (*BUSY, "unavailable", "not_found")
"""Errors of a decode process after which another one is asked."""


@dataclass(eq=False)
class Answer:
    """An open answer of a decode process: its events, the first of which has been seen."""

    first: dict[str, Any]
    rest: AsyncIterator[dict[str, Any]]
    stack: AsyncExitStack
    model: str = ""

    def let_go(self) -> None:
        """Close the connection, read or not; harmless if repeated."""
        self._closing = asyncio.ensure_future(self.stack.aclose())

    async def events(self) -> AsyncIterator[dict[str, Any]]:
        """All events, up to the last."""
        yield self.first
        if "token" in self.first:
            async for event in self.rest:
                yield event
                if "token" not in event:
                    return
            text = "the decode process ended before the answer did"
            yield ServeError("transfer_failed", text).body()


class Router:
    """Sends each request to a decode process, the next one if that cannot take it."""

    def __init__(self, decodes: list[str], others: list[str], limits: Limits, token: str) -> None:
        self.decodes, self.others, self.limits = Turns(decodes), others, limits
        self.remote = Remote(limits, token)

    async def ask(self, asked: Completion) -> Answer:
        """An answer that has begun: errors up to its first event are errors of the request.

        Raises:
            ServeError: no decode process takes it.
        """
        body = {
            "model": asked.model,
            "prompt": asked.prompt,
            "max_tokens": asked.max_tokens,
            "images": [i.model_dump() for i in asked.images],
            "stop": asked.stops,
            "stop_token_ids": asked.stop_token_ids,
        }
        errors = [ServeError("unavailable", "no decode process is known")]
        for url in self.decodes.order():
            try:
                answer = await self._open(f"{url}/v1/generate", body)
                self.decodes.worked(url)
                return answer
            except ServeError as found:
                if found.code not in TRY_NEXT:
                    raise
                errors.append(found)
            except (httpx.HTTPError, OSError) as found:
                self.decodes.failed(url)
                text = f"{url}: {type(found).__name__} {found}"[:500]
                errors.append(ServeError("unavailable", text))
        # One that is away for now is more to the point than one with another model.
        raise max(reversed(errors[1:] or errors), key=lambda e: e.code != "not_found")

    async def models(self) -> list[str]:
        """The models of all decode processes that answer, each once.

        Raises:
            ServeError: none answers.
        """
        names: dict[str, None] = {}
        error = ServeError("unavailable", "no decode process is known")
        for url in self.decodes.urls:
            try:
                names[str((await self.remote.get(f"{url}/v1/identity"))["model"])] = None
            except ServeError as found:
                error = found
        if not names:
            raise error
        return list(names)

    async def _open(self, url: str, body: dict[str, Any]) -> Answer:
        stack = AsyncExitStack()
        try:
            answer = await stack.enter_async_context(self.remote.stream(url, body))
            if answer.status_code != 200:
                raise await error_of(answer, f"{url} answers {answer.status_code}")
            events = _events(answer)
            first = await anext(events, None)
            if first is None:
                raise ServeError("unavailable", f"{url} ended without an answer")
            if "error" in first:
                raise ServeError.of_body(first, "the decode process failed")
            return Answer(first, events, stack, answer.headers.get(MODEL_HEADER, ""))
        except BaseException:
            await stack.aclose()
            raise


def router_app(
    decodes: list[str], others: list[str], limits: Limits | None = None, token: str = ""
) -> FastAPI:
    """POST /v1/completions, GET /v1/models, /v1/conservation, /healthz.

    Args:
        decodes: addresses of decode processes.
        others: addresses of processes that only ``/v1/conservation`` asks.
    """
    limits = limits or Limits()
    router = Router(decodes, others, limits, token)
    app = new_app("kdalab router", lambda: None, router.remote.close)

    @app.post("/v1/completions")
    async def completions(request: Request) -> Response:
        asked = parsed(Completion, await request.body())
        made = f"cmpl-{secrets.token_hex(12)}", int(time.time())
        if not asked.stream:
            return JSONResponse(await while_there(request, _whole(router, asked, *made)))
        answer = await while_there(request, router.ask(asked))
        parts = _sse(answer, *made)
        return Stream(parts, answer.let_go, "text/event-stream", limits.send_s)

    @app.get("/v1/models")
    async def models() -> Response:
        plain = {"object": "model", "created": 0, "owned_by": "kdalab"}
        cards = [{"id": name, **plain} for name in await router.models()]
        return JSONResponse({"object": "list", "data": cards})

    @app.get("/v1/conservation")
    async def conservation() -> Response:
        found = {}
        for url in [*decodes, *others]:
            try:
                found[url] = await router.remote.get(f"{url}/v1/conservation")
            except ServeError as error:
                found[url] = error.body()
        return JSONResponse(found)

    @app.get("/healthz")
    async def health() -> Response:
        return JSONResponse({"status": "ok", "role": "router"})

    return app


async def _events(answer: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    pending = b""
    async for data in answer.aiter_raw():
        pending += data
        *lines, pending = pending.split(b"\n")
        for line in lines:
            yield json.loads(line)
        if len(pending) > MAX_LINE:
            raise ServeError("unavailable", "the decode process writes a line without end")


async def _whole(router: Router, asked: Completion, name: str, now: int) -> dict[str, Any]:
    answer = await router.ask(asked)
    try:
        ids: list[int] = []
        text, last = "", {}
        async for event in answer.events():
            if "error" in event:
                raise ServeError.of_body(event, "the decode process failed")
            ids += [event["token"]] if "token" in event else []
            text += event.get("text", "")
            last = event
        body = _body(answer, name, now, text, ids, last.get("finish"))
        return {**body, "usage": _usage(last, len(ids)), "kdalab": _facts(last)}
    except (httpx.HTTPError, OSError) as error:
        text = f"the decode process ended before the answer did ({type(error).__name__})"
        raise ServeError("transfer_failed", text) from None
    finally:
        await answer.stack.aclose()


async def _sse(answer: Answer, name: str, now: int) -> AsyncGenerator[bytes, None]:
    n = 0
    try:
        async for event in answer.events():
            if "error" in event:
                yield _data(event)
                break
            ids = [event["token"]] if "token" in event else []
            n += len(ids)
            body = _body(answer, name, now, event.get("text", ""), ids, event.get("finish"))
            if "finish" in event:
                body |= {"usage": _usage(event, n), "kdalab": _facts(event)}
            yield _data(body)
        yield b"data: [DONE]\n\n"
    except (httpx.HTTPError, OSError) as error:
        text = f"the decode process ended before the answer did ({type(error).__name__})"
        yield _data(ServeError("transfer_failed", text).body())
        yield b"data: [DONE]\n\n"
    finally:
        await answer.stack.aclose()


def _body(
    answer: Answer, name: str, now: int, text: str, ids: list[int], finish: str | None
) -> dict[str, Any]:
    choice = {"index": 0, "text": text, "token_ids": ids, "logprobs": None, "finish_reason": finish}
    plain = {"id": name, "object": "text_completion", "created": now}
    return {**plain, "model": answer.model, "choices": [choice]}


def _usage(last: dict[str, Any], n: int) -> dict[str, int]:
    prompt = last.get("prompt_tokens", 0)
    return {"prompt_tokens": prompt, "completion_tokens": n, "total_tokens": prompt + n}


def _facts(last: dict[str, Any]) -> dict[str, Any]:
    """How the state came: tokens that were here, bytes that travelled, why it fell back."""
    return {k: last[k] for k in ("held", "received_bytes", "retries", "fallback") if k in last}


def _data(body: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(body).encode() + b"\n\n"
