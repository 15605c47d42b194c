"""Who computes what in the next forward: running requests first, then the queue while blocks last.

The order is vLLM's. A running request that finds no block preempts the one that came last; one
that waits is not admitted. What a chunk will compute is cached when it is scheduled, so a request
that wants it in the same step is deferred: the numbers are not there yet.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from kdalab.cache import Step
from kdalab.engine import events as ev
from kdalab.engine import speculate
from kdalab.engine.block import acts, arrivals
from kdalab.engine.block import events as bl
from kdalab.engine.block.metadata import QueryRow
from kdalab.engine.config import CELL
from kdalab.engine.request import Phase
from kdalab.spec import StateKind

if TYPE_CHECKING:
    from kdalab.cache import BlockLookup
    from kdalab.engine.block.core import BlockEngine
    from kdalab.engine.block.request import BlockRequest


class Scheduled(NamedTuple):
    """One row of the batch: ``drafted`` are the guesses that it verifies."""

    request: BlockRequest
    step: Step
    row: QueryRow
    drafted: tuple[int, ...] = ()


@dataclass(slots=True)
class Batch:
    """The rows of a step, and the prompt tokens that it may still take."""

    budget: int
    rows: list[Scheduled] = field(default_factory=list)


def plan_step(engine: BlockEngine) -> list[Scheduled]:
    """Schedule one step; every row has its blocks, and the copies that it needs are queued."""
    batch = Batch(engine.config.chunk_tokens // CELL * CELL)
    waited = len(engine.waiting)
    for request in list(engine.runs):
        if request.is_running:  # it may have been preempted for one before it
            _schedule_running(engine, batch, request)
    if len(engine.waiting) == waited:  # nobody was preempted: blocks are not that short
        _admit_waiting(engine, batch)
    return batch.rows


def _schedule_running(engine: BlockEngine, batch: Batch, request: BlockRequest) -> None:
    drafted: tuple[int, ...] = ()
    if request.phase is Phase.PREFILL:
        end = _chunk_end(engine, batch, request)
    else:
        drafted = speculate.propose(engine, request)
        end = request.computed + 1
    while end > request.computed:
        step = acts.allocate(engine, request, end, len(drafted))
        if step is not None:
            _take(engine, batch, request, step, drafted)
            return
        if engine.cache.later:
            return  # blocks come back when this step has ended
        last = engine.runs[-1]
        if last is request and len(engine.runs) == 1:
            engine.finish(request, "failed: it alone needs more blocks than there are")
            return
        engine.preempt(last, f"no block for {request.name}")
        if last is request:
            return


def _chunk_end(engine: BlockEngine, batch: Batch, request: BlockRequest) -> int:
    """Where the request's chunk ends; where it stands when the budget is used up."""
    assert request.lease is not None
    if batch.budget < CELL:
        return request.computed
    # Resumed, the cache knows tokens beyond the prompt; those are decoded again, one by one.
    return min(engine.cache.chunk_end(request.lease, batch.budget), request.n_tokens)


def _take(
    engine: BlockEngine,
    batch: Batch,
    request: BlockRequest,
    step: Step,
    drafted: tuple[int, ...],
) -> None:
    batch.rows.append(Scheduled(request, step, acts.query_row(engine, request, step), drafted))
    if request.arrival is not None:
        acts.advance(engine, request, step, step.end)
    elif request.phase is Phase.PREFILL:
        batch.budget -= -(-(step.end - step.start) // CELL) * CELL
        acts.advance(engine, request, step, step.end)


def _admit_waiting(engine: BlockEngine, batch: Batch) -> None:
    while engine.waiting and len(engine.runs) < engine.config.max_running:
        if batch.budget < CELL or not admit(engine, batch, engine.first_waiting):
            return
        engine.waiting.popleft()


def admit(engine: BlockEngine, batch: Batch, request: BlockRequest) -> bool:
    """Give a request what it starts with, and its row of this step; False, and nothing is held,
    when too few blocks are free or its hit is being computed."""
    lookup = engine.cache.lookup(engine.chain_of(request))
    early = lookup.deferred and engine.config.faults.read_unwritten
    if lookup.deferred and not early:
        request.deferred += 1
        engine.emit(bl.Deferred(request.name, lookup.restore))
        return False
    # Held before anything is allocated, or the allocation could take what was just found.
    lease = engine.cache.acquire(lookup, unwritten=early)
    request.lease, request.computed = lease, lookup.restore
    request.phase = Phase.PREFILL if request.computed < request.n_tokens else Phase.DECODE
    if request.arrival is not None and request.arrival.boundary <= lookup.restore:
        request.arrival = None  # the cache knows as much
    events = _admission(engine, request, lookup)
    if request.arrival is not None:
        step = arrivals.allocate(engine, request, events)
    else:
        end = request.computed + 1
        if request.phase is Phase.PREFILL:
            end = _chunk_end(engine, batch, request)
        step = acts.allocate(engine, request, end, say_first=events)
    if step is None:
        engine.cache.release(lease, used=False)
        request.lease, request.computed, request.phase = None, 0, Phase.WAITING
        return False
    request.lookup = lookup
    engine.running.append(request)
    if early:
        request.spoiled = True
        what = f"it reads {lookup.restore:,} tokens of blocks that this very step is to write."
        engine.emit(ev.FaultInjected(request.name, "read_unwritten", what))
    _take(engine, batch, request, step, ())
    return True


def _admission(engine: BlockEngine, request: BlockRequest, lookup: BlockLookup) -> list[ev.Event]:
    """The events of an admission, as the rows stand before anything is allocated."""
    name, rows, reach = request.name, acts.rows_of(engine, request), lookup.reach
    found: list[ev.Event] = [
        bl.Matched(
            name,
            lookup.token_match,
            lookup.restore,
            lookup.replay,
            lookup.branching,
            reach[StateKind.MLA_KV],
            reach[StateKind.KDA_RECURRENT],
            (),
            lookup.binding,
            lookup.why,
        )
    ]
    if lookup.restore < lookup.token_match:
        found.append(ev.FellBack(name, lookup.token_match, lookup.restore, lookup.binding))
    kv = tuple(tuple(b.id for b in row) for row in rows.kv.values())
    borrowed = tuple(rows.borrowed[g].id if g in rows.borrowed else -1 for g in rows.kv)
    states = tuple(
        row.running.id if row.running is not None else -1 for row in rows.states.values()
    )
    shared = kv[0] if kv else ()
    found.append(bl.Admitted(name, -1, -1, lookup.restore, shared, (), (), kv, borrowed, states))
    return found
