"""One token for every decoding request, in one batch of a fixed number of rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from kdalab.engine import events as ev
from kdalab.engine.request import Phase, Request

if TYPE_CHECKING:
    from kdalab.engine.core import Engine


def run_batch(engine: Engine, requests: list[Request]) -> None:
    """Decode one token for each request that was decoding before this step and still is."""
    live = [r for r in requests if r.phase is Phase.DECODE]
    rows = engine.model.decode_rows
    for first in range(0, len(live), rows):
        _run_rows(engine, live[first : first + rows])


def _run_rows(engine: Engine, requests: list[Request]) -> None:
    states = [engine.active.read(r.active_slot) for r in requests]
    out = engine.model.decode(
        torch.tensor([r.generated[-1] for r in requests]),
        [r.computed for r in requests],
        torch.stack([recurrent for recurrent, _ in states]),
        torch.stack([conv for _, conv in states]),
        [engine.latents.gather(r.pages, r.computed) for r in requests],
    )
    for row, request in enumerate(requests):
        engine.active.write(request.active_slot, out.recurrent[row], out.conv[row], request.name)
        engine.latents.write(
            request.pages, request.computed, out.latent[row].unsqueeze(1), request.name
        )
        request.computed += 1
        if engine.config.keep_logits:
            request.logits.append(out.logits[row])
        take_token(engine, request, out.logits[row])


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
