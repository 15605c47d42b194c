"""The decode side: takes slots first, has the prefill come in, and decodes.

What can go wrong on the way (no answer, a cut, a damaged piece) costs another attempt, which asks
only for what is still missing; a prefill process that takes no more now is asked again when it
says, and that costs none. When the attempts or the time are used up, the prompt is prefilled here,
or the request fails by name. Whatever happens, what it held goes back.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import httpx

from kdalab.engine import Engine, Phase, Request
from kdalab.engine.media import Media
from kdalab.engine.receiving import expect, fall_back
from kdalab.errors import KdalabError, OutOfSlotsError
from kdalab.serve.errors import ServeError
from kdalab.serve.images import Images, Picture, known
from kdalab.serve.incoming import Incoming
from kdalab.serve.limits import Limits
from kdalab.serve.pieces import Piece, read_pieces
from kdalab.serve.remote import Remote, error_of
from kdalab.serve.turns import Turns
from kdalab.serve.worker import EngineWorker
from kdalab.spec import StateIdentity

POLL_S = 0.05


@dataclass(eq=False)
class Live:
    """A request that somebody reads. ``seen`` tokens have been handed over."""

    request: Request
    loop: asyncio.AbstractEventLoop
    queue: asyncio.Queue[dict[str, Any]] = field(default_factory=asyncio.Queue)
    seen: int = 0
    over: bool = False
    facts: dict[str, Any] = field(default_factory=dict)
    fetch: asyncio.Task[None] | None = None
    pictures: tuple[Picture, ...] = ()
    holds_images: bool = False

    def say(self, item: dict[str, Any]) -> None:
        """From the engine's thread to the reader; at most one item a token, and one at the end."""
        with suppress(RuntimeError):  # the loop has gone, and the reader with it
            self.loop.call_soon_threadsafe(self.queue.put_nowait, item)


