"""The apps of the processes that hold a model: prefill and decode."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

from kdalab.engine import Engine, EngineConfig
from kdalab.errors import KdalabError
from kdalab.serve.decoding import DecodeRole, Live
from kdalab.serve.errors import ServeError
from kdalab.serve.http import Stream, new_app, while_there
from kdalab.serve.images import Images, Picture, place
from kdalab.serve.limits import Limits
from kdalab.serve.loading import Loaded, load
from kdalab.serve.outgoing import PrefillRole
from kdalab.serve.schema import Generate, Prefill, check_sizes, parsed
from kdalab.serve.text import Text
from kdalab.serve.worker import EngineWorker


@dataclass(frozen=True)
class ModelOptions:
    """What a process with an engine is made of; sizes as in ``EngineConfig``."""

    model: str = "tiny"
    seed: int = 0
    dtype: str = "fp32"
    n_pages: int = 1024
    n_active: int = 8
    n_checkpoints: int = 64
    chunk_tokens: int = 256
    limits: Limits = field(default_factory=Limits)
    token: str = ""
    slow_s: float = 0.0  # seconds between steps: to see a transfer happen
    over_schedule: int = 0  # steps that a prefilled request runs too long
    encoders: tuple[str, ...] = ()  # addresses of encode processes
    vision_seed: int = 0

    def images(self, loaded: Loaded) -> Images:
        """Where this process has embeddings from."""
        return Images(loaded.model, self.vision_seed, self.encoders, self.limits, self.token)

    def worker(self) -> tuple[Loaded, EngineWorker]:
        """The model, and its engine in a thread that has not been started."""
        loaded = load(self.model, self.seed, self.dtype)
        config = EngineConfig(
            n_pages=self.n_pages,
            n_active=self.n_active,
            n_checkpoints=self.n_checkpoints,
            chunk_tokens=self.chunk_tokens,
        )
        worker = EngineWorker(Engine(loaded.model, config, loaded.identity))
        worker.slow_s = self.slow_s
        return loaded, worker


def prefill_app(options: ModelOptions) -> FastAPI:
    """POST /v1/prefill: a prompt in, its state out, piece by piece."""
    loaded, worker = options.worker()
    images = options.images(loaded)
    role = PrefillRole(worker, options.limits, images, options.over_schedule)

    async def stop() -> None:
        await images.close()
        worker.close()

    app = new_app("kdalab prefill", worker.start, stop)

    @app.post("/v1/prefill")
    async def prefill(request: Request) -> Response:
        asked = parsed(Prefill, await request.body())
        out = await role.begin(asked)
        end = lambda: role.end(out)  # noqa: E731
        frames = role.frames(out)
        return Stream(frames, end, "application/octet-stream", options.limits.send_s)

    _common(app, "prefill", loaded, worker, role)
    return app


def decode_app(options: ModelOptions, prefills: list[str], fallback: bool = True) -> FastAPI:
    """POST /v1/generate: a prompt in, tokens out, one JSON a line."""
    loaded, worker = options.worker()
    images = options.images(loaded)
    role = DecodeRole(worker, options.limits, images, prefills, options.token, fallback)

    async def stop() -> None:
        await images.close()
        await role.close()
        worker.close()

    app = new_app("kdalab decode", worker.start, stop)

    @app.post("/v1/generate")
    async def generate(request: Request) -> Response:
        asked = parsed(Generate, await request.body())
        if asked.model not in (None, loaded.name):
            text = f"no model {str(asked.model)[:80]!r}; this process has {loaded.name!r}"
            raise ServeError("not_found", text, "model")
        try:
            tokens, pictures = place(
                asked.prompt,
                asked.images,
                loaded.encode,
                loaded.model,
                images.fingerprint,
                options.limits,
            )
        except ServeError:
            raise
        except KdalabError as error:
            raise ServeError("invalid_request", str(error), "prompt") from None
        if asked.stop and loaded.tokenizer is None:
            text = "without a tokenizer there is no text to stop at: give stop_token_ids"
            raise ServeError("invalid_request", text, "stop")
        check_sizes(len(tokens), asked.max_tokens, options.limits)
        live = await while_there(request, _begun(role, tokens, pictures, asked))
        lines = _lines(role, live, Text(loaded.decode, asked.stop, asked.stop_token_ids))
        end = lambda: role.end(live)  # noqa: E731
        kind = "application/x-ndjson"
        return Stream(lines, end, kind, options.limits.send_s, loaded.name)

    _common(app, "decode", loaded, worker, role)
    return app


async def _begun(
    role: DecodeRole, tokens: list[int], pictures: tuple[Picture, ...], asked: Generate
) -> Live:
    return await role.begin(tokens, asked.max_tokens, asked.stop_token_ids, pictures)


async def _lines(role: DecodeRole, live: Live, text: Text) -> AsyncGenerator[bytes, None]:
    """Each event as a line of JSON, with the text that has become certain.

    A stop string ends the answer; the request itself is ended by whoever closes the stream.
    """
    async for item in role.tokens(live):
        if "token" in item:
            item = {**item, "text": text.push(item["token"])}
        elif "finish" in item:
            item = {**item, "text": text.end()}
            if text.has_stopped:
                item["finish"] = "stop"
        yield json.dumps(item).encode() + b"\n"
        if text.has_stopped and "token" in item:
            yield json.dumps({**role.stopped(live), "text": ""}).encode() + b"\n"
            return


def _common(
    app: FastAPI,
    what: str,
    loaded: Loaded,
    worker: EngineWorker,
    role: PrefillRole | DecodeRole,
) -> None:
    @app.get("/healthz")
    async def health() -> Response:
        if worker.failure:
            raise ServeError("unavailable", worker.failure)
        return JSONResponse({"status": "ok", "role": what})

    @app.get("/v1/identity")
    async def identity() -> Response:
        plain = loaded.identity.to_dict()
        return JSONResponse({"model": loaded.name, "role": what, "identity": plain})

    @app.get("/v1/conservation")
    async def conservation() -> Response:
        embeddings = role.images.conservation()
        found = await worker.call(role.conservation)
        return JSONResponse({"role": what, **found, "embeddings": embeddings})
