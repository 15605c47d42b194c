"""The prefill side: computes prompts, and hands out their state piece by piece.

Each step's latent KV is copied out at once, so the pages go back as soon as the prompt is done,
whatever the reader does. The state is copied once, at the prompt's very end, between two steps:
no step, not even one that was scheduled too much, can change what is sent.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Literal

from kdalab.engine import CELL, Engine, Phase, Request
from kdalab.engine.media import Media
from kdalab.errors import KdalabError
from kdalab.serve.errors import ServeError
from kdalab.serve.images import Images, Picture, known, picture
from kdalab.serve.limits import Limits
from kdalab.serve.pieces import PieceMeta, write_piece
from kdalab.serve.schema import Prefill
from kdalab.serve.worker import EngineWorker
from kdalab.spec import StateIdentity
from kdalab.transfer.metadata import PrefixMeta
from kdalab.transfer.prefix import PrefixHash
from kdalab.transfer.refusal import identity_refusals


@dataclass(eq=False)
class Outgoing:
    """One prompt on its way out. Fields change on the engine's thread only."""

    transfer: str
    request: Request
    sent: int  # tokens of latent KV that were copied out, or need not be
    loop: asyncio.AbstractEventLoop
    seq: int = 0
    ready: deque[bytes] = field(default_factory=deque)
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    done: bool = False
    nbytes: int = 0
    pictures: tuple[Picture, ...] = ()
    beat_s: float = 5.0

    def push(self, frame: bytes, last: bool = False) -> None:
        """A frame more for the reader, who is woken when all of this is so."""
        self.ready.append(frame)
        self.done = last
        self.nbytes += len(frame)
        self.seq += 1
        self.loop.call_soon_threadsafe(self.wake.set)


