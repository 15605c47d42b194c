"""State that leaves for another instance, and ways in for state that comes from one.

All of them move the whole state at one boundary:

* ``export_running`` and ``export_cached`` copy out what a request, or the tree, holds.
* ``install`` enters a prefix into the tree, as if it had been computed here.
* ``receive`` queues a request together with its state: prefill ran elsewhere, and decoding goes
  on here. The state is written when the request is admitted (``engine.arrivals``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch

from kdalab.cache import PrefixKey
from kdalab.engine import admission, copies
from kdalab.engine import events as ev
from kdalab.engine import exchange_events as ex
from kdalab.engine.arrivals import Arrival, check_arrival, enter_prefix, release_unused
from kdalab.engine.config import CELL
from kdalab.engine.request import Phase, Request
from kdalab.errors import KdalabError, shown
from kdalab_kernels import gather_pages

if TYPE_CHECKING:
    from kdalab.engine.base import BaseEngine
    from kdalab.engine.core import Engine


class Exported(NamedTuple):
    """A copy of a whole state: ``latent`` [page, MLA layer, token in page, channel], zero beyond
    the boundary; ``tokens`` are those that the state has seen."""

    tokens: tuple[int, ...]
    latent: torch.Tensor
    recurrent: torch.Tensor
    conv: torch.Tensor


def export_running(engine: Engine, name: str, target: str = "") -> Exported:
    """A copy of what a running request holds after ``request.computed`` tokens.

    Raises:
        KdalabError: no such request, it holds no state now, or a fault is switched on.
    """
    request = engine.requests.get(name)
    if request is None:
        raise KdalabError(
            f"no request {shown(name)}; known: {', '.join(engine.requests) or 'none'}"
        )
    if request.phase not in (Phase.PREFILL, Phase.DECODE) or request.computed == 0:
        raise KdalabError(
            f"{name} is {request.phase.value} and holds no state. Export a running request, or "
            "what it left in the cache"
        )
    _no_faults(engine)
    recurrent, conv = copies.read_state(engine, request)
    n = request.computed
    latent = _pages(engine, request.pages, n)
    sent = Exported(request.known[:n], latent, recurrent, conv)
    _say_sent(engine, sent, name, target)
    return sent


def export_cached(
    engine: Engine, tokens: Sequence[int], boundary: int | None = None, target: str = ""
) -> Exported:
    """A copy of what the tree holds for a prompt.

    Args:
        boundary: a boundary with a checkpoint; by default the farthest that restores ``tokens``
            (and leaves none of them to compute, if a checkpoint stands at their end).

    Raises:
        KdalabError: no checkpoint there, or a fault is switched on.
    """
    ids = admission.as_ids(tokens)
    _no_faults(engine)
    end = len(ids) if boundary is None else boundary
    if not 1 <= end <= len(ids):
        raise KdalabError(f"boundary {end:,} of a prompt of {len(ids):,} tokens")
    key = PrefixKey.from_tokens(ids[:end], engine.config.page_tokens)
    # One token more than there is: a checkpoint at the very end may be taken as well.
    lookup = engine.cache.lookup(PrefixKey(key.data, key.page_bytes, key.page_tokens, end + 1))
    if lookup.restore == 0 or (boundary is not None and lookup.restore != boundary):
        raise KdalabError(
            f"the cache cannot restore this prompt at {end:,}: {'; '.join(lookup.why[:-1])}"
        )
    lease = engine.cache.acquire(lookup)
    try:
        assert lease.state is not None
        recurrent, conv = engine.checkpoints.read(lease.state.slot)
        latent = _pages(engine, lease.pages, lease.boundary)
    finally:
        release_unused(engine, lease)
    sent = Exported(ids[: lease.boundary], latent, recurrent, conv)
    _say_sent(engine, sent, "", target)
    return sent


def install(engine: Engine, tokens: Sequence[int], arrival: Arrival) -> ex.Fetched | None:
    """Enter a prefix that was computed elsewhere into the tree; None when it is there already.

    Args:
        tokens: begin with the prefix; those beyond the boundary are not looked at.

    Raises:
        OutOfSlotsError: no room, even after an eviction.
        KdalabError: a boundary off the grid or beyond the tokens, or a state of another shape.
            Nothing has changed, but for what was evicted.
    """
    return enter_prefix(engine, admission.as_ids(tokens), arrival)


def receive(
    engine: Engine,
    tokens: Sequence[int],
    arrival: Arrival,
    generated: Sequence[int] = (),
    max_new_tokens: int = 16,
    name: str | None = None,
    stop_tokens: Iterable[int] = (),
) -> Request:
    """Queue a request together with its state; what the state has seen is not computed here.

    Args:
        tokens: the prompt.
        arrival: the state after some of the prompt, or after all of it and of what was generated
            but the last token.
        generated: tokens that were generated elsewhere; they count as new tokens.

    Raises:
        KdalabError: as ``Engine.submit``; a state of another shape; or one that cannot be gone on
            from. Nothing was taken.
    """
    ids, more = admission.as_ids(tokens), admission.as_ids(generated)
    name = name if name is not None else engine.next_name()
    admission.check_request(engine, ids, max_new_tokens, name)
    check_continues(engine, ids, more, arrival.boundary, max_new_tokens, frozenset(stop_tokens))
    check_arrival(engine, arrival)
    request = Request(
        name,
        ids,
        max_new_tokens,
        PrefixKey.from_tokens(ids, engine.config.page_tokens),
        frozenset(stop_tokens),
        generated=list(more),
        arrival=arrival,
    )
    engine.requests[name] = request
    engine.waiting.append(request)
    engine.emit(ev.Submitted(name, len(ids), max_new_tokens, ids))
    engine.emit(ex.Received(name, arrival.source, arrival.boundary, more, arrival.nbytes))
    return request


def check_continues(
    engine: BaseEngine,
    tokens: tuple[int, ...],
    generated: tuple[int, ...],
    boundary: int,
    max_new_tokens: int,
    stop: frozenset[int],
) -> None:
    """Refuse a state from which this request cannot be gone on from.

    Raises:
        KdalabError: a token outside the vocabulary, a boundary that leaves nothing to compute or
            is off the grid, or nothing left to generate.
    """
    known = len(tokens) + len(generated)
    wrong = [t for t in generated if not 0 <= t < engine.model.vocab_size]
    if wrong:
        raise KdalabError(
            f"token id {wrong[0]} is outside the vocabulary 0..{engine.model.vocab_size - 1}"
        )
    if not 0 < boundary < known:
        raise KdalabError(
            f"a state of {boundary:,} tokens with {known:,} known ones: at least one token must "
            "be left to compute. After a whole prompt, give the first token that was generated"
        )
    if boundary < len(tokens) and boundary % CELL:
        raise KdalabError(
            f"prefill cannot go on at {boundary:,}: it runs on an absolute grid of {CELL} tokens. "
            f"Send the state of a multiple of {CELL}, or that of the whole prompt"
        )
    if boundary < len(tokens) and generated:
        raise KdalabError(f"tokens generated after a state of {boundary:,} of {len(tokens):,}")
    if len(generated) >= max_new_tokens or stop.intersection(generated):
        raise KdalabError(
            f"nothing left to generate: {len(generated)} of {max_new_tokens} are there"
        )


def _pages(engine: Engine, table: Sequence[int], n: int) -> torch.Tensor:
    """Whole pages of the first ``n`` tokens, zero beyond them."""
    size = engine.config.page_tokens
    used = table[: -(-n // size)]
    rows = [engine.latents.slots.place(page) for page in used]
    pages = gather_pages(engine.latents.data, rows)
    if n % size:
        pages[-1, :, n % size :] = 0
    return pages


def _say_sent(engine: Engine, sent: Exported, request: str, target: str) -> None:
    size = sent.recurrent.nbytes + sent.conv.nbytes
    engine.emit(ex.Sent(request, target, len(sent.tokens), sent.latent.nbytes, size))


def _no_faults(engine: Engine) -> None:
    if engine.config.faults.active:
        raise KdalabError(
            f"{', '.join(engine.config.faults.active)} switched on: what a fault spoils is not "
            "sent to others"
        )
