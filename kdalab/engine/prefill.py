"""Chunked prefill on an absolute grid, with checkpoints at the boundaries the placement chose.

A prompt is computed cell by cell, and a cell always covers tokens [64 i, 64 i + 64) whatever the
chunk, the restore point or the prompt's length. So a restored run and a cold run do the same
arithmetic on the same numbers, and their difference is exactly 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from kdalab.engine import checkpointing, copies, decode, shared_state
from kdalab.engine import events as ev
from kdalab.engine.config import CELL
from kdalab.engine.dispatch import Work
from kdalab.engine.failures import FAILURES, named
from kdalab.engine.request import Phase, Request

if TYPE_CHECKING:
    from kdalab.engine.base import BaseEngine
    from kdalab.engine.core import Engine


def run_chunk(engine: Engine) -> None:
    """Prefill up to ``chunk_tokens`` tokens, oldest request first; only a prompt's end may be
    shorter than a cell."""
    budget = engine.config.chunk_tokens // CELL * CELL
    for request in [r for r in engine.running if r.phase is Phase.PREFILL]:
        if budget < CELL:
            return
        end = min(request.n_tokens, request.computed + budget)
        budget -= -(-(end - request.computed) // CELL) * CELL
        try:
            copies.settle(engine, request)
            while request.computed < end:
                _run_segment(engine, request, _next_stop(request, end))
            if request.computed == request.n_tokens:
                request.phase = Phase.DECODE
                first_token(engine, request)
        except FAILURES as error:  # its own trouble: the others go on
            engine.finish(request, f"failed: {named(error)}")


def _next_stop(request: Request, end: int) -> int:
    """The next boundary that needs something done: a checkpoint, or the chunk's end."""
    stops = [b for b in request.boundaries if request.computed < b <= end]
    if request.stale_state is not None:
        stops.append(_trusted(request))
    return min([s for s in stops if s > request.computed] + [end])


def _run_segment(engine: Engine, request: Request, end: int) -> None:
    start = request.computed
    for first in range(start, end, CELL):
        _run_cell(engine, request, first, min(first + CELL, end))
    request.computed = end
    say_computed(engine, request, start, end)
    if request.stale_state is not None and end >= _trusted(request):
        _lose_replay(engine, request)
    elif end in request.boundaries and engine.config.faults.active:
        shared_state.snapshot(engine, request, end)
    elif end in request.boundaries:
        checkpointing.in_prefill(engine, request, end)


def say_computed(engine: BaseEngine, request: Request, start: int, end: int) -> None:
    """Tokens [start, end) have been prefilled: known ones again, and new ones."""
    known = request.token_match
    if start < known:
        engine.emit(ev.Replayed(request.name, start, min(end, known)))
    if end > known:
        engine.emit(ev.Computed(request.name, max(start, known), end))


def first_token(engine: BaseEngine, request: Request) -> None:
    """The prompt is computed: choose its first token, or end there."""
    if request.generated:
        return  # resumed: decoding goes on with the tokens that are known already
    if request.max_new_tokens == 0:
        engine.finish(request, "prefilled")
    else:
        decode.take_token(engine, request, decode.choices(request.logits[-1][None])[0])


def keep_logits(engine: BaseEngine, request: Request, logits: torch.Tensor | None) -> None:
    """All rows [row, vocab] of a cell when they are kept, otherwise the last one."""
    if logits is not None and engine.config.keep_logits:
        request.logits.extend(logits)
    elif logits is not None:
        request.logits[:] = [logits[-1]]


def _run_cell(engine: Engine, request: Request, first: int, last: int) -> None:
    engine.dispatch(Work.EXTEND)
    keep = engine.config.keep_logits
    recurrent, conv = copies.read_state(engine, request)
    # Only a fault can leave the grid, and only then may the last bits differ.
    faulty = engine.config.faults.active not in ((), ("alias_snapshot",))
    compute = engine.model.prefill_piece if faulty else engine.model.prefill_cell
    out = compute(
        torch.tensor(request.tokens[first:last]),
        first,
        recurrent,
        conv,
        engine.latents.gather(request.pages, first),
        logits="all" if keep else ("last" if last == request.n_tokens else "none"),
        media=request.media.rows(first, last) if request.media is not None else None,
    )
    engine.latents.write(request.pages, first, out.latent, request.name)
    copies.write_state(engine, request, out.recurrent, out.conv)
    keep_logits(engine, request, out.logits)


def _trusted(request: Request) -> int:
    """Where a run that trusts the token match would start."""
    return min(request.token_match, request.n_tokens - 1)


def _lose_replay(engine: Engine, request: Request) -> None:
    """Fault ``skip_replay``: the KV is that of the token match, the state that of the restore
    point."""
    assert request.stale_state is not None
    if request.computed == _trusted(request):
        recurrent, conv = request.stale_state
        engine.active.write(request.active_slot, recurrent, conv, request.name)
        engine.emit(
            ev.FaultInjected(
                request.name,
                "skip_replay",
                "the state that this replay made is thrown away. Latent KV of "
                f"{request.computed:,} tokens is paired with the state of {request.restore:,}, "
                "as if the replay had been skipped.",
            )
        )
    request.stale_state = None
