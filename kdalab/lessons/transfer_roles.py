"""The engines and roles of a transfer lesson: those of ``kdalab serve``, with notes taken."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch

from kdalab.cache.placement import Every
from kdalab.engine import Engine, EngineConfig
from kdalab.engine import events as ev
from kdalab.errors import KdalabError
from kdalab.lessons.player import lesson_model, lesson_tokenizer

if TYPE_CHECKING:
    from kdalab.engine.media import Media
    from kdalab.lessons.transfer_story import Story
    from kdalab.serve.by_hand import SteppedWorker
    from kdalab.serve.decoding import DecodeRole, Live
    from kdalab.spec import StateIdentity

NEW_TOKENS = 5

_OTHER = "Rewrite this letter for a child of eight, in five short sentences. " * 6


def noting(story: Story) -> SteppedWorker:
    """The prefill engine; which tokens each step computes is noted."""
    from kdalab.serve.by_hand import SteppedWorker

    class Noting(SteppedWorker):
        """As it is, with notes."""

        def turn(self) -> bool:
            first = len(self.engine.events)
            did = super().turn()
            new = self.engine.events[first:]
            done = [e for e in new if isinstance(e, ev.Computed | ev.Replayed)]
            if done:
                start, end = min(e.start for e in done), max(e.end for e in done)
                story.chunks.append((start, end, len(story.asked)))
            return did

    return Noting(small_engine(story.chunk))


def watched(story: Story, worker: Any, limits: Any, images: Any, wire: Any) -> DecodeRole:
    """The decode role; what an attempt asked for and how it failed is noted."""
    from kdalab.serve.decoding import DecodeRole, _front

    class Watched(DecodeRole):
        """As it is, with notes."""

        async def _attempt(self, live: Live, url: str) -> None:
            story.asked.append(_front(live.request))
            try:
                await super()._attempt(live, url)
            except Exception as error:
                story.landed(len(story.parcels) - 1, str(error))
                raise
            story.landed(len(story.parcels) - 1)  # nothing is read after the last piece

    return Watched(worker, limits, images, ["prefill"], remote=wire)


def encoders(story: Story, model: Any, limits: Any) -> tuple[Any, Any]:
    """Where prefill has its embeddings from; with the fault the first encoder sends another's."""
    from kdalab.model import VisionEncoder
    from kdalab.serve.by_hand import EncodeWire
    from kdalab.serve.images import Images
    from kdalab.serve.pieces import read_piece, write_piece

    encoder = VisionEncoder(model.config.hidden_size, 0, model.dtype)

    def carry(url: str, frame: bytes) -> bytes:
        piece = read_piece(frame, limits.piece_bytes)
        other = "image" in story.faults and url.startswith("encode-1/")
        story.note(frame, 1, "other" if other else "taken")
        if not other:
            return frame
        meta = piece.meta.model_copy(update={"image": piece.meta.image[::-1]})  # type: ignore[index]
        return write_piece(meta, piece.tensors)

    class Asking(Images):
        """As they are; why an embedding was not taken is noted."""

        async def _ask(self, url: str, p: Any) -> torch.Tensor:
            try:
                return await super()._ask(url, p)
            except KdalabError as error:
                story.parcels[-1] = replace(story.parcels[-1], why=str(error))
                raise

    wire = EncodeWire(encoder, limits, carry)
    urls = ["encode-1", "encode-2"]
    return Asking(model, 0, urls, limits, remote=wire), encoder


def small_engine(chunk: int, poison: bool = True) -> Engine:
    """An engine that prefills ``chunk`` tokens a step; all engines of the lesson are this one."""
    config = EngineConfig(
        page_tokens=16, n_pages=32, n_active=2, n_checkpoints=6, chunk_tokens=chunk,
        placement=Every(64), keep_logits=True, check_every_step=poison, poison=poison,
    )  # fmt: skip
    return Engine(lesson_model(), config, _identity())


@lru_cache(maxsize=1)
def _identity() -> StateIdentity:
    from kdalab.transfer import identity_of

    return identity_of(
        lesson_model(), name="tiny", model_version="seed-0",
        tokenizer=lesson_tokenizer().fingerprint,
    )  # fmt: skip


def warm(
    engine: Engine, tokens: list[int], have: int, dirty: bool, media: Media | None = None
) -> None:
    """The decode side has served the first ``have`` tokens before, with what lies there of the
    images in ``media``. ``dirty``: its free pages hold what another prompt left there, as memory
    does that nobody poisons."""
    if dirty:
        engine.submit(list(_OTHER.encode())[: 16 * (engine.config.n_pages - 1)], 1, "other")
        engine.run()
        from kdalab.cache import Bytes

        engine.give_back(engine.cache.evict(Bytes(kv=2**40, state=2**40)), "", "a new day")
    if have:
        engine.submit(tokens[:have], 1, "before", media=_within(media, have))
        engine.run()


def _within(media: Media | None, n: int) -> Media | None:
    """The images of the first ``n`` positions. One that ends behind them is cut: an id and a row
    of embeddings belong to one position each."""
    from kdalab.engine.media import Media, Span

    cut: list[Span] = []
    for span in media.spans if media is not None else ():
        if span.start < n:
            k, x = min(span.n, n - span.start), span.embeddings
            cut.append(replace(span, n=k, embeddings=x[:k] if x is not None else None))
    return Media(tuple(cut)) if cut else None


_ALONE: dict[tuple[int, ...], tuple[tuple[int, ...], tuple[torch.Tensor, ...]]] = {}


def alone(
    tokens: tuple[int, ...], media: Media | None
) -> tuple[tuple[int, ...], tuple[torch.Tensor, ...]]:
    """(tokens, logits that chose them) of one engine that does both; an image is in the ids."""
    if tokens not in _ALONE:
        engine = small_engine(256)
        request = engine.submit(tokens, NEW_TOKENS, "A", media=media)
        engine.run()
        _ALONE[tokens] = tuple(request.generated), tuple(request.logits[-NEW_TOKENS:])
    return _ALONE[tokens]
