"""Images of requests: checked, hashed, put in their places, and their embeddings fetched once."""

from __future__ import annotations

import asyncio
import base64
import binascii
import itertools
import secrets
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import httpx
import torch

from kdalab.engine.media import Media, Span, media_ids
from kdalab.errors import KdalabError
from kdalab.memory.embeddings import EmbeddingPool
from kdalab.model import HybridModel, encoder_fingerprint, image_digest, n_positions
from kdalab.serve.errors import ServeError
from kdalab.serve.limits import Limits
from kdalab.serve.pieces import Piece, PieceError, read_pieces
from kdalab.serve.remote import Remote, error_of
from kdalab.serve.schema import Encode, ImageIn, PlacedImage
from kdalab.serve.turns import Turns

MARK = "<image>"
"""Where an image stands in a text."""


class Picture(NamedTuple):
    """An image at its place: RGB bytes, row by row, and the hash under which it is known."""

    start: int
    n: int
    height: int
    width: int
    pixels: bytes
    salt: bytes
    digest: bytes

    def placed(self) -> dict[str, Any]:
        """As it travels to prefill."""
        return {"start": self.start, **self.plain()}

    def plain(self) -> dict[str, Any]:
        """As it travels to an encoder."""
        data = base64.b64encode(self.pixels).decode()
        salt = self.salt.hex()
        return {"height": self.height, "width": self.width, "data": data, "salt": salt}


def picture(
    image: ImageIn | PlacedImage | Encode, start: int, salt: bytes, of: str, most: int
) -> Picture:
    """A checked image.

    Raises:
        ServeError: its size or bytes are not allowed.
    """
    try:
        if image.height * image.width > most:
            raise KdalabError(f"{image.height} x {image.width} pixels; at most {most:,} are taken")
        n = n_positions(image.height, image.width)
        pixels = _pixels(image)
        digest = image_digest(pixels, image.height, image.width, of, salt)
    except (KdalabError, ValueError, TypeError, binascii.Error) as error:
        raise ServeError("invalid_request", f"image: {error}"[:500], "images") from None
    return Picture(start, n, image.height, image.width, pixels, salt, digest)


def _pixels(image: ImageIn | PlacedImage | Encode) -> bytes:
    rows = getattr(image, "pixels", None)
    if (image.data is None) == (rows is None):
        raise KdalabError("give either data (base64 of RGB bytes) or pixels (rows of [r, g, b])")
    if image.data is not None:
        return base64.b64decode(image.data, validate=True)
    assert rows is not None
    if len(rows) != image.height or any(len(row) != image.width for row in rows):
        raise KdalabError(f"pixels are not {image.height} rows of {image.width}")
    return bytes(itertools.chain.from_iterable(itertools.chain.from_iterable(rows)))


def place(
    prompt: str | Sequence[int],
    images: Sequence[ImageIn],
    encode: Callable[[str], list[int]],
    model: HybridModel,
    fingerprint: str,
    limits: Limits,
) -> tuple[list[int], tuple[Picture, ...]]:
    """The prompt's ids with every image's in their places.

    In a text an image stands where ``MARK`` does; in a list of ids before the index ``at``. A
    private image gets a salt of its own, so that nobody's prefix is ever like it.

    Raises:
        ServeError: images and places do not match, or an image is not allowed.
    """
    if not images:
        return (encode(prompt) if isinstance(prompt, str) else list(prompt)), ()
    if len(images) > limits.images:
        text = f"{len(images)} images; at most {limits.images} are taken"
        raise ServeError("invalid_request", text, "images")
    if isinstance(prompt, str):
        texts = prompt.split(MARK)
        if len(texts) != len(images) + 1 or any(i.at is not None for i in images):
            text = f"{len(images)} images for {len(texts) - 1} times {MARK!r} in the prompt"
            raise ServeError("invalid_request", text, "images")
        parts = [encode(t) if t else [] for t in texts]
    else:
        at = [i.at if i.at is not None else -1 for i in images]
        if sorted(at) != at or at[0] < 0 or at[-1] > len(prompt):
            text = "each image needs 'at', the index of the id it stands before, in ascending order"
            raise ServeError("invalid_request", text, "images")
        cuts = [0, *at, len(prompt)]
        parts = [list(prompt[a:b]) for a, b in itertools.pairwise(cuts)]
    ids, pictures = list(parts[0]), []
    for image, part in zip(images, parts[1:], strict=True):
        salt = secrets.token_bytes(16) if image.private else b""
        found = picture(image, len(ids), salt, fingerprint, limits.image_pixels)
        pictures.append(found)
        ids += [*media_ids(found.digest, found.n, model.vocab_size), *part]
    return ids, tuple(pictures)


