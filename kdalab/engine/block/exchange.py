"""State that leaves blocks for another instance, and ways in for state that comes from one.

The same acts as ``kdalab.engine.exchange``, over blocks: what leaves is whole and in the order of
the tokens, so the receiver's block or page size does not matter. What comes is written into blocks
that a request was given for it (``block.arrivals``), and cached under the names that computing it
here would have given.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from kdalab.cache import CacheMode, ExtraKeys, HashChain, PrefixKey
from kdalab.cache.block_lookup import Reader
from kdalab.engine import admission
from kdalab.engine import events as ev
from kdalab.engine import exchange_events as ex
from kdalab.engine.block import arrivals, schedule
from kdalab.engine.block import events as bl
from kdalab.engine.block.request import BlockRequest
from kdalab.engine.config import EngineConfig
from kdalab.engine.exchange import Exported, check_continues
from kdalab.engine.request import Phase
from kdalab.errors import KdalabError, OutOfSlotsError

if TYPE_CHECKING:
    from kdalab.cache import BlockLookup
    from kdalab.engine.arrivals import Arrival
    from kdalab.engine.block.core import BlockEngine

PAGE_TOKENS = EngineConfig().page_tokens
"""Tokens of a page of what leaves: the radix engine's."""


def export_running(engine: BlockEngine, name: str, target: str = "") -> Exported:
    """A copy of what a running request holds after ``request.computed`` tokens.

    Raises:
        KdalabError: no such request, or it holds no state now.
    """
    engine.named(name)
    request = engine.request(name)
    if not request.is_running or request.computed == 0:
        raise KdalabError(
            f"{name} is {request.phase.value} and holds no state. Export a running request, or "
            "what it left in the cache"
        )
    recurrent, conv = engine.state_of(request)
    latent = engine.latents_of(request)
    return _sent(engine, request.known[: request.computed], latent, recurrent, conv, name, target)


def export_cached(
    engine: BlockEngine, tokens: Sequence[int], boundary: int | None = None, target: str = ""
) -> Exported:
    """A copy of what the cache holds for a prompt; as ``exchange.export_cached``.

    Raises:
        KdalabError: no state is cached there.
    """
    ids = admission.as_ids(tokens)
    end = len(ids) if boundary is None else boundary
    if not 1 <= end <= len(ids):
        raise KdalabError(f"boundary {end:,} of a prompt of {len(ids):,} tokens")
    lookup = _whole(engine, ids[:end])
    if lookup.restore == 0 or (boundary is not None and lookup.restore != boundary):
        raise KdalabError(
            f"the cache cannot restore this prompt at {end:,}: {'; '.join(lookup.why[:-1])}"
        )
    cache, n = engine.cache, lookup.restore
    lease = cache.acquire(lookup)
    try:
        rows = cache.requests[lease.id]
        held = {
            g: [*row, *([rows.borrowed[g]] if g in rows.borrowed else [])]
            for g, row in rows.kv.items()
        }
        tables = {g: np.array([b.id for b in row], dtype=np.int32) for g, row in held.items()}
        latent = engine.memory.gather(tables, n)
        running = [row.running for row in rows.states.values()]
        recurrent, conv = engine.memory.read_state([b.id for b in running if b is not None])
    finally:
        cache.release(lease, used=False)
    return _sent(engine, ids[:n], latent, recurrent, conv, "", target)


