"""From a private state to a checkpoint in the tree: by a copy, or by giving the slot away.

Whatever fails on the way, the slot, the pages and the lease stay with the request: the boundary is
skipped and the request goes on. Only a state that is no number is its own request's end.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from kdalab.cache import Committed, PrefixKey
from kdalab.cache.eviction import account
from kdalab.engine import events as ev
from kdalab.engine import room
from kdalab.engine.failures import FAILURES, named
from kdalab.engine.request import Request
from kdalab.engine.strategy import Strategy
from kdalab.errors import NotFiniteError
from kdalab.memory import CACHE
from kdalab.spec.checkpoint import Checkpoint

if TYPE_CHECKING:
    from kdalab.engine.core import Engine


def in_prefill(engine: Engine, request: Request, boundary: int) -> None:
    """The prompt has been computed to ``boundary``: the state there enters the tree at once.

    Raises:
        NotFiniteError: the state there is no state. Nothing was taken.
    """
    if request.lease is None:
        return
    if engine.config.how.donates and not engine.config.int8:
        _or_skip(engine, request, boundary, lambda: _donate_and_go_on(engine, request, boundary))
    else:
        slot = request.active_slot
        _or_skip(engine, request, boundary, lambda: _copy_out(engine, request, slot, boundary))


def in_decode(engine: Engine, request: Request) -> None:
    """One more token has been computed: if that is a boundary of the interval, keep its state.

    A copy enters the tree at once. A donating request keeps the slot for itself until it ends,
    and then gives away the last that it kept.

    Raises:
        NotFiniteError: the state there is no state. Nothing was taken.
    """
    at = request.computed
    if not engine.config.keeps_decoded(at) or request.lease is None or engine.config.faults.active:
        return
    if at <= request.lease.boundary:
        return  # a resumed request passes what it has left in the tree itself
    if engine.config.how.donates:
        _or_skip(engine, request, at, lambda: _keep(engine, request, at))
    else:
        slot = request.active_slot
        _or_skip(engine, request, at, lambda: _copy_out(engine, request, slot, at))


def at_end(engine: Engine, request: Request) -> None:
    """The request stops running: its kept state enters the tree, cut to that boundary."""
    slot, boundary = request.kept_slot, request.kept_boundary
    if slot < 0 or request.lease is None:
        return
    # Quantised, a copy is left and the donor is freed with the rest.
    leave = _copy_out if engine.config.int8 else _give_kept
    try:
        _or_skip(engine, request, boundary, lambda: leave(engine, request, slot, boundary))
    except NotFiniteError as error:  # it ends anyway
        engine.emit(ev.SnapshotSkipped(request.name, boundary, str(error)))


def _or_skip(engine: Engine, request: Request, boundary: int, leave: Callable[[], None]) -> None:
    """Leave a checkpoint; where that fails, say so and do without."""
    try:
        leave()
    except NotFiniteError:
        raise
    except FAILURES as error:
        engine.emit(ev.SnapshotSkipped(request.name, boundary, named(error)))


def _give_kept(engine: Engine, request: Request, slot: int, boundary: int) -> None:
    """Donate the slot that was kept at ``boundary``."""
    done = _donate(engine, request, slot, boundary)
    if not done.state_existed:
        request.kept_slot, request.source_slot = -1, -1
        engine.emit(ev.Donated(request.name, slot, request.active_slot, boundary))
    _say_inserted(engine, request, boundary, slot, done)


def take_spare(engine: Engine, request: Request, count: int = 1) -> bool:
    """See that the request has ``count`` spare slots; False when no more can be had."""
    if len(request.spare_slots) >= count:
        return True
    if not room.make(engine, 0, 1, request.name, f"a spare slot for {request.name}"):
        return False
    slot = engine.active.allocate(request.name)
    request.spare_slots.append(slot)
    engine.emit(ev.SpareTaken(request.name, slot))
    return take_spare(engine, request, count)


def _donate_and_go_on(engine: Engine, request: Request, boundary: int) -> None:
    """Give the active slot away; the next forward reads from there and writes into the spare."""
    if not take_spare(engine, request):
        engine.emit(ev.SnapshotSkipped(request.name, boundary))
        return
    slot = request.active_slot
    done = _donate(engine, request, slot, boundary)
    if not done.state_existed:
        engine.cache.lock_state(done.lease)  # until the next forward has read it
        request.active_slot, request.source_slot = request.spare_slots.pop(0), slot
        engine.emit(ev.Donated(request.name, slot, request.active_slot, boundary))
    _say_inserted(engine, request, boundary, slot, done)
    if engine.config.how is Strategy.EXTRA_BUFFER:
        # If none can be had now, the next boundary asks again.
        with suppress(*FAILURES):
            take_spare(engine, request, engine.config.held_slots - 1)


def _donate(engine: Engine, request: Request, slot: int, boundary: int) -> Committed:
    """Turn ``slot`` into a checkpoint and enter it; it stays the request's if that fails, or if
    the tree has a state there already."""
    _check_finite(engine, request, slot)
    given = engine.checkpoints.adopt(slot, boundary, request.name)
    try:
        done = _commit(engine, request, given)
    except BaseException:
        engine.checkpoints.unseal(given, request.name)
        raise
    if done.state_existed:
        engine.checkpoints.unseal(given, request.name)
    return done


def _keep(engine: Engine, request: Request, boundary: int) -> None:
    """Leave the state where it is and go on in a spare slot. The older kept one is superseded."""
    lazy = engine.config.how is Strategy.LAZY
    old = request.kept_slot
    reusable = old if not lazy else -1  # the forward that read it has long ended
    if not take_spare(engine, request):
        if reusable < 0:
            engine.emit(ev.SnapshotSkipped(request.name, boundary))
            return
        request.spare_slots.append(reusable)
        old = -1
    request.kept_slot, request.kept_boundary = request.active_slot, boundary
    request.active_slot = request.spare_slots.pop(0)
    request.source_slot = request.kept_slot
    freed = old if lazy and old >= 0 else -1
    if freed >= 0:
        engine.active.free(freed, request.name)
    elif old >= 0:
        request.spare_slots.append(old)
    engine.emit(ev.Tracked(request.name, request.kept_slot, request.active_slot, boundary, freed))


def _copy_out(engine: Engine, request: Request, slot: int, boundary: int) -> None:
    """Freeze a copy of ``slot`` at ``boundary`` and enter it into the tree with its pages."""
    if not room.make_checkpoint(engine, request.name):
        engine.emit(ev.SnapshotSkipped(request.name, boundary))
        return
    checkpoint = engine.checkpoints.store(engine.active, slot, boundary, request.name)
    try:
        done = _commit(engine, request, checkpoint)
    except BaseException:
        engine.checkpoints.free([checkpoint.slot])
        raise
    error = engine.checkpoints.last_error
    size = engine.checkpoints.slot_bytes
    engine.emit(ev.Snapshotted(request.name, slot, checkpoint.slot, boundary, size, error))
    if done.state_existed:
        engine.checkpoints.free([checkpoint.slot])
    _say_inserted(engine, request, boundary, checkpoint.slot, done)


def _commit(engine: Engine, request: Request, checkpoint: Checkpoint) -> Committed:
    """Enter the prefix that ends at the checkpoint; pages and lease move to the cache."""
    assert request.lease is not None
    name, boundary = request.name, checkpoint.boundary
    key = request.key
    if boundary > request.n_tokens:
        key = PrefixKey.from_tokens(request.known[:boundary], engine.config.page_tokens)
    own = request.pages[request.n_shared : boundary // engine.config.page_tokens]
    done = engine.cache.commit(request.lease, key, own, checkpoint)
    engine.latents.free(done.duplicate_pages, name)
    engine.latents.slots.transfer(own[len(done.duplicate_pages) :], name, CACHE)
    request.lease = done.lease
    request.pages[: len(done.lease.pages)] = done.lease.pages
    return done


def _say_inserted(
    engine: Engine, request: Request, boundary: int, slot: int, done: Committed
) -> None:
    engine.emit(
        ev.Inserted(
            request.name,
            done.lease.node,
            boundary,
            slot,
            tuple(done.lease.pages),
            done.duplicate_pages,
            done.state_existed,
            done.changes,
        )
    )
    cache = engine.cache
    capped = account(cache.page_bytes, cache.checkpoint_bytes, done.dropped)
    engine.give_back(capped, request.name, "the cap of states a path")


def _check_finite(engine: Engine, request: Request, slot: int) -> None:
    """A donation looks at no byte. Where memory is poisoned, for tests, it is looked at all the
    same."""
    if engine.config.poison and not engine.active.is_finite(slot):
        raise NotFiniteError(f"slot {slot} of {request.name} holds no finite state to donate")
