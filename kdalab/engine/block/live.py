"""The view from the live objects, to be compared with the one that is folded from the log."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from kdalab.engine.block.view import FREE, BlockRequestView, BlockView, Slot

if TYPE_CHECKING:
    from kdalab.engine.block.core import BlockEngine
    from kdalab.engine.block.request import BlockRequest


def live_view(engine: BlockEngine) -> BlockView:
    """What ``fold(engine.events, engine.empty_view())`` must give between two steps."""
    view, states = engine.empty_view(), engine.cache.state_groups
    for block in engine.cache.pool.blocks[1:]:
        if not block.ref and not block.keys:
            view.slots[block.id] = FREE
            continue
        names = tuple(sorted(k.boundary for k in block.keys))
        seen = block.length if block.group in states else 0
        view.slots[block.id] = Slot(block.group, seen, names, block.fresh)
    for request in engine.requests.values():
        view.requests[request.name] = _request(engine, cast("BlockRequest", request))
    return view


def _request(engine: BlockEngine, r: BlockRequest) -> BlockRequestView:
    at = r.name, r.n_tokens, r.phase.value, r.token_match, r.restore, r.computed, tuple(r.generated)
    if r.lease is None:
        return BlockRequestView(*at)
    rows = engine.cache.requests[r.lease.id]
    return BlockRequestView(
        *at,
        tuple(tuple(b.id for b in row) for row in rows.kv.values()),
        tuple(rows.borrowed[g].id if g in rows.borrowed else -1 for g in rows.kv),
        tuple(
            tuple(sorted((b.length, b.id) for b in row.blocks() if b.id not in _pending(row)))
            for row in rows.states.values()
        ),
        tuple(tuple(b.id for b in row.pending.values()) for row in rows.states.values()),
    )


def _pending(row: object) -> set[int]:
    return {b.id for b in row.pending.values()}  # type: ignore[attr-defined]
