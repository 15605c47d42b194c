"""From the queue to a slot: look up, lock the hit, make room, say what the state begins with."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from kdalab.cache import Lease, Lookup, PrefixKey
from kdalab.cache.placement import Extends, Fork
from kdalab.engine import arrivals, room, transfers
from kdalab.engine import events as ev
from kdalab.engine.config import MOST
from kdalab.engine.failures import FAILURES, named
from kdalab.engine.request import Phase, Request, Start
from kdalab.errors import KdalabError, shown
from kdalab.memory.slots import CACHE, IN_FLIGHT

if TYPE_CHECKING:
    from kdalab.engine.base import BaseEngine
    from kdalab.engine.core import Engine
    from kdalab.engine.media import Media


def pages_needed(engine: Engine, n_tokens: int, max_new_tokens: int) -> int:
    """Latent pages of a whole request: the last generated token is never fed back."""
    total = n_tokens + max(max_new_tokens - 1, 0)
    return -(-total // engine.config.page_tokens)


def as_ids(tokens: Iterable[int], what: str = "tokens") -> tuple[int, ...]:
    """Token ids as plain integers; text, fractions and other things are refused."""
    if isinstance(tokens, str | bytes | Mapping):
        raise KdalabError(f"{what} must be a list of ids, not {type(tokens).__name__}")
    try:
        return tuple(map(operator.index, tokens))
    except TypeError:
        raise KdalabError(
            f"{what} must be a list of whole numbers: the ids of a tokenizer"
        ) from None


def check_prompt(
    engine: BaseEngine,
    tokens: tuple[int, ...],
    max_new_tokens: int,
    name: str,
    media: Media | None = None,
) -> None:
    """Refuse what no engine can run, before anything is taken."""
    if type(max_new_tokens) is not int:
        raise KdalabError(f"max_new_tokens = {shown(max_new_tokens)}; it must be a whole number")
    if not isinstance(name, str):
        raise KdalabError(f"a request's name is text, not {shown(name)}")
    if not tokens:
        raise KdalabError("an empty prompt; give at least one token")
    vocab = engine.model.vocab_size
    if media is not None:
        model = engine.model
        tokens = media.check(tokens, vocab, model.config.hidden_size, model.dtype)
    if min(tokens) < 0 or max(tokens) >= vocab:
        wrong = next(t for t in tokens if not 0 <= t < vocab)
        raise KdalabError(f"token id {shown(wrong)} is outside the vocabulary 0..{vocab - 1}")
    if max_new_tokens < 0:
        raise KdalabError(f"max_new_tokens = {shown(max_new_tokens)}; it must be 0 or more")
    if max_new_tokens > MOST:
        raise KdalabError(f"max_new_tokens = {shown(max_new_tokens)}; it must be at most {MOST:,}")
    if name in engine.requests:
        raise KdalabError(f"a request named {shown(name)} exists already; choose another name")
    if not name or name in (CACHE, IN_FLIGHT):
        raise KdalabError(f"a request cannot be named {shown(name)}")


def check_request(
    engine: Engine,
    tokens: tuple[int, ...],
    max_new_tokens: int,
    name: str,
    media: Media | None = None,
) -> None:
    """Refuse what can never run in these pools, before anything is taken."""
    check_prompt(engine, tokens, max_new_tokens, name, media)
    pages, limit = pages_needed(engine, len(tokens), max_new_tokens), engine.page_limit
    if pages > limit:
        raise KdalabError(
            f"the prompt of {len(tokens):,} tokens and {max_new_tokens:,} new ones need "
            f"{pages:,} latent pages of {engine.config.page_tokens} tokens; the pool has "
            f"{limit:,}. Shorten the prompt or raise n_pages"
        )


def admit_waiting(engine: Engine) -> None:
    """Admit from the head of the queue while there is room; first come, first served. One that
    cannot be admitted for a failure ends with it."""
    while engine.waiting and len(engine.running) < engine.config.running_limit:
        request = engine.waiting[0]
        try:
            if not _admit(engine, request):
                return
        except FAILURES as error:
            engine.refuse(request, f"failed: {named(error)}")
        else:
            engine.waiting.popleft()


def _admit(engine: Engine, request: Request) -> bool:
    """Take all that the request needs to start; False, or a failure, and nothing is taken."""
    lookup = engine.cache.lookup(_key(engine, request)) if engine.config.reuse else None
    # Lock the hit before making room, or the eviction could take what was just found.
    lease = engine.cache.acquire(lookup) if lookup is not None else None
    try:
        admitted = _start(engine, request, lookup, lease)
    except BaseException:
        _let_go(engine, request, lease)
        raise
    if not admitted:
        _let_go(engine, request, lease)
    if admitted is None:
        return _admit(engine, request)  # the tree knows more now, and nobody is asked twice
    return admitted


def _key(engine: Engine, request: Request) -> PrefixKey:
    """What is looked up.

    A request that was retracted had decoded what it generated. States that another request
    prefilled over that text would differ in the last bits, so it restores within its prompt (one
    token beyond counts as the one to compute). With a decode interval its own decoded states
    are in the tree, and all that it knows is looked up.
    """
    if not request.generated:
        return request.key
    if engine.config.decode_interval is None:
        return replace(request.key, n_tokens=request.n_tokens + 1)
    return PrefixKey.from_tokens(request.known, engine.config.page_tokens)


def _start(
    engine: Engine, request: Request, lookup: Lookup | None, lease: Lease | None
) -> bool | None:
    """Whether it could be admitted; None when a fetch has made the tree know more."""
    config, name = engine.config, request.name
    shared = lease.pages if lease is not None else ()
    wanted = _pages_at_start(engine, request) - len(shared)
    if not room.fits(engine, wanted, room.states_to_admit(engine)):
        return False
    if lookup is not None and arrivals.fetch_first(engine, request, lookup, wanted):
        return None
    if lookup is not None and transfers.load_first(engine, request, lookup, wanted):
        return False
    request.lookup = lookup
    if lookup is not None:
        _say_match(engine, request, lookup)
    if not room.make(engine, wanted, config.held_slots, name, f"latent pages for {name}"):
        return False
    own = engine.latents.slots.allocate(name, wanted)
    slots: tuple[int, ...] = ()
    try:
        slots = engine.active.slots.allocate(name, config.held_slots)
        boundaries = boundaries_of(engine, request, lookup) if lookup is not None else ()
    except BaseException:
        engine.latents.free(own, name)
        for slot in slots:
            engine.active.free(slot, name)
        raise
    slot, *spares = slots
    request.boundaries = boundaries
    request.lease, request.active_slot, request.spare_slots = lease, slot, spares
    request.pages = [*shared, *own]
    request.computed = arrivals.starts_at(request, lease)
    request.phase = Phase.PREFILL if request.computed < request.n_tokens else Phase.DECODE
    engine.running.append(request)
    node = lease.node if lease is not None else 0
    at = request.computed
    engine.emit(ev.Admitted(name, slot, node, at, tuple(shared), own, tuple(spares)))
    if request.arrival is not None:
        arrivals.seat(engine, request)
        arrivals.keep(engine, request)
    else:
        _begin(engine, request, lease)
    return True


def boundaries_of(engine: Engine, request: Request, lookup: Lookup) -> tuple[int, ...]:
    """Where the request leaves checkpoints. One that would take two states an extend is told how
    many there is room for."""
    placement, grid = engine.config.placement, engine.config.grid
    at = request.n_tokens, lookup.restore, lookup.branching, grid
    if isinstance(placement, Extends) and placement.fork is Fork.BOTH:
        return placement.boundaries(*at, room=max(1, room.for_checkpoints(engine)))
    try:
        found = tuple(placement.boundaries(*at))
        wrong = [b for b in found if b % grid or not lookup.restore < b <= request.n_tokens]
    except FAILURES:
        raise
    except Exception as error:  # whoever wrote the placement
        raise KdalabError(f"the placement {placement} failed: {named(error)}") from error
    if wrong:
        raise KdalabError(
            f"the placement {placement} wants a checkpoint at {shown(wrong[0])}; boundaries are "
            f"multiples of {grid} in ({lookup.restore:,}, {request.n_tokens:,}]"
        )
    return found


def _pages_at_start(engine: Engine, request: Request) -> int:
    """Pages of the whole request, or without ``reserve_output`` of its known tokens."""
    if engine.config.reserve_output:
        return pages_needed(engine, request.n_tokens, request.max_new_tokens)
    return -(-request.n_known // engine.config.page_tokens)


def _let_go(engine: Engine, request: Request, lease: Lease | None) -> None:
    if lease is not None:
        released = engine.cache.release(lease, used=False)
        engine.give_back(released, request.name, "no reader left")


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


def _begin(engine: Engine, request: Request, lease: Lease | None) -> None:
    """Say what the private state will begin with; the bytes move with the first forward."""
    name, slot = request.name, request.active_slot
    if lease is None or lease.state is None:
        request.start = Start.CLEAR
        if engine.config.faults.skip_clear:
            what = f"slot {slot} is not cleared; {name} begins with what its last owner left."
            engine.emit(ev.FaultInjected(name, "skip_clear", what))
        else:
            engine.emit(ev.Cleared(name, slot))
    else:
        request.start = Start.COPY
        size = engine.checkpoints.slot_bytes
        if engine.config.faults.share_checkpoint:
            what = (
                f"checkpoint {lease.state.slot} is not copied; {name} writes its own tokens into "
                "the shared state."
            )
            engine.emit(ev.FaultInjected(name, "share_checkpoint", what))
        else:
            engine.emit(ev.CopiedOnWrite(name, lease.state.slot, slot, lease.boundary, size))
        if engine.config.faults.drop_conv:
            what = "the conv state is left behind at the restore."
            engine.emit(ev.FaultInjected(name, "drop_conv", what))
    if engine.config.faults.quantise_in_recurrence:
        what = "the recurrent state is rounded to INT8 after every step, not once a snapshot."
        engine.emit(ev.FaultInjected(name, "quantise_in_recurrence", what))
