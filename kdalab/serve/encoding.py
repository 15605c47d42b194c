"""The encode process: images in, embeddings out. It holds no language model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

import torch
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

from kdalab.memory.embeddings import EmbeddingPool
from kdalab.model import VisionEncoder
from kdalab.serve.errors import ServeError
from kdalab.serve.http import Stream, new_app
from kdalab.serve.images import Picture, picture
from kdalab.serve.limits import Limits
from kdalab.serve.pieces import PieceMeta, write_piece
from kdalab.serve.schema import Encode, parsed


@dataclass(frozen=True)
class EncodeOptions:
    """``hidden`` is that of the language model, ``seed`` that of the encoder's weights."""

    hidden: int = 128
    seed: int = 0
    dtype: torch.dtype = torch.float32
    limits: Limits = field(default_factory=Limits)


def encode_app(options: EncodeOptions) -> FastAPI:
    """POST /v1/encode: an image in, one piece of kind ``embedding`` out; known ones at once."""
    encoder = VisionEncoder(options.hidden, options.seed, options.dtype)
    pool = EmbeddingPool(options.limits.embedding_bytes)
    busy = asyncio.Semaphore(1)
    counts = {"encoded": 0, "open": 0}

    async def stop() -> None:
        return None

    app = new_app("kdalab encode", lambda: None, stop)

    async def embedding(p: Picture) -> torch.Tensor:
        found = pool.take(p.digest)
        if found is None:
            async with busy:
                made = await asyncio.to_thread(encoder.encode, p.pixels, p.height, p.width)
            counts["encoded"] += 1
            found = pool.put(p.digest, made, shared=not p.salt)
        return found

    @app.post("/v1/encode")
    async def encode(request: Request) -> Response:
        asked = parsed(Encode, await request.body())
        if asked.encoder != encoder.fingerprint:
            text = f"this encoder is {encoder.fingerprint[:12]}, not {asked.encoder[:12]}"
            raise ServeError("identity_mismatch", text, "encoder")
        if counts["open"] >= options.limits.requests:
            raise ServeError("too_many_requests", f"{counts['open']} images are being encoded")
        most = options.limits.image_pixels
        p = picture(asked, 0, bytes.fromhex(asked.salt), encoder.fingerprint, most)
        counts["open"] += 1
        try:
            found = await embedding(p)
            frame = embedding_piece(p, found, encoder.fingerprint)
            pool.give_back(p.digest)
        finally:
            counts["open"] -= 1
        return Stream(_one(frame), lambda: None, "application/octet-stream", options.limits.send_s)

    @app.get("/healthz")
    async def health() -> Response:
        return JSONResponse({"status": "ok", "role": "encode"})

    @app.get("/v1/conservation")
    async def conservation() -> Response:
        pool.check()
        held = {"held": len(pool.held), "bytes": pool.nbytes, "readers": pool.readers}
        use = {"hits": pool.hits, "misses": pool.misses}
        body = {"role": "encode", "checked": True, "embeddings": {**held, **use}, **counts}
        return JSONResponse(body)

    return app


def embedding_piece(p: Picture, embeddings: torch.Tensor, encoder: str) -> bytes:
    """The frame that answers: ``embeddings`` [position, hidden] of ``p`` by the encoder of that
    fingerprint."""
    meta = PieceMeta(
        transfer=p.digest.hex(),
        seq=0,
        kind="embedding",
        identity=encoder,
        boundary=p.n,
        image=p.digest.hex(),
    )
    return write_piece(meta, {"embeddings": embeddings})


async def _one(frame: bytes) -> AsyncGenerator[bytes, None]:
    yield frame
