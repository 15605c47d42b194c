"""Room for pages and state slots: what is free, what could be, and the eviction that makes it so.

With split memory each kind makes room for itself. In a unified buffer the need is in bytes, and
whichever kind was used longest ago gives them: asked in its own slots, a side full of cached
bytes would never yield any to the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kdalab.cache import Bytes

if TYPE_CHECKING:
    from kdalab.engine.core import Engine


def fits(engine: Engine, pages: int, states: int) -> bool:
    """Whether so many pages and active slots are free, or could be after an eviction."""
    cache = engine.cache
    if engine.buffer is not None:
        could = cache.evictable_pages * engine.buffer.pages.entry_bytes
        could += cache.evictable_states * engine.buffer.states.entry_bytes
        return engine.buffer.missing(pages, states) <= could
    slots = engine.active.slots.n_free
    if engine.config.shares_states:
        slots += cache.evictable_states
    return pages <= engine.latents.slots.n_free + cache.evictable_pages and states <= slots


def make(engine: Engine, pages: int, states: int, request: str, reason: str) -> bool:
    """Evict until so many pages and active slots are free; False when that cannot be done."""
    if engine.buffer is not None:
        missing = engine.buffer.missing(pages, states)
        while missing:
            room = engine.cache.evict(Bytes(either=missing))
            engine.give_back(room, request, reason)
            if not room.dropped:
                return False
            missing = engine.buffer.missing(pages, states)
        return True
    short = pages - engine.latents.slots.n_free
    slots = states - engine.active.slots.n_free if engine.config.shares_states else 0
    if short > 0 or slots > 0:
        need = Bytes(
            kv=max(0, short) * engine.latents.page_bytes,
            state=max(0, slots) * engine.checkpoints.slot_bytes,
        )
        engine.give_back(engine.cache.evict(need), request, reason)
    return pages <= engine.latents.slots.n_free and states <= engine.active.slots.n_free


def make_checkpoint(engine: Engine, request: str) -> bool:
    """Make one checkpoint slot free, in the pool that checkpoints live in."""
    reason = f"a checkpoint slot for {request}"
    if engine.config.shares_states:
        return make(engine, 0, 1, request, reason)
    if not engine.checkpoints.slots.n_free:
        room = engine.cache.evict(Bytes(state=engine.checkpoints.slot_bytes))
        engine.give_back(room, request, reason)
    return engine.checkpoints.slots.n_free > 0


def make_for_cache(engine: Engine, pages: int, state: bool, request: str, reason: str) -> bool:
    """Make room for pages and a checkpoint that the cache will hold; False when that cannot be."""
    if engine.config.shares_states:
        return make(engine, pages, int(state), request, reason)
    return (not state or make_checkpoint(engine, request)) and make(
        engine, pages, 0, request, reason
    )


def for_checkpoints(engine: Engine) -> int:
    """Checkpoints that could be taken now, if everything that can be evicted were."""
    count = engine.checkpoints.slots.n_free + engine.cache.evictable_states
    if engine.buffer is not None:
        pages = engine.cache.evictable_pages * engine.buffer.pages.entry_bytes
        count += pages // engine.buffer.states.entry_bytes
    if engine.config.shares_states:
        held = engine.config.held_slots  # spares that running requests still have to get
        count -= sum(held - len(r.slots) for r in engine.running)
    return max(0, count)


def states_to_admit(engine: Engine) -> int:
    """Active slots that must be free or evictable before one more request may start.

    Its own, and where cached states share the pool also one that is on its way into the cache,
    for it and for every request that runs: counting only the first of them lets requests in that
    can then never leave a checkpoint.
    """
    own = engine.config.held_slots
    if not engine.config.shares_states:
        return own
    owed = sum(own + 1 - len(r.slots) for r in engine.running)
    return own + 1 + owed
