"""Speculative decoding: drafted tokens are verified in one step, and the right ones are kept.

The forward keeps the state after every drafted token. The one after the last accepted token is
committed, and if the accepted run crosses a boundary of the decode interval, the state at just
that boundary is kept too. Drafts that were wrong leave nothing behind: their states were never
written, nor their latents.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from kdalab.engine import copies, decode
from kdalab.engine import events as ev
from kdalab.engine.dispatch import Work
from kdalab.engine.failures import FAILURES, named
from kdalab.engine.request import Phase, Request
from kdalab.model.verify import VerifyOutput, rows_of, verify_tokens

if TYPE_CHECKING:
    from kdalab.engine.base import BaseEngine
    from kdalab.engine.core import Engine
    from kdalab.model import HybridModel


class Draft(NamedTuple):
    """``tokens`` are guesses for what follows the request's known tokens."""

    request: Request
    tokens: tuple[int, ...]


def propose(engine: BaseEngine, request: Request) -> tuple[int, ...]:
    """Drafts that the request can use: never beyond its last token, nor while it is resumed."""
    left = request.max_new_tokens - len(request.generated) - 1
    n = min(engine.config.draft_tokens, left, rows_of(engine.model) - 1)
    if n <= 0 or request.computed != request.n_known - 1:
        return ()
    drafted, reason = _asked(engine, request.known, n, request.media is not None)
    if reason:
        engine.emit(ev.DraftsDropped(request.name, reason))
    return drafted


def _asked(
    engine: BaseEngine, known: tuple[int, ...], n: int, has_images: bool
) -> tuple[tuple[int, ...], str]:
    """(drafts to be verified, what is wrong with the others). A drafter is somebody else's code:
    whatever it does, the request goes on. It sees the ids of images as they are, so that it tells
    them apart; where it drafts one, as a prompt that quotes itself will, drafting ends there."""
    vocab = engine.model.vocab_size
    try:
        proposed = list(islice(engine.config.drafter.propose(known, n), n + 1))
        drafted = tuple(operator.index(t) for t in proposed)
    except Exception as error:
        return (), f"the drafter failed: {type(error).__name__}: {named(error)}"
    wrong = next((i for i, t in enumerate(drafted) if not 0 <= t < vocab), None)
    if wrong is not None and has_images and drafted[wrong] >= vocab:
        return drafted[: min(wrong, n)], ""
    if wrong is not None:
        what = f"token id {drafted[wrong]} is outside the vocabulary 0..{vocab - 1}"
        return drafted[: min(wrong, n)], what
    return drafted[:n], f"more than the {n} that were asked for" if len(drafted) > n else ""


def run_drafts(engine: Engine, drafts: list[Draft]) -> None:
    """Verify all drafts, as many requests in one forward as its rows hold."""
    engine.dispatch(Work.VERIFY)
    for batch in batches(engine.model, drafts):
        _run(engine, batch)


def _run(engine: Engine, drafts: list[Draft]) -> None:
    requests = [d.request for d in drafts]
    try:
        outs = verify_tokens(
            engine.model,
            [(r.token_at(r.computed), *d.tokens) for r, d in zip(requests, drafts, strict=True)],
            [r.computed for r in requests],
            *copies.read_states(engine, requests),
            [engine.latents.gather(r.pages, r.computed) for r in requests],
        )
    except FAILURES as error:  # nothing has been written yet: find the one, as in decode
        if len(drafts) > 1:
            for draft in drafts:
                _run(engine, [draft])
        else:
            engine.finish(requests[0], f"failed: {named(error)}")
        return
    for draft, out in zip(drafts, outs, strict=True):
        try:
            _commit(engine, draft, out)
        except FAILURES as error:
            engine.finish(draft.request, f"failed: {named(error)}")


def n_accepted(drafted: Sequence[int], chosen: Sequence[int]) -> int:
    """Leading drafts that are what the model itself chose."""
    accepted = 0
    while accepted < len(drafted) and drafted[accepted] == chosen[accepted]:
        accepted += 1
    return accepted


def batches(model: HybridModel, drafts: Sequence[Draft]) -> list[list[Draft]]:
    """All drafts, as many requests in one forward as its rows hold."""
    limit, found, used = rows_of(model), list[list[Draft]](), 0
    for draft in drafts:
        size = len(draft.tokens) + 1
        if not found or used + size > limit or len(found[-1]) == model.decode_rows:
            found.append([])
            used = 0
        found[-1].append(draft)
        used += size
    return found


def _commit(engine: Engine, draft: Draft, out: VerifyOutput) -> None:
    request = draft.request
    chosen = decode.choices(out.logits)
    accepted = n_accepted(draft.tokens, chosen)
    engine.emit(ev.Verified(request.name, request.computed, draft.tokens, accepted))
    engine.verified(request, draft.tokens, out)
    spoiled = engine.config.faults.keep_rejected and accepted < len(draft.tokens)
    if spoiled:
        rejected = len(draft.tokens) - accepted
        what = f"the state that is committed has also seen {rejected} rejected drafts."
        engine.emit(ev.FaultInjected(request.name, "keep_rejected", what))
    for t in range(accepted + 1):
        # Only what is kept is written: the last accepted state, and the one at a boundary.
        last = t == accepted or chosen[t] in request.stop_tokens
        decode.write_latents(engine, [request], out.latent[t : t + 1])
        if last or engine.config.keeps_decoded(request.computed + 1):
            at = -1 if spoiled and last else t
            copies.write_state(engine, request, out.recurrent[at], out.conv[at])
        decode.advance(engine, request, chosen[t], out.logits[t])
        if request.phase is not Phase.DECODE:
            return
