"""Decode rows: one token of each request, or several with drafts; a state for every draft.

Verifying writes what vLLM's spec blocks hold: the state after every drafted token, each in a block
of its own. The block of the last accepted token becomes the running state, and the others are let
go. Latents of rejected drafts stay in the request's own KV block until the next tokens overwrite
them; no name ever covers them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from kdalab.engine import decode, speculate
from kdalab.engine import events as ev
from kdalab.engine.block import acts
from kdalab.engine.dispatch import Work
from kdalab.engine.failures import FAILURES, named
from kdalab.engine.request import Phase
from kdalab.engine.speculate import Draft
from kdalab.model.verify import VerifyOutput, verify_tokens

if TYPE_CHECKING:
    from kdalab.engine.block.core import BlockEngine
    from kdalab.engine.block.metadata import BatchMetadata
    from kdalab.engine.block.request import BlockRequest
    from kdalab.engine.block.schedule import Scheduled


def run_rows(engine: BlockEngine, meta: BatchMetadata, rows: list[Scheduled]) -> None:
    """All decode rows of a step, as many in one forward as the model's rows hold."""
    plain = [s for s in rows if not s.drafted]
    size = engine.model.decode_rows
    for first in range(0, len(plain), size):
        _run_plain(engine, meta, plain[first : first + size])
    by_name = {s.request.name: s for s in rows if s.drafted}
    drafts = [Draft(s.request, s.drafted) for s in by_name.values()]
    for batch in speculate.batches(engine.model, drafts):
        _verify(engine, meta, [by_name[d.request.name] for d in batch])


def _run_plain(engine: BlockEngine, meta: BatchMetadata, rows: list[Scheduled]) -> None:
    engine.dispatch(Work.DECODE)
    requests = [s.request for s in rows]
    at = [meta.row_of(r.name) for r in requests]
    lengths = [r.computed for r in requests]
    try:
        out = engine.model.decode(
            torch.tensor([r.token_at(r.computed) for r in requests]),
            lengths,
            *engine.memory.read_states(meta.state_read[:, at], meta.has_initial_state[at]),
            [engine.memory.gather(meta.tables_of(i), n) for i, n in zip(at, lengths, strict=True)],
        )
    except FAILURES as error:  # nothing has been written yet
        if len(rows) > 1:  # one of them: a row alone gives the bits that it gives in a batch
            for one in rows:
                _run_plain(engine, meta, [one])
        else:
            engine.finish(requests[0], f"failed: {named(error)}")
        return
    engine.memory.write_states(meta.state_index[:, at, 0], out.recurrent, out.conv)
    tokens = decode.choices(out.logits)
    for i, (row, token) in enumerate(zip(rows, tokens, strict=True)):
        _write_kv(engine, meta, at[i], row.request, out.latent[i][:, None])
        _commit(engine, row, [token], out.logits[i : i + 1])


def _verify(engine: BlockEngine, meta: BatchMetadata, rows: list[Scheduled]) -> None:
    engine.dispatch(Work.VERIFY)
    requests = [s.request for s in rows]
    at = [meta.row_of(r.name) for r in requests]
    lengths = [r.computed for r in requests]
    try:
        outs = verify_tokens(
            engine.model,
            [(r.token_at(r.computed), *s.drafted) for r, s in zip(requests, rows, strict=True)],
            lengths,
            *engine.memory.read_states(meta.state_read[:, at], meta.has_initial_state[at]),
            [engine.memory.gather(meta.tables_of(i), n) for i, n in zip(at, lengths, strict=True)],
        )
    except FAILURES as error:
        if len(rows) > 1:
            for one in rows:
                _verify(engine, meta, [one])
        else:
            engine.finish(requests[0], f"failed: {named(error)}")
        return
    for i, row, out in zip(at, rows, outs, strict=True):
        _accept(engine, meta, i, row, out)


def _accept(
    engine: BlockEngine, meta: BatchMetadata, at: int, row: Scheduled, out: VerifyOutput
) -> None:
    request, n = row.request, len(row.drafted) + 1
    chosen = decode.choices(out.logits)
    accepted = speculate.n_accepted(row.drafted, chosen)
    engine.emit(ev.Verified(request.name, request.computed, row.drafted, accepted))
    index = meta.state_index[:, at, :n]
    engine.memory.write_states(index, out.recurrent, out.conv)
    _write_kv(engine, meta, at, request, out.latent.transpose(0, 1))
    kept = chosen[: accepted + 1]
    stop = next((t for t, c in enumerate(kept) if c in request.stop_tokens or c < 0), accepted)
    _commit(engine, row, kept[: stop + 1], out.logits)


def _write_kv(
    engine: BlockEngine,
    meta: BatchMetadata,
    at: int,
    request: BlockRequest,
    latent: torch.Tensor,
) -> None:
    """Latents [MLA layer, token, latent|rope] of the row's tokens."""
    start = request.computed
    engine.memory.write_kv(meta.slots_of(at, start, start + latent.shape[1]), latent)


def _commit(engine: BlockEngine, row: Scheduled, tokens: list[int], logits: torch.Tensor) -> None:
    """States and latents of ``len(tokens)`` more tokens are in place; ``tokens`` are the choices
    after each, and ``logits`` [row, vocab] what they were made from."""
    request = row.request
    good = tokens if tokens[-1] >= 0 else tokens[:-1]
    if good:
        _advance(engine, row, request.computed + len(good), good)
    for token, line in zip(good, logits, strict=False):
        request.computed += 1
        if engine.config.keep_logits:
            request.logits.append(line)
        if request.computed < request.n_known:  # resumed: this token was chosen before
            engine.emit(ev.Replayed(request.name, request.computed - 1, request.computed))
        else:
            decode.take_token(engine, request, token)
        if request.phase is not Phase.DECODE:
            return
    if len(good) < len(tokens):
        engine.finish(request, "failed: its logits are not finite")


def _advance(engine: BlockEngine, row: Scheduled, end: int, chosen: list[int]) -> None:
    """Names need the tokens: all of those that were fed are known, or are drafts that were
    right."""
    request, fed = row.request, None
    if acts.extends_hashes(engine, request, end):
        fed = (*request.known, *chosen[:-1])[:end]
    acts.advance(engine, request, row.step, end, fed)
