"""The engine on blocks: the same model, requests and events as ``Engine``, in vLLM's memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import numpy as np
import torch

from kdalab.cache import BlockStateCache, CacheMode, ExtraKeys, HashChain, PrefixKey
from kdalab.engine import admission
from kdalab.engine import events as ev
from kdalab.engine.base import BaseEngine
from kdalab.engine.block import acts, arrivals, checks, decode, prefill, schedule
from kdalab.engine.block import events as bl
from kdalab.engine.block.config import BlockEngineConfig
from kdalab.engine.block.live import live_view
from kdalab.engine.block.memory import BlockMemory
from kdalab.engine.block.metadata import BatchMetadata, batch_metadata
from kdalab.engine.block.plan import make_plan
from kdalab.engine.block.request import BlockRequest
from kdalab.engine.block.view import BlockView, Slot
from kdalab.engine.failures import named
from kdalab.engine.request import Phase
from kdalab.errors import KdalabError, shown
from kdalab.units import format_bytes

if TYPE_CHECKING:
    from kdalab.model import HybridModel
    from kdalab.spec import StateIdentity


class BlockEngine(BaseEngine):
    """Runs requests through a hybrid model whose latent KV and states lie in one pool of blocks.

    The surface is ``Engine``'s. A step schedules rows and gives them blocks (``schedule``), makes
    one ``BatchMetadata`` of them, copies what is queued, and runs the forward by these arrays
    (``prefill``, ``decode``). ``batch`` is the metadata of the last step.

    Args:
        model: takes states in and gives states out; keeps none.
        config: sizes and switches.
        identity: of every state in this engine's cache; requests that name another are refused.

    Raises:
        KdalabError: sizes that do not go together for this model, or that this machine cannot hold;
            nothing is allocated.
    """

    config: BlockEngineConfig

    def __init__(
        self,
        model: HybridModel,
        config: BlockEngineConfig | None = None,
        identity: StateIdentity | None = None,
    ) -> None:
        config = BlockEngineConfig() if config is None else config
        if not isinstance(config, BlockEngineConfig):
            raise KdalabError(f"config = {shown(config)}; give a BlockEngineConfig, or None")
        super().__init__(model, identity)
        self.config = config
        self.plan = make_plan(model, config)
        try:
            self.memory = BlockMemory(self.plan.layout, self.plan.n_blocks, model, config.poison)
            self.cache = BlockStateCache(self.plan.cache)
        except (RuntimeError, MemoryError) as error:
            raise KdalabError(
                f"{self.plan.n_blocks:,} blocks need {format_bytes(self.plan.nbytes)}, which "
                f"cannot be had: {named(error)}"
            ) from error
        moves = config.mode is not CacheMode.NONE
        self.state_block = self.plan.cache.state_block if moves else None
        self.batch: BatchMetadata | None = None
        self.dirty: set[int] = set()  # blocks written since they were last poisoned

    # -- what a user calls -------------------------------------------------------------------

    def submit(
        self,
        tokens: Sequence[int],
        max_new_tokens: int = 16,
        name: str | None = None,
        stop_tokens: Iterable[int] = (),
        identity: StateIdentity | None = None,
        salt: str = "",
    ) -> BlockRequest:
        """Queue a prompt.

        Args:
            tokens: token ids of the prompt, at least one.
            max_new_tokens: tokens to generate greedily; 0 prefills only.
            name: unique name; by default A, B, C, ...
            stop_tokens: ids that end the request when generated.
            identity: what the caller expects states to be of; by default whatever they are.
            salt: only requests of equal salt share what is cached.

        Raises:
            IdentityMismatchError: an identity that differs from the cache's; each field is named.
            KdalabError: an empty prompt, an id outside the vocabulary, a name in use, or a
                prompt that does not fit the blocks even when all are free. Nothing was taken.
        """
        self.require_identity(identity)
        ids = admission.as_ids(tokens)
        name = name if name is not None else self.next_name()
        admission.check_prompt(self, ids, max_new_tokens, name)
        stops = frozenset(admission.as_ids(stop_tokens, "stop_tokens"))
        if not isinstance(salt, str):
            raise KdalabError(f"salt = {shown(salt)}; it must be text, or empty")
        self.check_fits(len(ids), max_new_tokens)
        unit = self.cache.sizes.unit
        key = PrefixKey.from_tokens(ids, unit)
        # Without reuse each request has hashes of its own, which no other will ever ask for. The
        # length comes first: salt "a" of name "bc" is not salt "ab" of name "c".
        extra = ExtraKeys(salt=salt if self.config.reuse else f"{len(salt)}:{salt}{name}")
        chain = HashChain(key, unit, extra)
        request = BlockRequest(name, ids, max_new_tokens, key, stops, chain=chain)
        self.requests[name] = request
        self.waiting.append(request)
        self.emit(ev.Submitted(name, len(ids), max_new_tokens, ids))
        return request

    def step(self) -> list[ev.Event]:
        """Schedule, copy, run one forward. Returns the new events."""
        first = len(self.events)
        with torch.inference_mode():
            rows = schedule.plan_step(self)
            if rows:
                self.forward(rows)
        if self.config.check_every_step:
            self.check()
        return self.events[first:]

    def abort(self, name: str) -> None:
        """End a request wherever it is; what it held goes back, what it cached stays."""
        request = self.named(name)
        if request.phase is Phase.WAITING:
            self.waiting.remove(request)
            request.phase = Phase.CANCELLED
            self.emit(ev.Cancelled(name))
        elif request.is_running:
            self.finish(self.request(name), "aborted")

    def check(self) -> None:
        """Prove every rule on the live objects; raises ``InvariantError``."""
        checks.check(self)

    def state_of(self, request: BlockRequest) -> tuple[torch.Tensor, torch.Tensor]:
        """(recurrent, conv) of a running request after ``request.computed`` tokens, as copies.

        Raises:
            KdalabError: no running request of this engine, or it has computed nothing yet.
        """
        self.require_running(request)
        running = [r.running for r in acts.rows_of(self, request).states.values()]
        if not running or None in running:
            raise KdalabError(f"{request.name} holds no state: it has not begun")
        return self.memory.read_state([b.id for b in running if b is not None])

    def latents_of(self, request: BlockRequest) -> torch.Tensor:
        """Latent KV [MLA layer, token, latent|rope] of what a running request has computed.

        Raises:
            KdalabError: no running request of this engine.
        """
        self.require_running(request)
        assert request.lease is not None
        tables = {
            g: np.array(self.cache.table(request.lease, g), dtype=np.int32)
            for g in self.cache.kv_groups
        }
        return self.memory.gather(tables, request.computed)

    # -- what the engine's modules call ------------------------------------------------------

    @property
    def runs(self) -> list[BlockRequest]:
        """Running requests, in the order of admission."""
        return cast("list[BlockRequest]", self.running)

    @property
    def first_waiting(self) -> BlockRequest:
        """The head of the queue."""
        return cast("BlockRequest", self.waiting[0])

    def request(self, name: str) -> BlockRequest:
        """A request by name."""
        return cast("BlockRequest", self.requests[name])

    def chain_of(self, request: BlockRequest) -> HashChain:
        """Hashes of what a request looks up: its prompt, and what it generated before it was
        preempted. Where decoding is not cached, that could only be found as another's prefill, of
        other last bits: then it restores within its prompt (one token more, to be computed)."""
        assert request.chain is not None
        if not request.generated:
            return request.chain
        chain = request.chain.copy()
        if self.config.cache_decoded:
            chain.extend(PrefixKey.from_tokens(request.known, self.cache.sizes.unit))
        else:
            chain.extend(replace(chain.key, n_tokens=request.n_tokens + 1))
        return chain

    def finish(self, request: BlockRequest, reason: str) -> None:  # type: ignore[override]
        """End a running request; its blocks go back, and what is cached stays findable."""
        freed = self._release(request)
        request.phase, request.finish_reason = Phase.FINISHED, reason
        self.emit(bl.Finished(request.name, reason, -1, freed, len(request.generated)))

    def preempt(self, request: BlockRequest, reason: str) -> None:
        """Stop a running request and put it first in the queue; it goes on from the cache.

        Raises:
            KdalabError: no running request of this engine.
        """
        self.require_running(request)
        freed = self._release(request)
        request.phase, request.lookup, request.computed = Phase.WAITING, None, 0
        request.preemptions += 1
        request.logits.clear()
        self.waiting.appendleft(request)
        self.emit(bl.Preempted(request.name, reason, freed, len(request.generated)))

    # -- the live view -----------------------------------------------------------------------

    def empty_view(self) -> BlockView:
        """The view before the first event; fold the log from here."""
        slots = [Slot()] * self.plan.n_blocks
        return BlockView(slots, tuple(self.cache.kv_groups), tuple(self.cache.state_groups))

    def view(self) -> BlockView:
        """The same view as ``fold(engine.events, engine.empty_view())``, from the live objects;
        between two steps."""
        return live_view(self)

    # -- inside ------------------------------------------------------------------------------

    def forward(self, rows: list[schedule.Scheduled]) -> None:
        """Copy what is queued, and run the rows that were scheduled."""
        cache = self.cache
        full = {g: cache.groups[g].block_tokens for g in cache.kv_groups}
        meta = batch_metadata([s.row for s in rows], full, cache.state_groups, self.state_block)
        self.batch = meta
        arrived = [i for i, s in enumerate(rows) if s.request.arrival is not None]
        computed = [s for s in rows if s.request.arrival is None]
        plan = tuple((s.row.request, s.row.start, s.row.end, s.row.drafts) for s in computed)
        if plan:
            self.emit(bl.Scheduled("", plan))
        self.memory.copy(cache.copies)
        prefilled = [
            i for i, s in enumerate(rows) if s in computed and s.request.phase is Phase.PREFILL
        ]
        decoding = [s for s in computed if s.request.phase is Phase.DECODE]
        for row in arrived:
            arrivals.seat(self, meta, row)
        # A batch has no order. Only a fault lets a row read what another one writes.
        order = reversed(prefilled) if self.config.faults.read_unwritten else prefilled
        for row in order:
            prefill.run_row(self, meta, row)
        decode.run_rows(self, meta, decoding)
        for one in rows:
            if one.request.spoiled and one.request.lease is not None:
                acts.withdraw(self, one.request)  # what a fault spoils is never cached
        cache.step_done()
        self._scrub()
        self.emit(bl.StepEnded(""))

    def _release(self, request: BlockRequest) -> tuple[int, ...]:
        """Give back every block, and say which."""
        freed = tuple(b.id for b in acts.rows_of(self, request).blocks())
        assert request.lease is not None
        self.cache.release(request.lease)
        request.lease = None
        self.running.remove(request)
        self._scrub()
        return freed

    def _scrub(self) -> None:
        """Poison blocks that nobody holds and that are cached as nothing."""
        if not self.config.poison:
            return
        blocks = self.cache.pool.blocks
        empty = [i for i in self.dirty if not blocks[i].ref and not blocks[i].keys]
        self.memory.poison(empty)
        self.dirty.difference_update(empty)

    def check_fits(self, n_tokens: int, max_new_tokens: int) -> None:
        """Refuse a prompt that needs more blocks than there are.

        Raises:
            KdalabError: with the arithmetic.
        """
        need = self.plan.blocks_of_request(n_tokens + max(max_new_tokens - 1, 0))
        have = self.plan.n_blocks - 1
        if need > have:
            more = "n_blocks" if self.config.n_blocks is not None else "total_bytes"
            sizes = ", ".join(f"{g.name} {g.block_tokens:,} tokens" for g in self.cache.groups)
            raise KdalabError(
                f"the prompt of {n_tokens:,} tokens and {max_new_tokens:,} new ones can need "
                f"{need:,} blocks ({sizes}); there are {have:,} of {self.plan.layout.stride:,} "
                f"bytes. Shorten the prompt or raise {more}"
            )
