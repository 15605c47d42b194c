"""The engine: chunked prefill, continuous-batched decode, checkpoints, and the event log."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import torch

from kdalab.cache import PrefixKey, RadixStateCache
from kdalab.engine import admission, checks, decode, prefill
from kdalab.engine import events as ev
from kdalab.engine.config import EngineConfig
from kdalab.engine.request import Phase, Request
from kdalab.engine.view import NodeView, RequestView, View
from kdalab.errors import KdalabError
from kdalab.memory import CACHE, ActivePool, CheckpointPool, LatentPool

if TYPE_CHECKING:
    from kdalab.cache import Evicted
    from kdalab.model import HybridModel


class Engine:
    """Runs requests through a hybrid model, sharing what their prompts have in common.

    Everything that happens is one event in ``events``. Pools, cache and requests change only in
    here (and in the four modules that this class hands itself to: admission, prefill, decode,
    checks).

    Args:
        model: takes states in and gives states out; keeps none.
        config: sizes and switches.
    """

    def __init__(self, model: HybridModel, config: EngineConfig | None = None) -> None:
        self.model = model
        self.config = config = config or EngineConfig()
        self.active = ActivePool(
            config.n_active, model.recurrent_shape, model.conv_shape, model.dtype
        )
        self.checkpoints = CheckpointPool(
            config.n_checkpoints, model.recurrent_shape, model.conv_shape, model.dtype
        )
        self.latents = LatentPool(
            config.n_pages, model.n_mla_layers, config.page_tokens, model.latent_dim, model.dtype
        )
        if not config.poison:
            self.active.fill, self.checkpoints.fill, self.latents.fill = None, None, None
        self.cache = RadixStateCache(
            config.page_tokens,
            config.grid,
            self.latents.page_bytes,
            self.checkpoints.slot_bytes,
        )
        self.events: list[ev.Event] = []
        self.requests: dict[str, Request] = {}
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []

    # -- what a user calls -------------------------------------------------------------------

    def submit(
        self,
        tokens: Sequence[int],
        max_new_tokens: int = 16,
        name: str | None = None,
        stop_tokens: Iterable[int] = (),
    ) -> Request:
        """Queue a prompt.

        Args:
            tokens: token ids of the prompt, at least one.
            max_new_tokens: tokens to generate greedily; 0 prefills only.
            name: unique name; by default A, B, C, ...
            stop_tokens: ids that end the request when generated.

        Raises:
            KdalabError: an empty prompt, an id outside the vocabulary, a name in use, or a
                prompt that does not fit the pools even when they are empty. Nothing was taken.
        """
        ids = admission.as_ids(tokens)
        name = name if name is not None else self._next_name()
        admission.check_request(self, ids, max_new_tokens, name)
        request = Request(
            name,
            ids,
            max_new_tokens,
            PrefixKey.from_tokens(ids, self.config.page_tokens),
            frozenset(stop_tokens),
        )
        self.requests[name] = request
        self.waiting.append(request)
        self.emit(ev.Submitted(name, len(ids), max_new_tokens, ids))
        return request

    def step(self) -> list[ev.Event]:
        """Admit, prefill one chunk's worth, decode one token each. Returns the new events."""
        first = len(self.events)
        with torch.inference_mode():
            decoding = [r for r in self.running if r.phase is Phase.DECODE]
            admission.admit_waiting(self)
            prefill.run_chunk(self)
            decode.run_batch(self, decoding)
        if self.config.check_every_step:
            self.check()
        return self.events[first:]

    def run(self, max_steps: int = 100_000) -> list[ev.Event]:
        """Step until nothing waits or runs. Returns the new events."""
        first = len(self.events)
        for _ in range(max_steps):
            if self.is_idle:
                return self.events[first:]
            self.step()
        raise KdalabError(f"not idle after {max_steps:,} steps")

    def abort(self, name: str) -> None:
        """End a request wherever it is; what it held goes back, what it shared stays."""
        request = self.requests.get(name)
        if request is None:
            raise KdalabError(f"no request {name!r}; known: {', '.join(self.requests) or 'none'}")
        if request.phase is Phase.WAITING:
            self.waiting.remove(request)
            request.phase = Phase.CANCELLED
            self.emit(ev.Cancelled(name))
        elif request.is_running:
            self.finish(request, "aborted")

    @property
    def is_idle(self) -> bool:
        """True when no request waits or runs."""
        return not self.waiting and not self.running

    def check(self) -> None:
        """Prove every rule of the design on the live objects; raises ``InvariantError``."""
        checks.check(self)

    # -- what the engine's modules call ------------------------------------------------------

    def emit(self, event: ev.Event) -> None:
        """Append to the log."""
        self.events.append(event)

    def give_back(self, evicted: Evicted, request: str, reason: str) -> None:
        """Return evicted pages and checkpoints to their pools, and say so."""
        if not evicted.dropped:
            return
        self.latents.free(evicted.pages, CACHE)
        self.checkpoints.free(evicted.states)
        self.emit(
            ev.Evicted(request, reason, evicted.kv_bytes, evicted.state_bytes, evicted.dropped)
        )

    def finish(self, request: Request, reason: str) -> None:
        """Release locks, private pages and the active slot of a running request."""
        own = tuple(request.pages[request.n_shared :])
        self.latents.free(own, request.name)
        slot = request.active_slot
        self.active.free(slot, request.name)
        released = self.cache.release(request.lease) if request.lease is not None else None
        request.lease, request.active_slot, request.pages = None, -1, []
        request.phase, request.finish_reason = Phase.FINISHED, reason
        request.stale_state = None
        self.running.remove(request)
        self.emit(ev.Finished(request.name, reason, slot, own, len(request.generated)))
        if released is not None:
            self.give_back(released, request.name, "its last reader has left")

    # -- the live view -----------------------------------------------------------------------

    def empty_view(self) -> View:
        """The view before the first event; fold the log from here."""
        c = self.config
        return View.empty(c.n_active, c.n_checkpoints, c.n_pages)

    def view(self) -> View:
        """The same view as ``fold(engine.events, engine.empty_view())``, from the live objects."""
        view = self.empty_view()
        view.active = list(self.active.slots.owners())
        view.pages = list(self.latents.slots.owners())
        for node in self.cache.nodes.values():
            if node.parent is None:
                continue
            slot = node.state.slot if node.state is not None else None
            view.nodes[node.id] = NodeView(
                node.id, node.parent.id, node.start, node.end, tuple(node.pages), slot
            )
            if slot is not None:
                view.checkpoints[slot] = node.id
        for r in self.requests.values():
            view.requests[r.name] = RequestView(
                r.name,
                r.n_tokens,
                r.phase.value,
                r.token_match,
                r.restore,
                r.computed,
                r.active_slot,
                self._node_of(r),
                tuple(r.pages),
                r.n_shared,
                tuple(r.generated),
            )
        return view

    def _node_of(self, request: Request) -> int:
        if not request.is_running:
            return -1
        return request.lease.node if request.lease is not None else 0

    def _next_name(self) -> str:
        number = len(self.requests)
        while True:
            name, rest = "", number
            while True:
                name = chr(ord("A") + rest % 26) + name
                rest = rest // 26 - 1
                if rest < 0:
                    break
            if name not in self.requests:
                return name
            number += 1