def known(pictures: Sequence[Picture], tensors: Sequence[torch.Tensor | None] = ()) -> Media | None:
    """The images as the engine takes them, with their embeddings or by their hash alone."""
    if not pictures:
        return None
    given = tensors or [None] * len(pictures)
    pairs = zip(pictures, given, strict=True)
    return Media(tuple(Span(p.start, p.n, p.digest, t) for p, t in pairs))


class Images:
    """Where a process has its embeddings from: its own pool, then an encode process.

    Args:
        encoders: addresses of encode processes, asked in turn.
        remote: the way to them; by default HTTP.
    """

    def __init__(
        self,
        model: HybridModel,
        seed: int,
        encoders: Sequence[str],
        limits: Limits,
        token: str = "",
        remote: Remote | None = None,
    ) -> None:
        self.encoders, self.limits = Turns(encoders), limits
        self.shape = model.config.hidden_size, model.dtype
        self.fingerprint = encoder_fingerprint(model.config.hidden_size, seed, model.dtype)
        self.pool = EmbeddingPool(limits.embedding_bytes)
        self.remote = Remote(limits, token) if remote is None else remote

    async def take(self, pictures: Sequence[Picture]) -> list[torch.Tensor]:
        """The embeddings [position, hidden] of all, held until ``give_back``.

        Raises:
            ServeError: no encoder gives one of them. None is held.
        """
        taken: list[torch.Tensor] = []
        try:
            for p in pictures:
                here = self.pool.take(p.digest)
                taken.append(here if here is not None else await self._fetch(p))
        except BaseException:
            self.give_back(pictures[: len(taken)])
            raise
        return taken

    def give_back(self, pictures: Sequence[Picture]) -> None:
        """End the reads that ``take`` began."""
        for p in pictures:
            self.pool.give_back(p.digest)

    async def _fetch(self, p: Picture) -> torch.Tensor:
        reason, now = "no encode process is known (--encode)", asyncio.get_running_loop().time
        until = now() + self.limits.queue_s
        while True:
            busy: ServeError | None = None  # one that is well and has no room now
            for url in self.encoders.order():
                try:
                    found = await self._ask(url, p)
                    self.encoders.worked(url)
                    return self.pool.put(p.digest, found, shared=not p.salt)
                except (KdalabError, httpx.HTTPError, OSError) as error:
                    reason = f"{url}: {type(error).__name__} {error}"[:400]
                    if isinstance(error, ServeError) and error.is_busy:
                        busy = error
                    else:
                        self.encoders.failed(url)
            if busy is None or now() >= until:
                code = busy.code if busy is not None else "transfer_failed"
                raise ServeError(code, f"an image could not be encoded: {reason}")
            await asyncio.sleep(min(busy.wait_s or 1, until - now()))

    async def _ask(self, url: str, p: Picture) -> torch.Tensor:
        asked = {**p.plain(), "encoder": self.fingerprint}
        async with self.remote.stream(f"{url}/v1/encode", asked) as answer:
            if answer.status_code != 200:
                raise await error_of(answer, f"{url} answers {answer.status_code}")
            pieces = read_pieces(answer.aiter_raw(), self.limits.piece_bytes)
            async for piece in pieces:
                return self._judged(piece, p)
        raise PieceError("the connection ended before the embedding had arrived")

    def _judged(self, piece: Piece, p: Picture) -> torch.Tensor:
        """The embedding in a piece, if it is that of this image."""
        meta, expected = piece.meta, (self.fingerprint, p.digest.hex())
        if meta.kind != "embedding" or (meta.identity, meta.image) != expected:
            raise PieceError("an embedding of another image or encoder")
        found = piece.tensors["embeddings"]
        if (tuple(found.shape), found.dtype) != ((p.n, self.shape[0]), self.shape[1]):
            raise PieceError(f"an embedding {list(found.shape)} of {found.dtype}")
        if not bool(found.isfinite().all()):
            raise PieceError("an embedding that is not finite")
        return found.clone()

    def conservation(self) -> dict[str, int]:
        """What is held, and how often it was of use; every rule checked."""
        pool = self.pool
        pool.check()
        counts = {"held": len(pool.held), "bytes": pool.nbytes, "readers": pool.readers}
        return {**counts, "hits": pool.hits, "misses": pool.misses}

    async def close(self) -> None:
        """Close every connection."""
        await self.remote.close()
