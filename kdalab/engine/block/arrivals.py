"""State that a request brought, into the blocks that it was given for it.

It is a row of the batch that computes nothing: the same blocks, copies and names as a chunk to
that boundary would get, so nothing else has to know that the numbers came from elsewhere.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kdalab.engine.block import acts
from kdalab.engine.block import events as bl
from kdalab.engine.request import Phase
from kdalab.errors import KdalabError

if TYPE_CHECKING:
    from kdalab.cache import Step
    from kdalab.engine.arrivals import Arrival
    from kdalab.engine.block.core import BlockEngine
    from kdalab.engine.block.metadata import BatchMetadata
    from kdalab.engine.block.request import BlockRequest
    from kdalab.engine.events import Event


def check(engine: BlockEngine, arrival: Arrival) -> None:
    """Refuse a state whose shapes or dtypes are not this engine's, or that is not finite.

    Raises:
        KdalabError: naming the part.
    """
    memory = engine.memory
    state, conv = memory.shapes
    state_dtype, dtype = memory.dtypes
    for name, x, shape, kind in (
        ("latent KV", arrival.latent, (memory.n_mla, arrival.boundary, memory.latent_dim), dtype),
        ("recurrent state", arrival.recurrent, (memory.n_kda, *state), state_dtype),
        ("conv state", arrival.conv, (memory.n_kda, *conv), dtype),
    ):
        if tuple(x.shape) != tuple(shape) or x.dtype != kind:
            raise KdalabError(
                f"{name} {list(x.shape)} of {x.dtype} has arrived; expected {list(shape)} of {kind}"
            )
        if not bool(x.isfinite().all()):
            raise KdalabError(f"the {name} that has arrived is not finite")


def allocate(engine: BlockEngine, request: BlockRequest, say_first: list[Event]) -> Step | None:
    """Blocks up to the boundary of the state that came; None when too few are free.

    A kernel could leave the prompt's tail in the middle of a chunk. Here none runs, so no block
    may be given for a state that nobody will write.
    """
    assert request.arrival is not None
    rows = acts.rows_of(engine, request)
    stops, rows.stops = rows.stops, replace(rows.stops, kernel=0)
    step = acts.allocate(engine, request, request.arrival.boundary, say_first=say_first)
    rows.stops = stops
    return step


def seat(engine: BlockEngine, meta: BatchMetadata, row: int) -> None:
    """Write what came into the request's own blocks: latent KV beyond its hit, and the state."""
    request = engine.request(meta.requests[row])
    arrival, request.arrival = request.arrival, None
    assert arrival is not None
    start, end = int(meta.context_lens[row]), int(meta.seq_lens[row])
    engine.memory.write_kv(meta.slots_of(row, start, end), arrival.latent[:, start:end])
    engine.memory.write_states(
        meta.state_index[:, row, :1], arrival.recurrent[None], arrival.conv[None]
    )
    request.computed = end
    request.phase = Phase.PREFILL if end < request.n_tokens else Phase.DECODE
    engine.emit(bl.Installed(request.name, arrival.source, end, arrival.nbytes))