class PrefillRole:
    """Prompts in, pieces out.

    Args:
        worker: of an engine that has an identity.
        over_schedule: steps to run on between the prompt's end and its release, as a scheduler
            does that plans ahead. What is sent is the same.
    """

    def __init__(
        self, worker: EngineWorker, limits: Limits, images: Images, over_schedule: int = 0
    ) -> None:
        self.images = images
        self.worker, self.limits, self.over_schedule = worker, limits, over_schedule
        self.engine: Engine = worker.engine
        self.open: dict[str, Outgoing] = {}
        self._names = 0
        self._late: list[tuple[Request, int]] = []
        worker.after_step = self._after_step

    @property
    def identity(self) -> StateIdentity:
        """Of every state that leaves."""
        identity = self.engine.identity
        assert identity is not None
        return identity

    async def begin(self, asked: Prefill) -> Outgoing:
        """Queue a prompt whose state is to leave; ``end`` must follow, whatever happens.

        Raises:
            ServeError: another identity, a prompt that does not fit, or too many transfers.
        """
        self._refuse(asked)
        pictures = self._pictures(asked)
        tensors = await self.images.take(pictures)
        loop = asyncio.get_running_loop()
        try:
            media = known(pictures, tensors)
            out = await self.worker.call(lambda: self._begin(asked, loop, media), self._end)
        except BaseException:
            self.images.give_back(pictures)
            raise
        out.pictures = pictures
        return out

    def _pictures(self, asked: Prefill) -> tuple[Picture, ...]:
        """The images that belong to the ids; the engine compares each with the ids at its place."""
        of, most = self.images.fingerprint, self.limits.image_pixels
        if len(asked.images) > self.limits.images:
            raise ServeError("invalid_request", f"{len(asked.images)} images", "images")
        return tuple(picture(i, i.start, bytes.fromhex(i.salt), of, most) for i in asked.images)

    async def frames(self, out: Outgoing) -> AsyncGenerator[bytes, None]:
        """The frames of one prompt, as they are computed.

        While there is none, and as long as the engine works on other prompts, a piece of kind
        ``waiting`` goes out every ``beat_s`` seconds: who waits in the queue is not mistaken for
        one whose engine hangs, and does not lose its place by asking again.
        """
        loop = asyncio.get_running_loop()
        until, steps = loop.time() + self.limits.request_s, self.worker.steps
        while True:
            while out.ready:
                frame = out.ready.popleft()
                out.nbytes -= len(frame)
                yield frame
            if out.done and not out.ready:
                return
            try:
                async with asyncio.timeout_at(min(until, loop.time() + out.beat_s)):
                    await out.wake.wait()
                out.wake.clear()
            except TimeoutError:
                if loop.time() >= until:
                    raise
                if self.worker.steps != steps and not out.ready:
                    steps = self.worker.steps
                    yield write_piece(self._plain_meta(out, "waiting"), {})

    def end(self, out: Outgoing) -> None:
        """The reader has all, or has gone: nothing of the transfer stays."""
        self.images.give_back(out.pictures)
        out.pictures = ()
        self.worker.post(lambda: self._end(out))

    def _refuse(self, asked: Prefill) -> None:
        try:
            theirs = StateIdentity.from_dict(asked.identity)
        except (KdalabError, TypeError) as error:
            text = f"identity: {str(error).removeprefix('identity: ')}"
            raise ServeError("invalid_request", text[:500], "identity") from None
        found = identity_refusals(self.identity, theirs)
        if found:
            fields = "; ".join(map(str, found))
            text = f"states of another identity are asked for ({fields})"
            raise ServeError("identity_mismatch", text[:1500], "identity")
        if asked.have > len(asked.tokens):
            text = f"have = {asked.have:,} of a prompt of {len(asked.tokens):,} tokens"
            raise ServeError("invalid_request", text, "have")
        if len(asked.tokens) > self.limits.prompt_tokens:
            text = f"a prompt of {len(asked.tokens):,}; at most {self.limits.prompt_tokens:,}"
            raise ServeError("invalid_request", text, "tokens")

    # -- on the engine's thread --------------------------------------------------------------

    def _begin(
        self, asked: Prefill, loop: asyncio.AbstractEventLoop, media: Media | None
    ) -> Outgoing:
        if asked.transfer in self.open:
            raise ServeError("invalid_request", "this transfer is under way", "transfer")
        if len(self.open) >= self.limits.transfers:
            text = f"{len(self.open)} transfers are under way, the most that this process makes"
            raise ServeError("too_many_requests", text)
        self._names += 1
        # A token more than is needed: the request is then still there after its first one.
        new = 2 + self.over_schedule
        try:
            name = f"prefill-{self._names}"
            request = self.engine.submit(asked.tokens, new, name, media=media)
        except KdalabError as error:
            raise ServeError("invalid_request", str(error)[:1000], "tokens") from None
        out = Outgoing(asked.transfer, request, asked.have, loop, beat_s=asked.beat_s)
        self.open[asked.transfer] = out
        return out

    def _after_step(self) -> None:
        late, self._late = self._late, []
        for request, steps in late:
            self._let_go(request, steps - 1)
        for out in list(self.open.values()):
            if not out.done:
                self._advance(out)

    def _advance(self, out: Outgoing) -> None:
        """Copy out what the last step has computed; at the prompt's end also the state."""
        request = out.request
        if self.worker.failure:
            self._fail(out, "failed", self.worker.failure)
        elif not request.is_running and request.phase is not Phase.WAITING:
            self._fail(out, "failed", request.finish_reason or request.phase.value)
        elif request.is_running:
            self._latents(out)
            if request.phase is Phase.DECODE and request.computed == request.n_tokens:
                self._state(out)

    def _latents(self, out: Outgoing) -> None:
        request, n = out.request, out.request.n_tokens
        end = min(request.computed, n)
        size = self.engine.config.page_tokens
        while out.sent < end:
            start, stop = out.sent, min(end, out.sent + self._piece_tokens())
            first = start // size
            rows = self.engine.latents.gather(request.pages[first:], stop - first * size)
            latent = rows[:, start - first * size :]
            out.push(write_piece(self._meta(out, "latent", start, stop), {"latent": latent}))
            out.sent = stop

    def _piece_tokens(self) -> int:
        """As many whole cells as fit well below the limit of a piece."""
        _, layers, _, dim = self.engine.latents.data.shape
        token = layers * dim * self.engine.latents.data.element_size()
        return max(CELL, self.limits.piece_bytes // 4 // token // CELL * CELL)

    def _state(self, out: Outgoing) -> None:
        """The state at the prompt's end, and nowhere else; then the slot goes back."""
        request = out.request
        recurrent, conv = self.engine.state_of(request)
        meta = self._meta(out, "state", request.n_tokens, request.n_tokens)
        first = request.generated[0]
        meta = meta.model_copy(update={"count": out.seq + 1, "first": first})
        out.push(write_piece(meta, {"recurrent": recurrent, "conv": conv}), last=True)
        self._let_go(request, self.over_schedule)

    def _let_go(self, request: Request, steps: int) -> None:
        """The request has been sent and ends, after steps that were scheduled too many: what was
        copied is out of their reach."""
        if request.is_running and steps > 0:
            self._late.append((request, steps))
        elif request.is_running:
            self.engine.finish(request, "sent")

    def _meta(self, out: Outgoing, kind: str, start: int, end: int) -> PieceMeta:
        prefix = PrefixHash.of(out.request.tokens, end)
        return PieceMeta(
            transfer=out.transfer,
            seq=out.seq,
            kind=kind,  # type: ignore[arg-type]
            identity=self.identity.digest(),
            boundary=out.request.n_tokens,
            start=start,
            end=end,
            prefix=prefix_meta(prefix),
        )

    def _fail(self, out: Outgoing, code: str, message: str) -> None:
        meta = self._plain_meta(out, "error", code, message[:2000])
        out.push(write_piece(meta, {}), last=True)

    def _plain_meta(
        self, out: Outgoing, kind: Literal["waiting", "error"], code: str = "", message: str = ""
    ) -> PieceMeta:
        return PieceMeta(
            transfer=out.transfer,
            seq=out.seq,
            kind=kind,
            identity=self.identity.digest(),
            boundary=out.request.n_tokens,
            code=code,
            message=message,
        )

    def _end(self, out: Outgoing) -> None:
        self.open.pop(out.transfer, None)
        out.ready.clear()
        out.nbytes, out.done = 0, True
        request = out.request
        if request.is_running or request.phase is Phase.WAITING:
            self.engine.abort(request.name)

    def conservation(self) -> dict[str, object]:
        """As the worker's, with what waits for its readers."""
        plain = self.worker.conservation()
        waiting = sum(out.nbytes for out in self.open.values())
        counts = {"open": len(self.open), "bytes": waiting, "begun": self._names}
        return {**plain, "transfers": counts}


def prefix_meta(prefix: PrefixHash) -> PrefixMeta:
    """A prefix's hash in the form in which it travels."""
    return PrefixMeta(boundary=prefix.boundary, text=prefix.text, images=prefix.images)
