"""The engine: chunked prefill, continuous-batched decode, checkpoints, and the event log."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch

from kdalab.cache import Evicted, HostTier, PrefixKey, RadixStateCache
from kdalab.engine import admission, checkpointing, checks, copies, decode, prefill, transfers
from kdalab.engine import events as ev
from kdalab.engine.base import BaseEngine
from kdalab.engine.config import EngineConfig
from kdalab.engine.costs import with_costs
from kdalab.engine.live import live_view
from kdalab.engine.media import share_key
from kdalab.engine.pools import build_pools
from kdalab.engine.request import Phase, Request
from kdalab.engine.strategy import slots_per_request
from kdalab.engine.view import View
from kdalab.errors import KdalabError, shown
from kdalab.memory.gate import Hold, MoveGate
from kdalab.memory.host import Level, host_level
from kdalab.spec import StateIdentity

if TYPE_CHECKING:
    from kdalab.engine.arrivals import Remote
    from kdalab.engine.media import Media
    from kdalab.engine.shared_state import StandIn
    from kdalab.model import HybridModel
    from kdalab.model.verify import VerifyOutput

NOTHING = Evicted(0, 0, (), (), ())


class _Held(NamedTuple):
    """What a request gave back when it stopped running."""

    active: int
    slots: tuple[int, ...]
    pages: tuple[int, ...]
    released: Evicted


class Engine(BaseEngine):
    """Runs requests through a hybrid model, sharing what their prompts have in common.

    Everything that happens is one event in ``events``. Pools, cache and requests change only in
    here (and in the modules that this class hands itself to: admission, room, copies, prefill,
    decode, checkpointing, checks).

    Args:
        model: takes states in and gives states out; keeps none.
        config: sizes and switches.
        identity: of every state in this engine's cache; requests that name another are refused.
    """

    config: EngineConfig

    def __init__(
        self,
        model: HybridModel,
        config: EngineConfig | None = None,
        identity: StateIdentity | None = None,
    ) -> None:
        config = EngineConfig() if config is None else config
        if not isinstance(config, EngineConfig):
            raise KdalabError(f"config = {shown(config)}; give an EngineConfig, or None")
        super().__init__(model, identity)
        self.config = config
        pools = build_pools(model, config)
        self.buffer, self.active, self.checkpoints, self.latents = pools
        self.gate = self.buffer.holds if self.buffer is not None else MoveGate()
        self.cache = RadixStateCache(
            config.page_tokens,
            config.grid,
            pools.page_bytes,
            pools.checkpoint_bytes,
            with_costs(config.kept, model, pools),
            HostTier(config.host.write_through) if config.host is not None else None,
        )
        self.device = Level(self.latents, self.checkpoints)
        self.host: Level | None = None
        if config.host is not None:
            sizes = config.host.n_pages, config.host.n_checkpoints
            self.host = host_level(*sizes, self.device, config.poison)
        self.stand_ins: dict[tuple[int, int, int], StandIn] = {}  # of a fault: shared_state.py
        self.remote: Remote | None = None  # other instances to ask before a prompt is computed

    # -- what a user calls -------------------------------------------------------------------

    def submit(
        self,
        tokens: Sequence[int],
        max_new_tokens: int = 16,
        name: str | None = None,
        stop_tokens: Iterable[int] = (),
        identity: StateIdentity | None = None,
        media: Media | None = None,
    ) -> Request:
        """Queue a prompt.

        Args:
            tokens: token ids of the prompt, at least one.
            max_new_tokens: tokens to generate greedily; 0 prefills only.
            name: unique name; by default A, B, C, ...
            stop_tokens: ids that end the request when generated.
            identity: what the caller expects states to be of; by default whatever they are.
            media: images in the prompt; the ids at their positions are ``media_ids``.

        Raises:
            IdentityMismatchError: an identity that differs from the cache's; each field is named.
            KdalabError: an empty prompt, an id outside the vocabulary, a name in use, or a
                prompt that does not fit the pools even when they are empty. Nothing was taken.
        """
        self.require_identity(identity)
        ids = admission.as_ids(tokens)
        name = name if name is not None else self.next_name()
        admission.check_request(self, ids, max_new_tokens, name, media)
        stops = frozenset(admission.as_ids(stop_tokens, "stop_tokens"))
        request = Request(
            name,
            ids,
            max_new_tokens,
            PrefixKey.from_tokens(ids, self.config.page_tokens),
            stops,
            media=media,
        )
        self.requests[name] = request
        self.waiting.append(request)
        self.emit(ev.Submitted(name, len(ids), max_new_tokens, ids))
        if self.config.faults.ignore_images and media is not None:
            share_key(self, request)
        return request

    def step(self) -> list[ev.Event]:
        """Admit, prefill one chunk's worth, decode one token each. Returns the new events."""
        first = len(self.events)
        if self.buffer is not None:
            self.buffer.heedless = self.config.faults.move_held
        with torch.inference_mode():
            decoding = [r for r in self.running if r.phase is Phase.DECODE]
            transfers.land(self)
            admission.admit_waiting(self)
            transfers.back_up(self)
            prefill.run_chunk(self)
            decode.run_batch(self, decoding)
            if self.buffer is not None and self.config.lazy_compaction:
                self.buffer.compact(self.config.compact_moves)
            if not self.waiting and not self.running:
                transfers.back_up(self)  # there may be no next step that would
        self.say_moves()
        if self.config.check_every_step:
            self.check()
        return self.events[first:]

    def abort(self, name: str) -> None:
        """End a request wherever it is; what it held goes back, what it shared stays. One that has
        ended already is left as it is.

        Raises:
            KdalabError: no request of that name.
        """
        request = self.named(name)
        if request.phase is Phase.WAITING:
            transfers.cancel(self, request)
            self.waiting.remove(request)
            request.phase, request.arrival = Phase.CANCELLED, None
            self.emit(ev.Cancelled(name))
        elif request.is_running:
            self.finish(request, "aborted")

    def hold_moves(self, who: str) -> Hold:
        """Keep every slot of the engine's memory at its address until the hold is released.

        For whoever gives addresses away: a transfer to another process holds the gate from the
        moment it names an address until the other side has answered. Requests run on meanwhile;
        freed slots leave holes, which are filled when the last hold is released. Contents are
        not kept by a hold but by a lease or by ownership. With split memory nothing ever moves,
        and a hold costs nothing.

        Args:
            who: named by ``engine.gate.holders``.
        """
        return self.gate.hold(who)

    @property
    def is_idle(self) -> bool:
        """True when no request waits or runs, and no transfer is under way."""
        flying = self.cache.host is not None and bool(self.cache.host.flights)
        return not (self.waiting or self.running or flying)

    def check(self) -> None:
        """Prove every rule of the design on the live objects; raises ``InvariantError``."""
        checks.check(self)

    # -- what the engine's modules call ------------------------------------------------------

    def say_moves(self) -> None:
        """One event for every slot that the unified buffer has moved since the last time."""
        if self.buffer is not None:
            for move in self.buffer.drain_moves():
                self.emit(ev.Moved("", *move))

    def give_back(self, evicted: Evicted, request: str, reason: str) -> None:
        """Return evicted pages and checkpoints of both levels to their pools, and say so."""
        if not evicted.dropped:
            return
        self.device.free(evicted.pages, evicted.states)
        kv = len(evicted.pages) * self.cache.page_bytes
        state = len(evicted.states) * self.cache.checkpoint_bytes
        host = 0
        if self.host is not None:
            self.host.free(evicted.host_pages, evicted.host_states)
            host = self.host.bytes_of(len(evicted.host_pages), len(evicted.host_states))
        self.emit(ev.Evicted(request, reason, kv, state, evicted.dropped, host))

    def finish(self, request: Request, reason: str) -> None:
        """End a running request; the last state that it kept goes to the cache."""
        if not reason.startswith("failed"):
            checkpointing.at_end(self, request)
        held = self._release(request)
        request.phase, request.finish_reason = Phase.FINISHED, reason
        n = len(request.generated)
        self.emit(ev.Finished(request.name, reason, held.active, held.pages, n, held.slots))
        self.give_back(held.released, request.name, "its last reader has left")

    def refuse(self, request: Request, reason: str) -> None:
        """End a request that waits and holds nothing."""
        transfers.cancel(self, request)
        self.waiting.remove(request)
        request.phase, request.finish_reason = Phase.FINISHED, reason
        self.emit(ev.Finished(request.name, reason, -1, (), len(request.generated)))

    def retract(self, request: Request, reason: str) -> None:
        """Stop a running request and put it first in the queue; it goes on from the cache.

        Raises:
            KdalabError: it does not run, or is not of this engine.
        """
        self.require_running(request)
        checkpointing.at_end(self, request)
        held = self._release(request)
        request.phase, request.lookup, request.computed = Phase.WAITING, None, 0
        request.boundaries, request.load = (), 0
        request.logits.clear()
        self.waiting.appendleft(request)
        n = len(request.generated)
        self.emit(ev.Retracted(request.name, reason, held.active, held.pages, n, held.slots))
        self.give_back(held.released, request.name, "its last reader has left")

    def _release(self, request: Request) -> _Held:
        """Give back locks, private pages and slots, and forget every reference to them."""
        own = tuple(request.pages[request.n_shared :])
        self.latents.free(own, request.name)
        slots = request.slots
        for slot in slots:
            self.active.free(slot, request.name)
        released = NOTHING
        if request.lease is not None:
            released = self.cache.release(request.lease)
        request.lease, request.pages, request.start = None, [], None
        request.active_slot, request.source_slot, request.kept_slot = -1, -1, -1
        request.spare_slots, request.kept_boundary, request.stale_state = [], 0, None
        request.landing = None
        request.stand_in = None
        self.running.remove(request)
        return _Held(slots[0], slots[1:], own, released)

    def verified(self, request: Request, drafted: tuple[int, ...], out: VerifyOutput) -> None:
        """Called with every state that a verify step has kept, before one of them is committed.

        It does nothing; a lesson that shows them overrides it.
        """

    def settle(self, name: str) -> None:
        """Make a request's deferred copy now; otherwise its first forward does.

        Raises:
            KdalabError: no running request of that name.
        """
        request = self.named(name)
        self.require_running(request)
        copies.settle(self, request)

    def state_of(self, request: Request) -> tuple[torch.Tensor, torch.Tensor]:
        """(recurrent, conv) of a running request after ``request.computed`` tokens, as copies.

        Raises:
            KdalabError: it does not run.
        """
        self.require_running(request)
        return copies.read_state(self, request)

    @property
    def page_limit(self) -> int:
        """Latent pages that one request can ever have."""
        if self.buffer is None:
            return self.config.n_pages
        need = slots_per_request(self.config.how, self.config.overlap)
        return self.buffer.most_pages(need)

    # -- the live view -----------------------------------------------------------------------

    def empty_view(self) -> View:
        """The view before the first event; fold the log from here."""
        pools = [self.active, self.checkpoints, self.latents]
        if self.host is not None:
            pools += [self.host.latents, self.host.checkpoints]
        return View.empty(*(pool.slots.n for pool in pools))

    def view(self) -> View:
        """The same view as ``fold(engine.events, engine.empty_view())``, from the live objects."""
        return live_view(self)
