"""A request whose prefill runs elsewhere: everything it needs is taken first, then its state comes.

``expect`` takes an active slot and all latent pages, and reads what the tree knows of the prompt's
latent KV; a state there is of no use, since the state of the whole prompt comes (SGLang's
``match_kv_cache``). ``land_latent`` writes the rest as it arrives, in any order, each token
once. ``land_state`` ends it: only when every token's latent KV is in place, the state and the
first token make the request decode. Until then nothing of it is read by anybody: its slot is
poison, and neither prefill nor decode looks at it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from kdalab.cache import Lease, Lookup, PrefixKey
from kdalab.engine import admission, arrivals, decode, room
from kdalab.engine import events as ev
from kdalab.engine import exchange_events as ex
from kdalab.engine.request import Phase, Request
from kdalab.errors import KdalabError, OutOfSlotsError
from kdalab.memory.arrivals import check_state

if TYPE_CHECKING:
    from kdalab.engine.core import Engine
    from kdalab.engine.media import Media


@dataclass(slots=True)
class Landing:
    """What has arrived of a request's latent KV: one flag a token, and bytes in all."""

    landed: bytearray
    held: int
    source: str = ""
    nbytes: int = 0

    @property
    def missing(self) -> int:
        """Tokens whose latent KV has not arrived."""
        return self.landed.count(0)

    @property
    def front(self) -> int:
        """Tokens from the prompt's start on that are here without a gap."""
        gap = self.landed.find(0)
        return gap if gap >= 0 else len(self.landed)


def expect(
    engine: Engine,
    tokens: Sequence[int],
    max_new_tokens: int = 16,
    name: str | None = None,
    stop_tokens: Iterable[int] = (),
    source: str = "",
    media: Media | None = None,
) -> Request:
    """Take what a request needs, before its state is on its way.

    ``request.landing.held`` says how many tokens of latent KV are here already.

    Raises:
        OutOfSlotsError: no slot or too few pages now, or others wait for them. Nothing was taken.
        KdalabError: as ``Engine.submit``, or no new token is asked for. Nothing was taken.
    """
    ids = admission.as_ids(tokens)
    name = name if name is not None else engine.next_name()
    admission.check_request(engine, ids, max_new_tokens, name, media)
    if max_new_tokens < 1:
        raise KdalabError("a request whose prefill runs elsewhere generates at least one token")
    stops = frozenset(admission.as_ids(stop_tokens, "stop_tokens"))
    if engine.waiting or len(engine.running) >= engine.config.running_limit:
        raise OutOfSlotsError(
            f"{len(engine.running)} of {engine.config.running_limit} requests run and "
            f"{len(engine.waiting)} wait"
        )
    key = PrefixKey.from_tokens(ids, engine.config.page_tokens)
    request = Request(name, ids, max_new_tokens, key, stops, media=media)
    lookup = engine.cache.lookup(key) if engine.config.reuse else None
    lease = engine.cache.acquire_kv(lookup) if lookup is not None else None
    try:
        _take(engine, request, lookup, lease, source)
    except BaseException:
        if lease is not None:
            arrivals.release_unused(engine, lease)
        raise
    return request


def _take(
    engine: Engine, request: Request, lookup: Lookup | None, lease: Lease | None, source: str
) -> None:
    config, name = engine.config, request.name
    shared = lease.pages if lease is not None else ()
    wanted = admission.pages_needed(engine, request.n_tokens, request.max_new_tokens) - len(shared)
    if not room.fits(engine, wanted, room.states_to_admit(engine)) or not room.make(
        engine, wanted, config.held_slots, name, f"latent pages for {name}"
    ):
        raise OutOfSlotsError(f"no slot, or fewer than {wanted:,} latent pages, for {name}")
    if lookup is not None and request.n_tokens % config.grid == 0:
        wants = admission.boundaries_of(engine, request, lookup)
        request.boundaries = tuple(b for b in wants if b == request.n_tokens)
    own = engine.latents.slots.allocate(name, wanted)
    try:
        slots = engine.active.slots.allocate(name, config.held_slots)
    except BaseException:
        engine.latents.free(own, name)
        raise
    held = lease.boundary if lease is not None else 0
    request.active_slot, *request.spare_slots = slots
    request.lease, request.pages, request.computed = lease, [*shared, *own], held
    request.landing = Landing(bytearray(b"\x01" * held + b"\x00" * (request.n_tokens - held)), held)
    request.landing.source = source
    request.phase = Phase.RECEIVING
    engine.requests[name] = request
    engine.running.append(request)
    node = lease.node if lease is not None else 0
    engine.emit(ev.Submitted(name, request.n_tokens, request.max_new_tokens, request.tokens))
    place = request.active_slot, node, held, tuple(shared), own, tuple(request.spare_slots)
    engine.emit(ex.Expected(name, source, *place))


