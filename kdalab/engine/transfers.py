"""Copies between the device and the host: what is hot goes down, what a prompt needs comes back.

The cache decides (``kdalab.cache.host``); this is the mover that it speaks of. A transfer takes
its targets and its locks in one step, flies while that step computes, and lands at the start of
the next: only then are the bytes copied, so whatever the locks did not hold would show as poison.

* A node that enough requests have used is copied down (write-through).
* A request whose prompt the host knows further than the device waits at the head of the queue
  for one step, while every missing page and the last state come back (load-back). It asks once; if
  there is no room for the load, it starts from what the device has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kdalab.cache import Bytes, HostTier, Lookup, Transfer, Wish
from kdalab.cache.transfers import Direction
from kdalab.engine import room
from kdalab.engine import transfer_events as ev
from kdalab.engine.failures import FAILURES, named
from kdalab.engine.request import Request
from kdalab.memory.host import Level, copy_between

if TYPE_CHECKING:
    from kdalab.engine.core import Engine


def land(engine: Engine) -> None:
    """Copy and acknowledge everything that is under way."""
    tier = engine.cache.host
    for flight in list(tier.flights.values()) if tier is not None else ():
        try:
            _copy(engine, flight.job)
        except (OSError, *FAILURES) as error:  # the mover's trouble, not the engine's
            fail(engine, flight.job, named(error))
        else:
            _acknowledge(engine, flight.job)


def back_up(engine: Engine) -> None:
    """Start a copy of every node that is due and fits the host."""
    tier, tried = engine.cache.host, set[int]()
    while tier is not None:
        wish = next((w for w in tier.due() if w.node not in tried), None)
        if wish is None:
            return
        tried.add(wish.node)
        _start_backup(engine, tier, wish)


def load_first(engine: Engine, request: Request, lookup: Lookup, pages: int) -> bool:
    """Start to bring back what the host knows of the request's prompt; True if it has to wait.

    Args:
        pages: latent pages that the request needs beside those it shares now.
    """
    tier = engine.cache.host
    wish = tier.wanted_for(lookup) if tier is not None and not request.load else None
    if tier is None or wish is None:
        return False
    # The state that is loaded will be locked when the request starts: it must fit beside it.
    if not room.fits(engine, pages, room.states_to_admit(engine) + int(wish.state)):
        return False
    boundary = wish.boundary
    try:
        wish = _make_room(engine, tier, request, lookup, wish)
        if wish is None:
            return False
        targets = engine.device.reserve(wish.pages, wish.state)
        try:
            job = tier.start_load(lookup, *targets)
        except BaseException:
            engine.device.discard(*targets)
            raise
    except FAILURES as error:
        engine.emit(ev.LoadSkipped(request.name, boundary, named(error)))
        return False
    request.load = job.id
    size = _size(engine, job)
    engine.emit(ev.LoadStarted(request.name, job.id, job.node, job.boundary, *_targets(job), size))
    return True


def _make_room(
    engine: Engine, tier: HostTier, request: Request, lookup: Lookup, wish: Wish
) -> Wish | None:
    """Room on the device for a load. Making it may take more of that very prefix from the device:
    returns the wish as it is then, or None when there is no room or nothing to load any more."""
    reason = f"what the host holds for {request.name}"
    while room.make_for_cache(engine, wish.pages, wish.state, request.name, reason):
        again = tier.wanted_for(lookup)
        if again is None or again == wish:
            return again
        wish = again
    return None


def cancel(engine: Engine, request: Request) -> None:
    """The request does not wait for its load any more."""
    tier = engine.cache.host
    if tier is not None and request.load in tier.flights:
        fail(engine, tier.flights[request.load].job, f"{request.name} no longer waits for it")


def fail(engine: Engine, job: Transfer, reason: str) -> None:
    """Give a transfer up: locks and targets go back, and nothing else has changed."""
    tier = engine.cache.host
    assert tier is not None
    released = tier.fail(job.id)
    _levels(engine, job)[1].discard(*_targets(job))
    waiting = _request_of(engine, job)
    pages, state = _targets(job)
    engine.emit(ev.TransferFailed(waiting, job.id, job.direction.value, pages, state, reason))
    engine.give_back(released, waiting, f"{job.direction} {job.id} was its last reader")


def _start_backup(engine: Engine, tier: HostTier, wish: Wish) -> None:
    assert engine.host is not None
    assert engine.config.host is not None
    whole = wish.boundary // engine.config.page_tokens
    if whole > engine.config.host.n_pages:
        _skip(engine, tier, wish, f"its {whole:,} pages exceed {engine.config.host.n_pages:,}")
        return
    tier.use(engine.cache.nodes[wish.node])  # what the copy would hang below is not to go for it
    try:
        short = wish.pages - engine.host.latents.slots.n_free
        full = wish.state and not engine.host.checkpoints.slots.n_free
        if short > 0 or full:
            cache = engine.cache
            need = Bytes(
                kv=max(0, short) * cache.page_bytes, state=int(full) * cache.checkpoint_bytes
            )
            engine.give_back(tier.evict(need), "", f"a copy of node {wish.node} on the host")
        if wish not in tier.due() or not engine.host.has_room(wish.pages, wish.state):
            _skip(engine, tier, wish, "what the host holds is in use")
            return
        targets = engine.host.reserve(wish.pages, wish.state)
        try:
            job = tier.start_backup(wish.node, *targets)
        except BaseException:
            engine.host.discard(*targets)
            raise
    except FAILURES as error:
        _skip(engine, tier, wish, named(error))
        return
    size = _size(engine, job)
    engine.emit(ev.BackupStarted("", job.id, job.node, job.boundary, *_targets(job), size))


def _skip(engine: Engine, tier: HostTier, wish: Wish, reason: str) -> None:
    tier.dismiss(wish.node)
    engine.emit(ev.BackupSkipped("", wish.node, wish.boundary, reason))


def _copy(engine: Engine, job: Transfer) -> None:
    # A unified buffer hands out addresses here, so nothing in it may move meanwhile.
    with engine.hold_moves(f"{job.direction} {job.id}"):
        copy_between(*_levels(engine, job), (job.sources, job.targets), job.state)


def _acknowledge(engine: Engine, job: Transfer) -> None:
    tier = engine.cache.host
    assert tier is not None
    size, waiting = _size(engine, job), _request_of(engine, job)
    landed = tier.ack(job.id)
    _, target = _levels(engine, job)
    pages, slot = _targets(job)
    spare = set(landed.duplicate_pages)
    unused = slot if landed.state_existed else None
    target.accept(
        [p for p in pages if p not in spare],
        None if landed.state_existed else slot,
        job.boundary,
    )
    target.discard(landed.duplicate_pages, unused)
    at = waiting, job.id, job.node, job.boundary, landed.changes
    if job.direction is Direction.BACKUP:
        engine.emit(ev.BackedUp(*at, size))
    else:
        engine.emit(ev.Loaded(*at, landed.duplicate_pages, unused, size))
    engine.give_back(landed.evicted, waiting, f"{job.direction} {job.id} was its last reader")


def _levels(engine: Engine, job: Transfer) -> tuple[Level, Level]:
    """(source, target)."""
    assert engine.host is not None
    down = job.direction is Direction.BACKUP
    return (engine.device, engine.host) if down else (engine.host, engine.device)


def _targets(job: Transfer) -> tuple[tuple[int, ...], int | None]:
    return job.targets, None if job.state is None else job.state[1]


def _size(engine: Engine, job: Transfer) -> int:
    return engine.device.bytes_of(len(job.targets), int(job.state is not None))


def _request_of(engine: Engine, job: Transfer) -> str:
    """Who waits for a load; "" for a backup."""
    return next((r.name for r in engine.waiting if r.load == job.id), "")
