"""The cache's acts, each with its events: nothing changes a block without a line in the log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kdalab.cache import GroupKind, PrefixKey, Step
from kdalab.engine.block import events as bl
from kdalab.engine.block.metadata import QueryRow, state_row
from kdalab.engine.events import Event
from kdalab.errors import InvariantError

if TYPE_CHECKING:
    from kdalab.cache.block_rows import Request as Rows
    from kdalab.engine.block.core import BlockEngine
    from kdalab.engine.block.request import BlockRequest


def rows_of(engine: BlockEngine, request: BlockRequest) -> Rows:
    """The cache's rows of a running request."""
    assert request.lease is not None
    return engine.cache.requests[request.lease.id]


def allocate(
    engine: BlockEngine,
    request: BlockRequest,
    end: int,
    drafts: int = 0,
    say_first: Sequence[Event] = (),
) -> Step | None:
    """Blocks for tokens up to ``end`` and ``drafts`` more; None, and no event, when too few are
    free. ``say_first`` are events that come before those of the allocation."""
    assert request.lease is not None
    cache, name, rows = engine.cache, request.name, rows_of(engine, request)
    before = {g: {b.id for b in row.blocks()} for g, row in rows.states.items()}
    step = cache.allocate(request.lease, end, drafts)
    if step is None:
        return None
    for event in say_first:
        engine.emit(event)
    for lost in step.lost:
        at = tuple(sorted(k.boundary for k in lost.keys))
        engine.emit(bl.NamesEvicted(name, lost.group, lost.block, at))
    engine.memory.poison([lost.block for lost in step.lost])
    engine.dirty.update(b for blocks in step.kv_blocks.values() for b in blocks)
    engine.dirty.update(b for work in step.states for b in work.writes.values())
    engine.dirty.update(copy.target for copy in step.copies)
    for group, blocks in step.kv_blocks.items():
        if blocks:
            label = cache.groups[group].name
            engine.emit(bl.BlocksAllocated(name, group, label, blocks, "kv"))
    for work in step.states:
        new = tuple(b for b in work.writes.values() if b not in before[work.group])
        if new:
            label = cache.groups[work.group].name
            engine.emit(bl.BlocksAllocated(name, work.group, label, new, "state"))
    for copy in step.copies:
        spec = cache.groups[copy.group].spec
        if spec.kind is GroupKind.FULL:
            kind, size = "tail", copy.tokens * spec.token_bytes
        else:
            running = rows.states[copy.group].running
            kind = "private" if running is not None and running.id == copy.target else "entry"
            size = spec.page_bytes
        size *= len(cache.groups[copy.group].layers)
        engine.emit(bl.CopyQueued(name, *copy, kind, size))
    return step


def query_row(engine: BlockEngine, request: BlockRequest, step: Step) -> QueryRow:
    """The request's part in the step, for the metadata. Call it before ``advance``."""
    cache, rows = engine.cache, rows_of(engine, request)
    block = engine.state_block
    tables: list[tuple[int, ...]] = [()] * len(cache.groups)
    for group in cache.kv_groups:
        tables[group] = tuple(b.id for b in rows.kv[group])
    inside: tuple[tuple[int, int], ...] = ()
    for work in step.states:
        tables[work.group], at = state_row(work, step.start, step.end, step.drafts, block)
        if inside and at != inside:
            raise InvariantError("state groups store other boundaries inside one chunk")
        inside = at
    return QueryRow(request.name, step.start, step.end, step.drafts, tuple(tables), inside)


def advance(
    engine: BlockEngine,
    request: BlockRequest,
    step: Step,
    end: int,
    tokens: Sequence[int] | None = None,
) -> None:
    """Tokens up to ``end`` count as computed: which states that leaves, what gets a name, and
    what the request lets go of. ``tokens`` [end] are given where ``extends_hashes``."""
    assert request.lease is not None
    cache, name, rows = engine.cache, request.name, rows_of(engine, request)
    pending = {g: dict(row.pending) for g, row in rows.states.items()}
    held = {g: {b.id: b for b in row.blocks()} for g, row in rows.states.items()}
    lengths = {b.id: b.length for blocks in held.values() for b in blocks.values()}
    kv = {g: row[step.start // cache.groups[g].block_tokens :] for g, row in rows.kv.items()}
    known = {b.id: b.keys for blocks in kv.values() for b in blocks}
    known |= {b.id: b.keys for blocks in held.values() for b in blocks.values()}
    prefix = PrefixKey.from_tokens(tokens, cache.sizes.unit) if tokens is not None else None
    request.lease = cache.advance(request.lease, end, prefix)
    writes = tuple(
        (g, at, b.id) for g, row in pending.items() for at, b in row.items() if at <= end
    )
    if writes:
        engine.emit(bl.StatesWritten(name, step.start, end, writes))
    for g, blocks in kv.items():
        names = tuple((b.id, k.boundary) for b in blocks for k in b.keys if k not in known[b.id])
        if names:
            engine.emit(bl.KVCached(name, g, names))
    for g, found in held.items():
        for b in found.values():
            for key in b.keys:
                if key not in known[b.id]:
                    engine.emit(bl.StateCached(name, g, b.id, key.boundary))
    gone = []
    for g, found in held.items():
        kept = {b.id for b in rows.states[g].blocks()}
        drafted = {b.id: at for at, b in pending[g].items()}
        gone += [(g, drafted.get(i, lengths[i]), i) for i in found if i not in kept]
    if gone:
        engine.emit(bl.Nulled(name, tuple(gone)))


def withdraw(engine: BlockEngine, request: BlockRequest) -> None:
    """The request's forward failed after ``advance``: what this step named must never be read."""
    assert request.lease is not None
    gone = engine.cache.withdraw(request.lease)
    names = tuple((g.group, g.block, k.boundary) for g in gone for k in g.keys)
    if names:
        engine.emit(bl.NamesWithdrawn(request.name, names))


def extends_hashes(engine: BlockEngine, request: BlockRequest, end: int) -> bool:
    """Does a step to ``end`` complete a hash unit whose tokens the cache has not been told, and
    should be?"""
    if not engine.config.cache_decoded:
        return False
    return end >= rows_of(engine, request).chain.hashed + engine.cache.sizes.unit
