"""One token for every decoding request, in one batch of a fixed number of rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from kdalab.engine import checkpointing, copies, room, speculate
from kdalab.engine import events as ev
from kdalab.engine.dispatch import Work
from kdalab.engine.failures import FAILURES, named
from kdalab.engine.request import Phase, Request
from kdalab.errors import NotFiniteError

if TYPE_CHECKING:
    from kdalab.engine.base import BaseEngine
    from kdalab.engine.core import Engine


def run_batch(engine: Engine, requests: list[Request]) -> None:
    """Move each request on that was decoding before this step and still is: by one token, or by
    as many as its drafts were right."""
    drafts = []
    for request in requests:
        drafted = speculate.propose(engine, request) if request.phase is Phase.DECODE else ()
        try:
            _take_pages(engine, request, 1 + len(drafted))
        except FAILURES as error:
            engine.finish(request, f"failed: {named(error)}")
        drafts.append(speculate.Draft(request, drafted))
    # Making room for one request may have retracted another.
    live = [d for d in drafts if d.request.phase is Phase.DECODE]
    plain = [d.request for d in live if not d.tokens]
    rows = engine.model.decode_rows
    for first in range(0, len(plain), rows):
        _run_rows(engine, plain[first : first + rows])
    verified = [d for d in live if d.tokens]
    if verified:
        speculate.run_drafts(engine, verified)


def _run_rows(engine: Engine, requests: list[Request]) -> None:
    engine.dispatch(Work.DECODE)
    try:
        out = engine.model.decode(
            torch.tensor([r.token_at(r.computed) for r in requests]),
            [r.computed for r in requests],
            *copies.read_states(engine, requests),
            [engine.latents.gather(r.pages, r.computed) for r in requests],
        )
        # The states last: until they are written the step can be repeated, and gives the same.
        write_latents(engine, requests, out.latent)
        copies.write_states(engine, requests, out.recurrent, out.conv)
    except FAILURES as error:
        if len(requests) > 1:  # one of them: a row alone gives the bits that it gives in a batch
            for request in requests:
                _run_rows(engine, [request])
        else:
            engine.finish(requests[0], f"failed: {named(error)}")
        return
    chosen = choices(out.logits)
    for request, token, logits in zip(requests, chosen, out.logits, strict=True):
        advance(engine, request, token, logits)


def choices(logits: torch.Tensor) -> list[int]:
    """The most likely token of each row [row, vocab]; -1 where the logits are not finite."""
    finite = logits.isfinite().all(-1)
    tokens: list[int] = torch.where(finite, logits.argmax(-1), -1).tolist()
    return tokens


def write_latents(engine: Engine, requests: list[Request], latent: torch.Tensor) -> None:
    """The latents [row, MLA layer, latent|rope] of each request's next token."""
    engine.latents.write_tokens(
        [r.pages for r in requests],
        [r.computed for r in requests],
        latent,
        [r.name for r in requests],
    )


def advance(engine: Engine, request: Request, token: int, logits: torch.Tensor) -> None:
    """States and latents of one token more are in place: a boundary if it is one, the next token.

    Args:
        token: the choice after it, as ``choices`` gives it.
        logits: [vocab] that it was made from.
    """
    request.computed += 1
    if token < 0:  # before a checkpoint is taken of it
        engine.finish(request, "failed: its logits are not finite")
        return
    try:
        checkpointing.in_decode(engine, request)
    except NotFiniteError as error:
        engine.finish(request, f"failed: {error}")
        return
    if engine.config.keep_logits:
        request.logits.append(logits)
    if request.computed < request.n_known:  # resumed: this token was chosen before
        engine.emit(ev.Replayed(request.name, request.computed - 1, request.computed))
    else:
        take_token(engine, request, token)


def take_token(engine: BaseEngine, request: Request, token: int) -> None:
    """Append the chosen token; end the request when it has all it asked for."""
    if token < 0:
        engine.finish(request, "failed: its logits are not finite")
        return
    request.generated.append(token)
    engine.emit(ev.Decoded(request.name, token, request.computed))
    if token in request.stop_tokens:
        engine.finish(request, "stop token")
    elif len(request.generated) >= request.max_new_tokens:
        engine.finish(request, "length")


def _take_pages(engine: Engine, request: Request, tokens: int) -> None:
    """See that the page table covers ``tokens`` more; retract the latest until it does."""
    while request.phase is Phase.DECODE:
        short = -(-(request.computed + tokens) // engine.config.page_tokens) - len(request.pages)
        if short <= 0:
            return
        if room.make(engine, short, 0, request.name, f"latent pages for {request.name}"):
            pages = engine.latents.slots.allocate(request.name, short)
            request.pages.extend(pages)
            engine.emit(ev.PagesTaken(request.name, pages))
            return
        engine.retract(engine.running[-1], f"latent pages for {request.name}")