def install(engine: BlockEngine, tokens: Sequence[int], arrival: Arrival) -> bl.Installed | None:
    """Cache a prefix that was computed elsewhere; None when it is here already.

    It enters as a request that brings its state and generates nothing, so its blocks, names and
    events are those of every request.

    Raises:
        OutOfSlotsError: too few free blocks. Nothing is cached.
        KdalabError: a boundary off the unit of hashes or beyond the tokens, a state of another
            shape, or a mode that keeps or finds no such state. Nothing has changed.
    """
    ids, boundary, unit = admission.as_ids(tokens), arrival.boundary, engine.cache.sizes.unit
    if engine.cache.mode is not CacheMode.ALIGN or not engine.config.reuse:
        why = f"mode {engine.cache.mode}" if engine.config.reuse else "no reuse"
        raise KdalabError(
            f"a prefix enters blocks in cache mode align; with {why} nothing of one boundary alone "
            "is ever found"
        )
    if boundary % unit or not 0 < boundary <= len(ids):
        raise KdalabError(
            f"a state of {boundary:,} tokens for a prompt of {len(ids):,}: a cached prefix ends "
            f"within the prompt, at a multiple of the hash unit, {unit:,}"
        )
    if engine.cache.config.speculative:
        raise KdalabError(
            "a draft model reads the last unit of each match again, so a prefix whose latent KV "
            "ends with its state is never found; set eagle to False, or resume a request"
        )
    arrivals.check(engine, arrival)
    if _whole(engine, ids[:boundary]).restore == boundary:
        return None
    engine.check_fits(boundary, 0)
    key = PrefixKey.from_tokens(ids[:boundary], unit)
    chain = _tail_chain(engine, key)
    request = BlockRequest(engine.next_name(), ids[:boundary], 0, key, chain=chain, arrival=arrival)
    engine.requests[request.name] = request
    engine.emit(ev.Submitted(request.name, boundary, 0, request.tokens))
    batch = schedule.Batch(0)
    first = len(engine.events)
    with torch.inference_mode():
        if not schedule.admit(engine, batch, request):
            request.phase = Phase.CANCELLED
            engine.emit(ev.Cancelled(request.name))
            raise OutOfSlotsError(f"too few free blocks for a prefix of {boundary:,} tokens")
        engine.forward(batch.rows)
    engine.finish(request, "installed")
    return next(e for e in engine.events[first:] if isinstance(e, bl.Installed))


def receive(
    engine: BlockEngine,
    tokens: Sequence[int],
    arrival: Arrival,
    generated: Sequence[int] = (),
    max_new_tokens: int = 16,
    name: str | None = None,
    stop_tokens: Iterable[int] = (),
) -> BlockRequest:
    """Queue a request together with its state; as ``exchange.receive``.

    Raises:
        KdalabError: as ``BlockEngine.submit``; mode ``all``; a state of another shape, or one that
            cannot be gone on from. Nothing was taken.
    """
    ids, more = admission.as_ids(tokens), admission.as_ids(generated)
    stops = frozenset(admission.as_ids(stop_tokens, "stop_tokens"))
    name = name if name is not None else engine.next_name()
    admission.check_prompt(engine, ids, max_new_tokens, name)
    check_continues(engine, ids, more, arrival.boundary, max_new_tokens, stops)
    if engine.cache.mode is CacheMode.ALL:
        raise KdalabError(
            "cache mode all keeps a state at every block on the way, and what arrives has one: "
            "receive with mode align or none"
        )
    arrivals.check(engine, arrival)
    request = engine.submit(ids, max_new_tokens, name, stops)
    request.generated, request.arrival = list(more), arrival
    engine.emit(ex.Received(name, arrival.source, arrival.boundary, more, arrival.nbytes))
    return request


def _whole(engine: BlockEngine, ids: tuple[int, ...]) -> BlockLookup:
    """What the cache knows of all these tokens, the last one and a draft model's unit included."""
    cache = engine.cache
    reader = Reader(cache.groups, cache.sizes, cache.mode, cache.pool, 0)
    return reader.lookup(_tail_chain(engine, PrefixKey.from_tokens(ids, cache.sizes.unit)))


def _tail_chain(engine: BlockEngine, key: PrefixKey) -> HashChain:
    """Hashes of a prefix whose end is the last boundary that a prompt could use: one token more is
    to be computed."""
    longer = replace(key, n_tokens=key.n_tokens + 1)
    return HashChain(longer, engine.cache.sizes.unit, ExtraKeys(salt=""))


def _sent(
    engine: BlockEngine,
    tokens: tuple[int, ...],
    latent: torch.Tensor,
    recurrent: torch.Tensor,
    conv: torch.Tensor,
    request: str,
    target: str,
) -> Exported:
    """In pages [page, MLA layer, token in page, channel], zero beyond the boundary."""
    layers, n, dim = latent.shape
    pages = latent.new_zeros(-(-n // PAGE_TOKENS), layers, PAGE_TOKENS, dim)
    for i, page in enumerate(latent.split(PAGE_TOKENS, dim=1)):
        pages[i, :, : page.shape[1]] = page
    size = recurrent.nbytes + conv.nbytes
    engine.emit(ex.Sent(request, target, n, pages.nbytes, size))
    return Exported(tokens, pages, recurrent, conv)