def land_latent(engine: Engine, request: Request, start: int, latent: torch.Tensor) -> int:
    """Write the latent KV of tokens [start, start + n); returns the tokens that were new.

    Args:
        latent: [MLA layer, n tokens, channel]. What is here already must be equal, bit for bit.

    Raises:
        KdalabError: the request expects nothing any more, tokens beyond its prompt, another shape
            or dtype, values that are not finite, or other values for a token that is here.
            Nothing was written.
    """
    landing = _landing(request)
    data = engine.latents.data
    n = latent.shape[1] if latent.ndim == 3 else -1
    if (
        n < 1
        or (latent.shape[0], latent.shape[2]) != (data.shape[1], data.shape[3])
        or latent.dtype != data.dtype
    ):
        raise KdalabError(
            f"latent KV {list(latent.shape)} of {latent.dtype} has arrived; expected "
            f"[{data.shape[1]}, n, {data.shape[3]}] of {data.dtype}"
        )
    end = start + n
    if not 0 <= start < end <= request.n_tokens:
        raise KdalabError(
            f"latent KV of tokens [{start:,}, {end:,}) for a prompt of {request.n_tokens:,}"
        )
    if not bool(latent.isfinite().all()):
        raise KdalabError(f"the latent KV of tokens [{start:,}, {end:,}) is not finite")
    flags = landing.landed[start:end]
    if any(flags):
        _refuse_other(engine, request, start, latent, flags)
    for first, last in _gaps(flags):
        part = latent[:, first:last]
        engine.latents.write(request.pages, start + first, part, request.name)
    new = flags.count(0)
    landing.landed[start:end] = b"\x01" * n
    landing.nbytes += new * latent[:, :1].nbytes
    if new:
        engine.emit(ex.PiecesLanded(request.name, start, end, landing.front))
    return new


def land_state(
    engine: Engine, request: Request, recurrent: torch.Tensor, conv: torch.Tensor, first: int
) -> None:
    """The state after the whole prompt, and the first token: the request decodes from here.

    Raises:
        KdalabError: latent KV is missing, a state of another shape or dtype or not finite, or a
            token outside the vocabulary. Nothing was written; the request still waits for its
            state.
    """
    landing = _landing(request)
    early = landing.missing if engine.config.faults.start_early else 0
    if landing.missing and not early:
        raise KdalabError(
            f"the state after {request.n_tokens:,} tokens of {request.name} is here, the latent KV "
            f"of {landing.missing:,} tokens is not: nothing is decoded from part of a state"
        )
    check_state(engine.active, recurrent, conv)
    if not 0 <= first < engine.model.vocab_size:
        raise KdalabError(
            f"token id {first} is outside the vocabulary 0..{engine.model.vocab_size - 1}"
        )
    engine.active.write(request.active_slot, recurrent, conv, request.name)
    request.landing, request.computed = None, request.n_tokens
    request.phase = Phase.DECODE
    size = landing.nbytes + recurrent.nbytes + conv.nbytes
    where = landing.source, request.active_slot, request.n_tokens
    engine.emit(ex.StateLanded(request.name, *where, landing.held, size))
    if early:
        request.spoiled = True
        what = f"it decodes although the latent KV of {early:,} tokens has not arrived."
        engine.emit(ev.FaultInjected(request.name, "start_early", what))
    if not engine.config.faults.active:  # nothing that a fault may have spoiled enters the tree
        arrivals.keep(engine, request)
    decode.take_token(engine, request, first)


def fall_back(engine: Engine, request: Request, reason: str) -> None:
    """Nothing more will come: give everything back and prefill here, first in the queue.

    Raises:
        KdalabError: the request expects nothing.
    """
    _landing(request)
    engine.retract(request, reason)


def _landing(request: Request) -> Landing:
    if request.phase is not Phase.RECEIVING or request.landing is None:
        raise KdalabError(f"{request.name} is {request.phase.value} and expects no state")
    return request.landing


def _gaps(flags: bytearray) -> list[tuple[int, int]]:
    """Runs of zeros, as [first, last)."""
    runs, at = [], flags.find(0)
    while at >= 0:
        end = flags.find(1, at)
        end = end if end >= 0 else len(flags)
        runs.append((at, end))
        at = flags.find(0, end)
    return runs


def _refuse_other(
    engine: Engine, request: Request, start: int, latent: torch.Tensor, flags: bytearray
) -> None:
    """What has landed was verified; other values for the same token are of another run."""
    size = engine.config.page_tokens
    skip = start // size
    here = engine.latents.gather(request.pages[skip:], start + len(flags) - skip * size)
    here = here[:, start - skip * size :]
    known = torch.tensor(list(flags), dtype=torch.bool)
    if not torch.equal(here[:, known], latent[:, known]):
        raise KdalabError(
            f"latent KV of tokens [{start:,}, {start + len(flags):,}) has arrived twice with "
            "different values: it is of another run"
        )
