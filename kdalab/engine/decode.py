"""One token for every decoding request, in one batch of a fixed number of rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from kdalab.engine import checkpointing, copies, room, speculate
from kdalab.engine import events as ev
from kdalab.engine.dispatch import Work
from kdalab.engine.request import Phase, Request

if TYPE_CHECKING:
    from kdalab.engine.core import Engine


def run_batch(engine: Engine, requests: list[Request]) -> None:
    """Move each request on that was decoding before this step and still is: by one token, or by
    as many as its drafts were right."""
    drafts = []
    for request in requests:
        drafted = speculate.propose(engine, request) if request.phase is Phase.DECODE else ()
        _take_pages(engine, request, 1 + len(drafted))
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
    states = [copies.read_state(engine, r) for r in requests]
    out = engine.model.decode(
        torch.tensor([r.token_at(r.computed) for r in requests]),
        [r.computed for r in requests],
        torch.stack([recurrent for recurrent, _ in states]),
        torch.stack([conv for _, conv in states]),
        [engine.latents.gather(r.pages, r.computed) for r in requests],
    )
    for row, request in enumerate(requests):
        copies.write_state(engine, request, out.recurrent[row], out.conv[row])
        advance(engine, request, out.latent[row], out.logits[row])


def advance(engine: Engine, request: Request, latent: torch.Tensor, logits: torch.Tensor) -> None:
    """The state has seen one token more: its latents, a boundary if it is one, the next token.

    Args:
        latent: [MLA layer, latent|rope] of the token.
        logits: [vocab] after it.
    """
    engine.latents.write(request.pages, request.computed, latent.unsqueeze(1), request.name)
    request.computed += 1
    checkpointing.in_decode(engine, request)
    if engine.config.keep_logits:
        request.logits.append(logits)
    if request.computed < request.n_known:  # resumed: this token was chosen before
        engine.emit(ev.Replayed(request.name, request.computed - 1, request.computed))
    else:
        take_token(engine, request, logits)


def take_token(engine: Engine, request: Request, logits: torch.Tensor) -> None:
    """Choose the most likely token; end the request when it has all it asked for."""
    if not bool(logits.isfinite().all()):
        engine.finish(request, "failed: its logits are not finite")
        return
    token = int(torch.argmax(logits))
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
