"""State that comes from another instance: into the tree, or into a request that brought it.

Before a prompt is computed, ``fetch_first`` asks ``Engine.remote`` whether another instance can
restore it farther than the tree can; what comes is entered into the tree, as if it had been
computed here. A request that brings its state (``exchange.receive``) has it written when it is
admitted, into what it owns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch

from kdalab.cache import Checkpoint, Lease, Lookup, PrefixKey
from kdalab.cache.eviction import account
from kdalab.engine import checkpointing, room
from kdalab.engine import exchange_events as ex
from kdalab.engine.request import Request
from kdalab.errors import KdalabError, OutOfSlotsError
from kdalab.memory.arrivals import check_state, fill_checkpoint
from kdalab.memory.slots import IN_FLIGHT
from kdalab.spec import StateKind

if TYPE_CHECKING:
    from kdalab.engine.core import Engine


@dataclass(frozen=True, eq=False, slots=True)
class Arrival:
    """The whole state after ``boundary`` tokens, in this engine's layout.

    Shapes: ``latent`` [MLA layer, boundary tokens, latent | rope channel]; ``recurrent``
    [KDA layer, value head, V, K]; ``conv`` [KDA layer, W-1 inputs, q|k|v channel].
    """

    boundary: int
    latent: torch.Tensor
    recurrent: torch.Tensor
    conv: torch.Tensor
    source: str = ""

    @property
    def nbytes(self) -> int:
        """Bytes of all three."""
        return self.latent.nbytes + self.recurrent.nbytes + self.conv.nbytes


class Offer(NamedTuple):
    """What another instance can restore of a prompt."""

    source: str
    boundary: int
    handle: object = None


class Remote(Protocol):
    """Other instances, as the engine asks them before it computes a prompt."""

    def find(self, tokens: Sequence[int], beyond: int, last: int) -> Offer | None:
        """The farthest boundary in (beyond, last] that one source can restore as a whole."""
        ...

    def fetch(self, offer: Offer) -> Arrival:
        """The state of an offer.

        Raises:
            KdalabError: it is refused, damaged or gone.
            OSError: the way to it is broken.
        """
        ...


def enter_prefix(
    engine: Engine, ids: tuple[int, ...], arrival: Arrival, request: str = ""
) -> ex.Fetched | None:
    """Enter a prefix that was computed elsewhere into the tree; None when it is there already.

    Args:
        ids: tokens that begin with the prefix; those beyond the boundary are not looked at.
        request: for which it was fetched, "" for none.

    Raises:
        OutOfSlotsError: no room, even after an eviction.
        KdalabError: a boundary off the grid or beyond the tokens, or a state of another shape.
            Nothing has changed, but for what was evicted.
    """
    boundary, grid = arrival.boundary, engine.config.grid
    if boundary % grid or not 0 < boundary <= len(ids):
        raise KdalabError(
            f"a state of {boundary:,} tokens for a prompt of {len(ids):,}: a cached prefix ends "
            f"within the prompt, at a multiple of {grid:,}"
        )
    check_arrival(engine, arrival)
    key = PrefixKey.from_tokens(ids[:boundary], engine.config.page_tokens)
    lookup = engine.cache.lookup(key)
    if lookup.reach[StateKind.KDA_RECURRENT] == boundary:
        return None
    lease = engine.cache.acquire(lookup)
    wanted = (boundary - lease.boundary) // engine.config.page_tokens
    reason = f"what is fetched from {arrival.source or 'elsewhere'}"
    try:
        if not room.make_for_cache(engine, wanted, True, request, reason):
            raise OutOfSlotsError(
                f"no room for {wanted:,} latent pages and a checkpoint: what is cached is in use"
            )
        pages, slot = engine.device.reserve(wanted, True)
    except BaseException:
        release_unused(engine, lease)
        raise
    assert slot is not None
    _write_prefix(engine, arrival, lease, pages, slot)
    return _enter(engine, arrival, key, lease, pages, slot, request)


def starts_at(request: Request, lease: Lease | None) -> int:
    """Tokens that an admitted request has behind it. A state that reaches no farther than the
    tree does is not needed any more."""
    local = lease.boundary if lease is not None else 0
    if request.arrival is not None and request.arrival.boundary <= local:
        request.arrival = None
    return request.arrival.boundary if request.arrival is not None else local


def seat(engine: Engine, request: Request) -> None:
    """Write the state that an admitted request brought into its private slot and pages."""
    arrival, request.arrival = request.arrival, None
    assert arrival is not None
    start = request.lease.boundary if request.lease is not None else 0
    latent = arrival.latent[:, start : arrival.boundary]
    engine.latents.write(request.pages, start, latent, request.name)
    engine.active.write(request.active_slot, arrival.recurrent, arrival.conv, request.name)
    if request.lease is not None:
        engine.cache.unlock_state(request.lease)
    engine.emit(ex.Installed(request.name, request.active_slot, arrival.boundary, arrival.nbytes))


def keep(engine: Engine, request: Request) -> None:
    """The state that a request brought enters the tree, where the placement wants one."""
    if request.computed in request.boundaries:
        checkpointing.in_prefill(engine, request, request.computed)


def fetch_first(engine: Engine, request: Request, lookup: Lookup, pages: int) -> bool:
    """Ask the other instances, once for each request; True when the tree now knows more.

    Args:
        lookup: what the tree can restore.
        pages: latent pages that the request needs beside those it would share now.
    """
    if engine.remote is None or request.fetched or request.arrival is not None:
        return False
    request.fetched = True
    # A request that was retracted restores within its prompt: what it generated was decoded, and
    # others may have prefilled the same text.
    tokens, beyond = request.tokens, max(lookup.restore, lookup.host_restore or 0)
    last = len(tokens) - (not request.generated)
    offer = None
    try:
        offer = engine.remote.find(tokens, beyond, last)
        if offer is None:
            return False
        # The checkpoint that comes will be locked when the request starts: it must fit beside it.
        if not room.fits(engine, pages, room.states_to_admit(engine) + 1):
            raise OutOfSlotsError("no room for it beside the request itself")
        return enter_prefix(engine, tokens, engine.remote.fetch(offer), request.name) is not None
    except (KdalabError, OSError) as error:  # the prompt is computed here, then
        source, boundary = (offer.source, offer.boundary) if offer else ("other instances", 0)
        engine.emit(ex.FetchFailed(request.name, source, boundary, str(error)))
        return False


def check_arrival(engine: Engine, arrival: Arrival) -> None:
    """Refuse a state whose shapes or dtypes are not this engine's, or that is not finite."""
    check_state(engine.active, arrival.recurrent, arrival.conv)
    _, layers, _, dim = engine.latents.data.shape
    want, dtype = (layers, arrival.boundary, dim), engine.latents.data.dtype
    if tuple(arrival.latent.shape) != want or arrival.latent.dtype != dtype:
        raise KdalabError(
            f"latent KV {list(arrival.latent.shape)} of {arrival.latent.dtype} has arrived; "
            f"expected {list(want)} of {dtype}"
        )
    if not bool(arrival.latent.isfinite().all()):
        raise KdalabError("the latent KV that has arrived is not finite")


