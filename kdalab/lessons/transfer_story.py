"""A prompt prefilled here and decoded there: what goes over the wire, what may happen to it."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from kdalab.engine import Faults
from kdalab.lessons.cold import max_difference
from kdalab.lessons.parcels import Parcel, TransferRun
from kdalab.lessons.player import lesson_model, lesson_tokenizer
from kdalab.lessons.transfer_roles import (
    NEW_TOKENS,
    alone,
    encoders,
    noting,
    small_engine,
    warm,
    watched,
)

if TYPE_CHECKING:
    from kdalab.engine.media import Media
    from kdalab.serve.decoding import DecodeRole, Live
    from kdalab.serve.pieces import Piece

IMAGE_SIDE = 64
"""Pixels; an image of 64 x 64 has 16 positions."""

_RULES = (
    "You are the support agent of a train company. Name the train, the platform and the time. "
    "If a connection is missed, offer the next one and say how long the wait is. Never invent a "
    "platform.\n"
)
_ASK = "The night train from Basel was late, and I have a dog and two bicycles. What is next?"


class Story:
    """One run: the roles, the wire, and the notes."""

    def __init__(
        self, way: str, chunk: int, have: int, faults: tuple[str, ...], early: bool
    ) -> None:
        self.way, self.chunk, self.have, self.early = way, chunk, have, early
        self.faults = (*faults, "order") if early and "order" not in faults else faults
        self.parcels: list[Parcel] = []
        self.asked: list[int] = []
        self.chunks: list[tuple[int, int, int]] = []
        self.late: bytes | None = None

    async def run(self) -> TransferRun:
        from kdalab.serve.by_hand import PrefillWire, SteppedWorker
        from kdalab.serve.images import Images, known, place
        from kdalab.serve.limits import Limits
        from kdalab.serve.outgoing import PrefillRole
        from kdalab.serve.schema import ImageIn

        torch.set_num_threads(1)
        model, limits = lesson_model(), Limits()
        self.limits = limits
        images, encoder = encoders(self, model, limits)
        self.near = noting(self)
        self.far = SteppedWorker(small_engine(256, not self.early))
        prefill = PrefillRole(self.near, limits, images)
        wire = PrefillWire(prefill, self.near, self._carry)
        mine = Images(model, 0, ["encode"], limits, remote=images.remote)
        role = watched(self, self.far, limits, mine, wire)
        text: str = _RULES + ("<image>" if self.way == "epd" else "") + _ASK
        given = [ImageIn(height=IMAGE_SIDE, width=IMAGE_SIDE, data=_pixels())]
        tokens, pictures = place(
            text, given if self.way == "epd" else [], lesson_tokenizer().encode, model,
            images.fingerprint, limits,
        )  # fmt: skip
        whole = known(pictures, [encoder.encode(p.pixels, p.height, p.width) for p in pictures])
        warm(self.far.engine, tokens, self.have, self.early, whole)
        self.far.engine.config = replace(
            self.far.engine.config, faults=Faults(start_early=self.early)
        )
        live = await role.begin(tokens, NEW_TOKENS, [], pictures)
        held = live.request.landing.held if live.request.landing is not None else 0
        assert live.fetch is not None
        await live.fetch
        while self.far.turn():
            pass
        image = (pictures[0].start, pictures[0].start + pictures[0].n) if pictures else None
        return self._told(live, tokens, held, image, whole, role)

    # -- the wire ----------------------------------------------------------------------------

    async def _carry(self, frames: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """What arrives of what is sent. The first attempt meets the faults."""
        attempt = len(self.asked)
        mine = self.faults if attempt == 1 else ()
        last: bytes | None = None
        latents = 0
        async for frame in frames:
            kind = self._read(frame).meta.kind
            latents += kind == "latent"
            if "order" in mine and kind == "latent":  # held back: the last one comes too late
                frame, last = last, frame  # type: ignore[assignment]
                self.late = last
                if frame is None:
                    continue
            if "corrupt" in mine and latents == 2:
                bad = bytearray(frame)
                bad[-9] ^= 16
                self.note(frame, attempt, "damaged")
                yield bytes(bad)
            if "cut" in mine and latents == 2:
                self.note(frame, attempt, "cut")
                yield frame[: len(frame) // 2]
                return
            for fate in ("taken", "twice") if "duplicate" in mine and latents == 1 else ("taken",):
                async for data in self._deliver(frame, attempt, fate):
                    yield data
        if last is not None:
            self.late = None
            async for data in self._deliver(last, attempt, "late"):
                yield data

    async def _deliver(self, frame: bytes, attempt: int, fate: str) -> AsyncIterator[bytes]:
        number = self.note(frame, attempt, fate)
        yield frame
        self.landed(number)

    def _read(self, frame: bytes) -> Piece:
        from kdalab.serve.pieces import read_piece

        return read_piece(frame, self.limits.piece_bytes)

    def note(self, frame: bytes, attempt: int, fate: str, why: str = "") -> int:
        """Put a piece on the record; returns its number there."""
        meta, tensors = self._read(frame)
        size = {name: t.nbytes for name, t in tensors.items()}
        self.parcels.append(
            Parcel(
                attempt, meta.seq, meta.kind, meta.start, meta.end, size.get("latent", 0),
                size.get("recurrent", 0), size.get("conv", 0), size.get("embeddings", 0),
                len(frame), len(self.chunks), fate, why,
            )
        )  # fmt: skip
        return len(self.parcels) - 1

    def landed(self, number: int, why: str = "") -> None:
        """The receiver has judged the piece: what is in place now."""
        running = self.far.engine.running
        landing = next((r.landing for r in running if r.landing is not None), None)
        parcel, n = self.parcels[number], self.n_tokens
        front, missing = (landing.front, landing.missing) if landing is not None else (n, 0)
        fate = parcel.fate
        if parcel.kind == "state" and fate == "taken":
            fate = "kept" if landing is not None else "early" if self.early else fate
        self.parcels[number] = replace(
            parcel, fate=fate, front=front, missing=missing, why=why or parcel.why
        )

    @property
    def n_tokens(self) -> int:
        """Tokens of the prompt that is on its way."""
        return next(reversed(self.far.engine.requests.values())).n_tokens

    # -- the end -----------------------------------------------------------------------------

    def _told(
        self,
        live: Live,
        tokens: list[int],
        held: int,
        image: tuple[int, int] | None,
        media: Media | None,
        role: DecodeRole,
    ) -> TransferRun:
        request = live.request
        whole = alone(tuple(tokens), media)
        generated = tuple(request.generated)
        same = 0
        for a, b in zip(generated, whole[0], strict=False):
            if a != b:
                break
            same += 1
        rows = min(same, len(generated) - 1, len(whole[1]) - 1)  # the first came with the state
        mine, true = request.logits[-len(generated) + 1 :][:rows], whole[1][1 : rows + 1]
        off = max((max_difference(a, b) for a, b in zip(mine, true, strict=True)), default=0.0)
        early = 0
        if self.early and self.late is not None:  # nobody reads it any more
            number = self.note(self.late, 1, "unused")
            parcel = self.parcels[number]
            early = parcel.end - parcel.start
            self.parcels[number] = replace(parcel, front=parcel.start, missing=early)
        active = self.far.engine.active
        ended = request.finish_reason
        return TransferRun(
            self.way, len(tokens), held, self.have if held else 0, image, self.chunk,
            tuple(self.parcels), tuple(self.asked), tuple(self.chunks), early,
            str(live.facts.get("fallback", "")), generated, whole[0], off,
            "" if ended == "length" else ended,
            self.far.engine.latents.page_bytes // self.far.engine.config.page_tokens,
            active.slot_bytes,
        )  # fmt: skip


def _pixels() -> str:
    """A slope from dark to light, as base64."""
    side = IMAGE_SIDE
    rows = bytes(
        c for y in range(side) for x in range(side) for c in (4 * x % 256, 4 * y % 256, 128)
    )
    return base64.b64encode(rows).decode()