class DecodeRole:
    """Prompts in, tokens out.

    Args:
        worker: of an engine that has an identity.
        prefills: addresses of prefill processes, asked in turn: each request begins with the
            next one. Without any every prompt is prefilled here.
        fallback: whether a prompt is prefilled here when its state does not come.
        remote: the way to the prefill processes; by default HTTP.
    """

    def __init__(
        self,
        worker: EngineWorker,
        limits: Limits,
        images: Images,
        prefills: Sequence[str] = (),
        token: str = "",
        fallback: bool = True,
        remote: Remote | None = None,
    ) -> None:
        self.images = images
        self.worker, self.limits, self.fallback = worker, limits, fallback
        self.engine: Engine = worker.engine
        self.prefills = Turns(prefills)
        self.remote = Remote(limits, token) if remote is None else remote
        self.live: dict[str, Live] = {}
        names = "transfers", "retries", "busy", "fallbacks", "failed", "bytes"
        self.counts = dict.fromkeys(names, 0)
        self._waiting = 0
        self._turn = asyncio.Lock()
        self._names = 0
        worker.after_step = self._after_step

    @property
    def identity(self) -> StateIdentity:
        """Of every state that is taken."""
        identity = self.engine.identity
        assert identity is not None
        return identity

    # -- what the app calls ------------------------------------------------------------------

    async def begin(
        self,
        tokens: list[int],
        new: int,
        stops: list[int],
        pictures: tuple[Picture, ...] = (),
    ) -> Live:
        """Take slot and pages for a prompt; ``end`` must follow, whatever happens.

        Raises:
            ServeError: too many requests, no slot in time, or a prompt that does not fit.
        """
        if self._waiting + len(self.live) >= self.limits.requests:
            text = f"{self.limits.requests} requests run or wait, the most that this process takes"
            raise ServeError("too_many_requests", text)
        self._waiting += 1
        try:
            async with asyncio.timeout(self.limits.queue_s), self._turn:
                live = await self._slot(tokens, new, stops, pictures)
        except TimeoutError:
            text = f"no slot became free within {self.limits.queue_s:g} s"
            raise ServeError("out_of_slots", text) from None
        finally:
            self._waiting -= 1
        live.pictures = pictures
        live.fetch = asyncio.create_task(self._bring(live))
        return live

    async def tokens(self, live: Live) -> AsyncIterator[dict[str, Any]]:
        """``{"token": id}`` for each token, then ``{"finish": reason, ...}`` or an error."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self.limits.request_s
        while True:
            try:
                async with asyncio.timeout_at(until):
                    item = await live.queue.get()
            except TimeoutError:
                text = f"the request took longer than {self.limits.request_s:g} s"
                item = ServeError("upstream_timeout", text).body()
            yield item
            if "token" not in item:
                return

    def stopped(self, live: Live) -> dict[str, Any]:
        """The last event of a request whose reader has enough, before its own end."""
        return {"finish": "stop", "prompt_tokens": live.request.n_tokens, **live.facts}

    def end(self, live: Live) -> None:
        """The reader has all, or has gone: what the request holds goes back."""
        if live.fetch is not None:
            live.fetch.cancel()
        if live.holds_images:
            live.holds_images = False
            self.images.give_back(live.pictures)
        self.worker.post(lambda: self._end(live))

    async def close(self) -> None:
        """Let go of the connections."""
        await self.remote.close()

    # -- a slot ------------------------------------------------------------------------------

    async def _slot(
        self, tokens: list[int], new: int, stops: list[int], pictures: tuple[Picture, ...]
    ) -> Live:
        loop = asyncio.get_running_loop()
        while True:
            try:
                take = self._taker(tokens, new, stops, loop, known(pictures))
                return await self.worker.call(take, self._end)
            except OutOfSlotsError:
                await asyncio.sleep(POLL_S)
            except ServeError:
                raise
            except KdalabError as error:
                raise ServeError("invalid_request", str(error)[:1000], "prompt") from None

    def _taker(
        self,
        tokens: list[int],
        new: int,
        stops: list[int],
        loop: asyncio.AbstractEventLoop,
        media: Media | None,
    ) -> Callable[[], Live]:
        def take() -> Live:
            self._names += 1
            name = f"decode-{self._names}"
            if (
                self.prefills.urls or media is not None
            ):  # embeddings are fetched when they are needed
                request = expect(self.engine, tokens, new, name, stops, "prefill", media)
            else:
                if len(self.engine.running) >= self.engine.config.running_limit:
                    raise OutOfSlotsError("all slots are taken")
                request = self.engine.submit(tokens, new, name, stops)
            live = self.live[name] = Live(request, loop)
            return live

        return take

    # -- the state comes ---------------------------------------------------------------------

    async def _bring(self, live: Live) -> None:
        """See that the request gets its state, from elsewhere or from here."""
        if not self.prefills.urls and not live.pictures:
            return
        now = asyncio.get_running_loop().time
        until = now() + self.limits.queue_s
        left = dict.fromkeys(self.prefills.order(), 1 + self.limits.retries)
        error: Exception = KdalabError("no prefill process is known")
        while left:
            waits = []  # seconds after which those that have no room want to be asked again
            for url in list(left):
                try:
                    await self._attempt(live, url)
                    self.prefills.worked(url)
                    return
                except (KdalabError, httpx.HTTPError, OSError, TimeoutError) as found:
                    error = found
                if live.over:
                    return
                if isinstance(error, ServeError) and error.is_busy:
                    self.counts["busy"] += 1
                    waits.append(error.wait_s or 1)
                    continue
                self.prefills.failed(url)
                left[url] -= 1
                if not left[url]:
                    del left[url]
                if left:
                    self.counts["retries"] += 1
                    live.facts["retries"] = live.facts.get("retries", 0) + 1
            if waits and now() >= until:
                break
            if waits:
                await asyncio.sleep(min(until - now(), *waits))
        await self._without(live, error)

    async def _attempt(self, live: Live, url: str) -> None:
        """One transfer; returns when the request decodes."""
        self.counts["transfers"] += 1
        transfer = secrets.token_hex(16)
        incoming = Incoming(self.engine, self.identity, live.request, transfer)
        have = await self.worker.call(lambda: _front(live.request))
        live.facts.setdefault("held", have)
        asked = {
            "transfer": transfer,
            "identity": self.identity.to_dict(),
            "tokens": list(live.request.tokens),
            "have": have,
            "images": [p.placed() for p in live.pictures],
            "beat_s": min(max(self.limits.piece_s / 3, 0.01), 3600.0),
        }
        async with self.remote.stream(f"{url}/v1/prefill", asked) as answer:
            if answer.status_code != 200:
                raise await error_of(answer, f"{url} answers {answer.status_code}")
            async for piece in read_pieces(answer.aiter_raw(), self.limits.piece_bytes):
                if await self.worker.call(lambda p=piece: _take(live, incoming, p)):  # type: ignore[misc]
                    self.counts["bytes"] += incoming.nbytes
                    return
        left = incoming.missing
        what = f"latent KV of {left:,} tokens" if left else "the state"
        raise ServeError("transfer_failed", f"the connection ended before {what} had arrived")

    async def _without(self, live: Live, error: Exception) -> None:
        named = isinstance(error, KdalabError)  # says by itself what it is
        reason = (str(error) if named else f"{type(error).__name__}: {error}")[:500]
        text = f"the state of this prompt did not come: {reason}"
        if not self.fallback:
            code = error.code if isinstance(error, ServeError) and error.is_busy else ""
            self._fail(live, ServeError(code or "transfer_failed", text))
            return
        media = None
        if live.pictures:
            try:
                tensors = await self.images.take(live.pictures)
            except ServeError as found:
                more = "" if found.message in text else f"; {found.message}"
                self._fail(live, ServeError(found.code, f"{text}{more}"[:1500]))
                return
            live.holds_images = True
            media = known(live.pictures, tensors)
        self.counts["fallbacks"] += 1
        live.facts["fallback"] = reason
        await self.worker.call(lambda: self._fall_back(live, reason, media))

    def _fail(self, live: Live, error: ServeError) -> None:
        self.counts["failed"] += 1
        live.over = True
        live.queue.put_nowait(error.body())
        self.worker.post(lambda: self._end(live))

    # -- on the engine's thread --------------------------------------------------------------

    def _fall_back(self, live: Live, reason: str, media: Media | None) -> None:
        if live.request.phase is Phase.RECEIVING:
            live.request.media = media
            fall_back(self.engine, live.request, f"its state did not come ({reason})"[:200])

    def _after_step(self) -> None:
        for live in list(self.live.values()):
            if live.over:
                continue
            request = live.request
            if self.worker.failure:
                live.over = True
                live.say(ServeError("failed", self.worker.failure).body())
                continue
            for token in request.generated[live.seen :]:
                live.say({"token": token})
            live.seen = len(request.generated)
            if request.phase in (Phase.FINISHED, Phase.CANCELLED):
                live.over = True
                live.say(_last(live))

    def _end(self, live: Live) -> None:
        live.over = True
        self.live.pop(live.request.name, None)
        if live.request.name in self.engine.requests:
            self.engine.abort(live.request.name)

    def conservation(self) -> dict[str, Any]:
        """As the worker's, with who reads and who waits, and what the transfers came to."""
        plain = self.worker.conservation()
        return {**plain, "live": len(self.live), "queued": self._waiting, "counts": self.counts}


def _take(live: Live, incoming: Incoming, piece: Piece) -> bool:
    """Take a piece; what is said of it is there before the step that may be the request's last."""
    begins = incoming.take(piece)
    if begins:
        live.facts["received_bytes"] = incoming.nbytes
    return begins


def _front(request: Request) -> int:
    """Tokens of latent KV that need not be sent (again)."""
    if request.landing is None:
        raise ServeError("transfer_failed", "the request expects no state any more")
    return request.landing.front


def _last(live: Live) -> dict[str, Any]:
    request = live.request
    if request.finish_reason in ("length", "stop token"):
        reason = "stop" if request.finish_reason == "stop token" else "length"
        return {"finish": reason, "prompt_tokens": request.n_tokens, **live.facts}
    text = request.finish_reason or request.phase.value
    return ServeError("failed", f"the request ended early: {text}").body()