def _write_prefix(
    engine: Engine, arrival: Arrival, lease: Lease, pages: tuple[int, ...], slot: int
) -> None:
    """The bytes, into what the transfer holds; all of it goes back when that fails."""
    try:
        rest = arrival.latent[:, lease.boundary : arrival.boundary]
        engine.latents.write([*lease.pages, *pages], lease.boundary, rest, IN_FLIGHT)
        fill_checkpoint(engine.checkpoints, slot, arrival.recurrent, arrival.conv)
    except BaseException:
        engine.device.discard(pages, slot)
        release_unused(engine, lease)
        raise


def _enter(
    engine: Engine,
    arrival: Arrival,
    key: PrefixKey,
    lease: Lease,
    pages: tuple[int, ...],
    slot: int,
    request: str,
) -> ex.Fetched:
    cache, boundary = engine.cache, arrival.boundary
    done = cache.commit(lease, key, pages, Checkpoint(slot, boundary))
    spare = set(done.duplicate_pages)
    mine = [p for p in pages if p not in spare]
    engine.device.accept(mine, None if done.state_existed else slot, boundary)
    engine.device.discard(done.duplicate_pages, slot if done.state_existed else None)
    event = ex.Fetched(
        request,
        arrival.source,
        done.lease.node,
        boundary,
        slot,
        done.changes,
        done.duplicate_pages,
        done.state_existed,
        arrival.nbytes,
    )
    engine.emit(event)
    capped = account(cache.page_bytes, cache.checkpoint_bytes, done.dropped)
    engine.give_back(capped, request, "the cap of states a path")
    release_unused(engine, done.lease)
    return event


def release_unused(engine: Engine, lease: Lease) -> None:
    """Give back a lease that no request of this engine has used."""
    released = engine.cache.release(lease, used=False)
    engine.give_back(released, "", "its last reader has left")
