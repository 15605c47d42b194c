"""A prefill row: cells of 64 tokens from the chunk's start to its end, reading and writing by the
batch's metadata.

The arithmetic is that of the radix engine: the same cells, the same shapes. What differs is where
the bytes lie.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from kdalab.engine import prefill
from kdalab.engine.block import acts
from kdalab.engine.block.metadata import NULL_BLOCK
from kdalab.engine.config import CELL
from kdalab.engine.dispatch import Work
from kdalab.engine.failures import FAILURES, named
from kdalab.engine.request import Phase
from kdalab_kernels import snapshot_states_inplace

if TYPE_CHECKING:
    from kdalab.engine.block.core import BlockEngine
    from kdalab.engine.block.metadata import BatchMetadata
    from kdalab.engine.block.request import BlockRequest

States = list[tuple[torch.Tensor, torch.Tensor]]


def run_row(engine: BlockEngine, meta: BatchMetadata, row: int) -> None:
    """Compute one request's chunk; a request whose numbers are no numbers ends alone."""
    request = engine.request(meta.requests[row])
    start, end = int(meta.context_lens[row]), int(meta.seq_lens[row])
    try:
        states = _run_cells(engine, meta, row, request, start, end)
        if meta.checkpoint_offset[row].any():
            _store_inside(engine, meta, row, states)
        last = [t[None] for t in states[-1]]
        engine.memory.write_states(meta.state_index[:, row, :1], last[0], last[1])
    except FAILURES as error:
        acts.withdraw(engine, request)
        engine.finish(request, f"failed: {named(error)}")
        return
    request.computed = end
    prefill.say_computed(engine, request, start, end)
    if end == request.n_tokens:
        request.phase = Phase.DECODE
        prefill.first_token(engine, request)


def _run_cells(
    engine: BlockEngine,
    meta: BatchMetadata,
    row: int,
    request: BlockRequest,
    start: int,
    end: int,
) -> States:
    """(recurrent, conv) [KDA layer, ...] before the chunk and after every cell of it."""
    engine.dispatch(Work.EXTEND)
    one = slice(row, row + 1)
    recurrent, conv = engine.memory.read_states(
        meta.state_read[:, one], meta.has_initial_state[one]
    )
    states: States = [(recurrent[0], conv[0])]
    tables = meta.tables_of(row)
    for first in range(start, end, CELL):
        last = min(first + CELL, end)
        wanted = "last" if last == request.n_tokens else "none"
        out = engine.model.prefill_cell(
            torch.tensor(request.tokens[first:last]),
            first,
            *states[-1],
            engine.memory.gather(tables, first),
            logits="all" if engine.config.keep_logits else wanted,  # type: ignore[arg-type]
        )
        if not all(bool(t.isfinite().all()) for t in (out.recurrent, out.conv, out.latent)):
            raise ValueError(f"its states after {last:,} tokens are not finite")
        engine.memory.write_kv(meta.slots_of(row, first, last), out.latent)
        prefill.keep_logits(engine, request, out.logits)
        states.append((out.recurrent, out.conv))
    return states


def _store_inside(engine: BlockEngine, meta: BatchMetadata, row: int, states: States) -> None:
    """States in the middle of the chunk, by the kernel's own op: it takes the states at chunk
    starts, as a prefill kernel exports them, and writes into the layers' pages in place."""
    start, end = int(meta.context_lens[row]), int(meta.seq_lens[row])
    valid = meta.checkpoint_offset[row] > 0
    offsets = [int(n) for n in meta.checkpoint_offset[row][valid]]
    blocks = meta.checkpoint_index[:, row, valid]
    recurrent = torch.stack([s[0] for s in states])
    conv = torch.stack([s[1] for s in states])
    width = conv.shape[2]
    # Of the convolution's inputs only those just before a boundary are read; the states have them.
    inputs = conv.new_full((conv.shape[1], end - start, conv.shape[3]), float("nan"))
    for cell in range(1, len(states)):
        at = min(cell * CELL, end - start)
        first = max(0, at - width)
        inputs[:, first:at] = conv[cell][:, width - (at - first) :]
    for g, layers in enumerate(engine.memory.states.values()):
        for layer in layers:
            i = layer.number
            snapshot_states_inplace(
                layer.recurrent,
                layer.conv,
                recurrent[:-1, i][None],
                recurrent[-1:, i],
                inputs[i][None],
                conv[:1, i],
                [0] * len(offsets),
                offsets,
                [int(b) if b != NULL_BLOCK else -1 for b in blocks[g]],
                chunk_size=CELL,
            )
