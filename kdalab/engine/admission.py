"""From the queue to a slot: look up, lock the hit, make room, copy the checkpoint."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from kdalab.cache import Bytes, Lease, Lookup
from kdalab.engine import events as ev
from kdalab.engine.request import Phase, Request
from kdalab.errors import KdalabError
from kdalab.memory import CACHE

if TYPE_CHECKING:
    from kdalab.engine.core import Engine


def pages_needed(engine: Engine, n_tokens: int, max_new_tokens: int) -> int:
    """Latent pages of a whole request: the last generated token is never fed back."""
    total = n_tokens + max(max_new_tokens - 1, 0)
    return -(-total // engine.config.page_tokens)


def as_ids(tokens: Sequence[int]) -> tuple[int, ...]:
    """Token ids as plain integers; text, fractions and other things are refused."""
    if isinstance(tokens, str | bytes | Mapping):
        raise KdalabError(f"tokens must be a list of ids, not {type(tokens).__name__}")
    try:
        return tuple(operator.index(t) for t in tokens)
    except TypeError:
        raise KdalabError(
            "tokens must be a list of whole numbers: the ids of a tokenizer"
        ) from None


def check_request(engine: Engine, tokens: tuple[int, ...], max_new_tokens: int, name: str) -> None:
    """Refuse what can never run, before anything is taken."""
    if type(max_new_tokens) is not int:
        raise KdalabError(f"max_new_tokens = {max_new_tokens!r}; it must be a whole number")
    if not isinstance(name, str):
        raise KdalabError(f"a request's name is text, not {name!r}")
    if not tokens:
        raise KdalabError("an empty prompt; give at least one token")
    vocab = engine.model.vocab_size
    wrong = [t for t in tokens if not 0 <= t < vocab]
    if wrong:
        raise KdalabError(f"token id {wrong[0]} is outside the vocabulary 0..{vocab - 1}")
    if max_new_tokens < 0:
        raise KdalabError(f"max_new_tokens = {max_new_tokens}; it must be 0 or more")
    if name in engine.requests:
        raise KdalabError(f"a request named {name!r} exists already; choose another name")
    if not name or name == CACHE:
        raise KdalabError(f"a request cannot be named {name!r}")
    pages, limit = pages_needed(engine, len(tokens), max_new_tokens), engine.config.n_pages
    if pages > limit:
        raise KdalabError(
            f"the prompt of {len(tokens):,} tokens and {max_new_tokens:,} new ones need "
            f"{pages:,} latent pages of {engine.config.page_tokens} tokens; the pool has "
            f"{limit:,}. Shorten the prompt or raise n_pages"
        )


def admit_waiting(engine: Engine) -> None:
    """Admit from the head of the queue while there is room; first come, first served."""
    while engine.waiting and engine.active.slots.n_free:
        if not _admit(engine, engine.waiting[0]):
            return
        engine.waiting.popleft()


def _admit(engine: Engine, request: Request) -> bool:
    lookup = engine.cache.lookup(request.key) if engine.config.reuse else None
    # Lock the hit before making room, or the eviction could take what was just found.
    lease = engine.cache.acquire(lookup) if lookup is not None else None
    shared = lease.pages if lease is not None else ()
    wanted = pages_needed(engine, request.n_tokens, request.max_new_tokens) - len(shared)
    short = wanted - engine.latents.slots.n_free
    if short > engine.cache.evictable_pages:
        if lease is not None:
            engine.give_back(engine.cache.release(lease), request.name, "no reader left")
        return False
    if lookup is not None:
        _say_match(engine, request, lookup)
    if short > 0:
        room = engine.cache.evict(Bytes(kv=short * engine.latents.page_bytes))
        engine.give_back(room, request.name, f"latent pages for {request.name}")
    own = engine.latents.slots.allocate(request.name, wanted)
    slot = engine.active.allocate(request.name)
    request.lookup, request.lease, request.active_slot = lookup, lease, slot
    request.pages = [*shared, *own]
    request.computed = lease.boundary if lease is not None else 0
    request.phase = Phase.PREFILL
    engine.running.append(request)
    node = lease.node if lease is not None else 0
    engine.emit(ev.Admitted(request.name, slot, node, request.computed, tuple(shared), own))
    _start_state(engine, request, lease)
    if lookup is not None:
        request.boundaries = engine.config.placement.boundaries(
            request.n_tokens, lookup.restore, lookup.branching, engine.config.grid
        )
    return True


def _say_match(engine: Engine, request: Request, lookup: Lookup) -> None:
    from kdalab.spec import StateKind

    engine.emit(
        ev.Matched(
            request.name,
            lookup.token_match,
            lookup.restore,
            lookup.replay,
            lookup.branching,
            lookup.reach[StateKind.MLA_KV],
            lookup.reach[StateKind.KDA_RECURRENT],
            lookup.path,
            lookup.binding,
            lookup.why,
        )
    )
    if lookup.restore < lookup.token_match:
        engine.emit(ev.FellBack(request.name, lookup.token_match, lookup.restore, lookup.binding))


def _start_state(engine: Engine, request: Request, lease: Lease | None) -> None:
    """Give the request its private state: a copy of the checkpoint, or zeros."""
    name, slot = request.name, request.active_slot
    if lease is None or lease.state is None:
        engine.active.clear(slot, name)
        engine.emit(ev.Cleared(name, slot))
        return
    engine.checkpoints.load(lease.state, engine.active, slot, name)
    engine.emit(
        ev.CopiedOnWrite(
            name, lease.state.slot, slot, lease.boundary, engine.checkpoints.slot_bytes
        )
    )
    engine.cache.unlock_state(lease)
    faults = engine.config.faults
    if faults.drop_conv:
        recurrent, conv = engine.active.read(slot)
        engine.active.write(slot, recurrent, torch.zeros_like(conv), name)
        engine.emit(
            ev.FaultInjected(name, "drop_conv", "the conv state is left behind at the restore.")
        )
    if faults.skip_replay and request.token_match > lease.boundary:
        request.stale_state = engine.active.read(slot)
