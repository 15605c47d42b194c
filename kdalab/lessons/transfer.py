"""One request whose prefill runs elsewhere: two real engines, the roles of ``kdalab serve``, and a
wire between them on which things can go wrong.

Nothing is drawn from this file: it runs the request, notes every piece on the wire and what the
decode side made of it, and compares the tokens with those of one engine.
"""

from __future__ import annotations

import asyncio
import base64
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch

from kdalab.cache.placement import Every
from kdalab.engine import Engine, EngineConfig, Faults
from kdalab.engine import events as ev
from kdalab.errors import KdalabError
from kdalab.lessons.cold import max_difference
from kdalab.lessons.player import lesson_model, lesson_tokenizer

if TYPE_CHECKING:
    from kdalab.engine.media import Media
    from kdalab.serve.by_hand import SteppedWorker
    from kdalab.serve.decoding import DecodeRole, Live
    from kdalab.serve.pieces import Piece
    from kdalab.spec import StateIdentity
    from kdalab.transfer import MatrixRow
    from kdalab.transfer.worth import KindBytes, WorthLine

TRANSFER_WAYS = ("pd", "epd")
TRANSFER_FAULTS = ("cut", "corrupt", "duplicate", "order", "image")
NEW_TOKENS = 5
IMAGE_SIDE = 64
"""Pixels; an image of 64 x 64 has 16 positions."""

_RULES = (
    "You are the support agent of a train company. Name the train, the platform and the time. "
    "If a connection is missed, offer the next one and say how long the wait is. Never invent a "
    "platform.\n"
)
_ASK = "The night train from Basel was late, and I have a dog and two bicycles. What is next?"
_OTHER = "Rewrite this letter for a child of eight, in five short sentences. " * 6

_PLAYING = threading.Lock()


@dataclass(frozen=True, slots=True)
class Parcel:
    """One piece on the wire.

    ``kind`` is "embedding", "latent" or "state"; ``start`` and ``end`` its tokens. Sizes in bytes:
    of each kind of state in it, and of the frame as it travels. ``tick`` counts prefill steps so
    far. ``fate`` is what became of it: "taken", "twice" (known already, bit for bit the same),
    "kept" (a state before the last latent KV: it waits), "early" (such a state, and decode began),
    "late" (latent KV behind the state), "unused" (nobody waited for it), "damaged", "cut", or
    "other" (of another image).
    ``why`` is the receiver's own message. ``front`` are the tokens that are in place without a gap
    after it, ``missing`` those whose latent KV is not.
    """

    attempt: int
    seq: int
    kind: str
    start: int
    end: int
    latent: int
    recurrent: int
    conv: int
    embedding: int
    frame: int
    tick: int
    fate: str
    why: str = ""
    front: int = 0
    missing: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors in it."""
        return self.latent + self.recurrent + self.conv + self.embedding


@dataclass(frozen=True, slots=True)
class TransferRun:
    """The whole story, as plain data. Lengths in tokens.

    ``held`` tokens of latent KV were on the decode side before, with a state at ``idle_state`` that
    is of no use (0: none). ``image`` is [start, end) of the image, or None. ``asked`` is, for
    each attempt, from which token on latent KV was wanted. ``chunks`` are the (start, end, attempt)
    that prefill computed, step by step. ``early`` are the tokens that were missing when decode
    began. ``difference`` is max |difference| of the logits to those of one engine, up to the first
    other choice; ``refused`` what the request ended with, "" for all of its tokens.
    """

    way: str
    n_tokens: int
    held: int
    idle_state: int
    image: tuple[int, int] | None
    chunk: int
    parcels: tuple[Parcel, ...]
    asked: tuple[int, ...]
    chunks: tuple[tuple[int, int, int], ...]
    early: int
    fell_back: str
    generated: tuple[int, ...]
    alone: tuple[int, ...]
    difference: float
    refused: str
    token_bytes: int
    state_bytes: int

    @property
    def first_wrong(self) -> int | None:
        """Place of the first token in the output that is another than one engine's."""
        pairs = enumerate(zip(self.generated, self.alone, strict=False))
        wrong = next((i for i, (a, b) in pairs if a != b), None)
        short = len(self.generated) if len(self.generated) < len(self.alone) else None
        return short if wrong is None else wrong


@lru_cache(maxsize=16)
def play_transfer(
    way: str = "pd",
    chunk: int = 128,
    have: int = 64,
    faults: tuple[str, ...] = (),
    early: bool = False,
) -> TransferRun:
    """Prefill one prompt here, decode it there.

    Args:
        way: "pd", or "epd": an image in the prompt, and an encoder in front.
        chunk: tokens that prefill computes a step; a multiple of 64.
        have: tokens whose latent KV the decode side has already; a multiple of 64, 0 to 192.
        faults: of ``TRANSFER_FAULTS``; each happens once, on the first attempt.
        early: the fault ``start_early``, with the last latent KV held up behind the state.

    Raises:
        KdalabError: a way, a size or a fault that is not one of these.
    """
    if way not in TRANSFER_WAYS:
        raise KdalabError(f"way {way!r}; use one of {', '.join(TRANSFER_WAYS)}")
    if chunk % 64 or not 64 <= chunk <= 256 or have % 64 or not 0 <= have <= 192:
        raise KdalabError(
            f"chunk = {chunk}, have = {have}; both are multiples of 64: 64 to 256, and 0 to 192"
        )
    unknown = [f for f in faults if f not in TRANSFER_FAULTS]
    if unknown:
        raise KdalabError(f"fault {unknown[0]!r}; use some of {', '.join(TRANSFER_FAULTS)}")
    with _PLAYING, ThreadPoolExecutor(1) as thread:  # a notebook's own loop is running in this one
        threads = torch.get_num_threads()
        try:
            story = _Story(way, chunk, have, faults, early)
            return thread.submit(lambda: asyncio.run(story.run())).result()
        finally:
            torch.set_num_threads(threads)


class _Story:
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
        images, encoder = _encoders(self, model, limits)
        self.near = _noting(self)
        self.far = SteppedWorker(_engine(256, not self.early))
        prefill = PrefillRole(self.near, limits, images)
        wire = PrefillWire(prefill, self.near, self._carry)
        mine = Images(model, 0, ["encode"], limits, remote=images.remote)
        role = _watched(self, self.far, limits, mine, wire)
        text: str = _RULES + ("<image>" if self.way == "epd" else "") + _ASK
        given = [ImageIn(height=IMAGE_SIDE, width=IMAGE_SIDE, data=_pixels())]
        tokens, pictures = place(
            text, given if self.way == "epd" else [], lesson_tokenizer().encode, model,
            images.fingerprint, limits,
        )  # fmt: skip
        _warm(self.far.engine, tokens, self.have, self.early)
        self.far.engine.config = replace(
            self.far.engine.config, faults=Faults(start_early=self.early)
        )
        live = await role.begin(tokens, NEW_TOKENS, [], pictures)
        held = live.request.landing.held if live.request.landing is not None else 0
        assert live.fetch is not None
        await live.fetch
        while self.far.turn():
            pass
        whole = [encoder.encode(p.pixels, p.height, p.width) for p in pictures]
        image = (pictures[0].start, pictures[0].start + pictures[0].n) if pictures else None
        return self._told(live, tokens, held, image, known(pictures, whole), role)

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
        whole = _alone(tuple(tokens), media)
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


def _noting(story: _Story) -> SteppedWorker:
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

    return Noting(_engine(story.chunk))


def _watched(story: _Story, worker: Any, limits: Any, images: Any, wire: Any) -> DecodeRole:
    from kdalab.serve.decoding import DecodeRole, _front

    class Watched(DecodeRole):
        """The decode role; what an attempt asked for and how it failed is noted."""

        async def _attempt(self, live: Live, url: str) -> None:
            story.asked.append(_front(live.request))
            try:
                await super()._attempt(live, url)
            except Exception as error:
                story.landed(len(story.parcels) - 1, str(error))
                raise
            story.landed(len(story.parcels) - 1)  # nothing is read after the last piece

    return Watched(worker, limits, images, ["prefill"], remote=wire)


def _encoders(story: _Story, model: Any, limits: Any) -> tuple[Any, Any]:
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


def _engine(chunk: int, poison: bool = True) -> Engine:
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


def _warm(engine: Engine, tokens: list[int], have: int, dirty: bool) -> None:
    """The decode side has served the first ``have`` tokens before. ``dirty``: its free pages hold
    what another prompt left there, as memory does that nobody poisons."""
    if dirty:
        engine.submit(list(_OTHER.encode())[: 16 * (engine.config.n_pages - 1)], 1, "other")
        engine.run()
        from kdalab.cache import Bytes

        engine.give_back(engine.cache.evict(Bytes(kv=2**40, state=2**40)), "", "a new day")
    if have:
        engine.submit(tokens[:have], 1, "before")
        engine.run()


_ALONE: dict[tuple[int, ...], tuple[tuple[int, ...], tuple[torch.Tensor, ...]]] = {}


def _alone(
    tokens: tuple[int, ...], media: Media | None
) -> tuple[tuple[int, ...], tuple[torch.Tensor, ...]]:
    """(tokens, logits that chose them) of one engine that does both; an image is in the ids."""
    if tokens not in _ALONE:
        engine = _engine(256)
        request = engine.submit(tokens, NEW_TOKENS, "A", media=media)
        engine.run()
        _ALONE[tokens] = tuple(request.generated), tuple(request.logits[-NEW_TOKENS:])
    return _ALONE[tokens]


def _pixels() -> str:
    """A slope from dark to light, as base64."""
    side = IMAGE_SIDE
    rows = bytes(
        c for y in range(side) for x in range(side) for c in (4 * x % 256, 4 * y % 256, 128)
    )
    return base64.b64encode(rows).decode()


@lru_cache(maxsize=1)
def refused_offers() -> tuple[MatrixRow, ...]:
    """Every way in which a state can be the wrong one, judged here and now by the real checks."""
    from kdalab.transfer import refusal_matrix

    return tuple(refusal_matrix())


WORTH_MODELS = ("kimi-linear-48b", "kimi-k3")


@lru_cache(maxsize=8)
def worth_lines(rate: float) -> tuple[WorthLine, ...]:
    """Break-even of ``WORTH_MODELS`` over the bandwidth, at a prefill of ``rate`` tokens a second.

    Raises:
        KdalabError: a rate that is not above 0.
    """
    from kdalab.spec import resolve_model
    from kdalab.transfer.worth import BANDWIDTHS, worth_line

    return tuple(worth_line(resolve_model(name), rate, BANDWIDTHS) for name in WORTH_MODELS)


def real_bytes(tokens: int) -> tuple[KindBytes, ...]:
    """What the same request would move on real models, by kind."""
    from kdalab.spec import resolve_model
    from kdalab.transfer.worth import bytes_by_kind

    specs = [resolve_model(name) for name in WORTH_MODELS]
    return tuple(bytes_by_kind(spec, (tokens,))[0] for spec in specs)
