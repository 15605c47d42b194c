"""A step of one request among blocks: which it needs, which copies, and what gets a name.

* In cache mode ``align`` the running state stands in slot ``ceil(n / block) - 1`` of the row.
  Inside its slot it is written in place; at the next slot it gets a new block, and the old one,
  whose state stands at exactly its slot's end or at no boundary at all, is given back.
* A running block that has been cached at its partial boundary must not be written. Its owner keeps
  it and the *entry* moves to a new block, to which it is copied first (the reverse of copy on
  write: the owner's table stays as it is). Who hit the entry takes a private copy instead.
* A KV block is only ever appended to, so a name at a partial boundary stays true; whoever hits it
  copies the tokens up to there into a block of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kdalab.cache.block_lookup import CacheMode
from kdalab.cache.block_pool import Block, Key, Lost
from kdalab.cache.block_rows import Copy, Request, StateRow, StateWork, Step

if TYPE_CHECKING:
    from kdalab.cache.block_state import BlockStateCache


def boundaries(cache: BlockStateCache, request: Request, end: int, drafts: int) -> list[int]:
    """The boundaries at which a step to ``end`` leaves a state, ascending."""
    start, block = request.computed, cache.state_block
    inside: list[int] = []
    if cache.mode is CacheMode.ALL:
        inside = list(range(start // block * block + block, end, block))
    elif request.stops.stored_inside(start, end):
        inside = [request.stops.tail]
    return [*inside, *range(end, end + drafts + 1)]


def staying(cache: BlockStateCache, request: Request, points: list[int], end: int) -> int | None:
    """The last of ``points`` up to ``end`` whose state stands where the running one stands; in
    every group alike, as all have blocks of one size and a running state once there are tokens."""
    computed = request.computed
    if not computed:
        return None
    if cache.mode is CacheMode.NONE:
        return end
    reach = min(end, -(-computed // cache.state_block) * cache.state_block)
    return max((p for p in points if p <= reach), default=None)


def allocate(cache: BlockStateCache, request: Request, end: int, drafts: int) -> Step | None:
    """See ``BlockStateCache.allocate``."""
    points = boundaries(cache, request, end, drafts)
    stay = staying(cache, request, points, end)
    # A row may be longer than what is missing: blocks for drafts that were rejected stay for the
    # tokens that come in their place.
    blocks, reach = cache.block_tokens, end + drafts
    missing = {g: max(0, -(-reach // blocks[g]) - len(row)) for g, row in request.kv.items()}
    need = sum(missing.values()) + len(points) * len(request.states)
    if stay is not None:
        for row in request.states.values():
            assert row.running is not None
            need -= row.owned and not row.running.keys
    if need > cache.pool.n_free:
        return None
    if request.last is None:
        cache.pool.begin()
    copies: list[Copy] = []
    kv_blocks = {g: _extend_kv(cache, request, g, n, copies) for g, n in missing.items()}
    others = points if stay is None else [p for p in points if p != stay]
    states = [_state_work(cache, g, row, others, stay, copies) for g, row in request.states.items()]
    cache.copies += copies
    lost, cache.pool.lost = cache.pool.lost, []
    request.open = Step(
        request.computed, end, drafts, kv_blocks, tuple(states), tuple(copies), tuple(lost)
    )
    return request.open


def _extend_kv(
    cache: BlockStateCache, request: Request, group: int, count: int, copies: list[Copy]
) -> tuple[int, ...]:
    row, new = request.kv[group], cache.pool.take(count, group)
    if group in request.borrowed:
        source, at = request.borrowed.pop(group), request.computed
        copies.append(_copy(cache, group, source, new[0], at % cache.block_tokens[group]))
        new[0].length = at
        cache.copy_refs.append(source)  # the request's own reference, until the copy is made
    row += new
    return tuple([b.id for b in new])


def _copy(cache: BlockStateCache, group: int, source: Block, target: Block, tokens: int) -> Copy:
    """Queue a copy; the target is held until it is made, the source by a reference of its own."""
    cache.pool.hold((target,))
    cache.copy_refs.append(target)
    return Copy(group, source.id, target.id, tokens)


def _state_work(
    cache: BlockStateCache,
    group: int,
    row: StateRow,
    points: list[int],
    stay: int | None,
    copies: list[Copy],
) -> StateWork:
    """Blocks for the states at ``points``; the one at ``stay`` goes where the running one stands
    (one inside the chunk that shares its slot gets a block of its own)."""
    pool, running = cache.pool, row.running
    if running is not None and stay is not None:
        if not row.owned or running.keys:
            (new,) = pool.take(1, group)
            others = running.ref > 1
            copies.append(_copy(cache, group, running, new, 0))
            cache.copy_refs.append(running)
            if row.owned and not others:
                pool.hold((running,))
                pool.rename(running, new)
                pool.drop((new,))  # the copy's reference keeps it from being taken
            else:
                # `running`'s reference is the copy's now.
                new.length = running.length
                row.running = running = new
        row.owned = True
        row.pending[stay] = running
    pending = row.pending
    for point, block in zip(points, pool.take(len(points), group), strict=True):
        pending[point] = block
    read = running.id if running is not None else 0
    return StateWork(group, read, {point: b.id for point, b in pending.items()})


def advance(cache: BlockStateCache, request: Request, end: int) -> None:
    """See ``BlockStateCache.advance``."""
    start, request.computed = request.computed, end
    request.open, request.last = None, request.open
    cache.pool.follow(request.chain)
    for group, kv in request.kv.items():
        _name_kv(cache, request, group, kv, start, end)
    for group, row in request.states.items():
        _settle(cache, request, group, row, end)


def withdraw(cache: BlockStateCache, request: Request) -> list[Lost]:
    """See ``BlockStateCache.withdraw``."""
    step, gone = request.last, []
    if step is None:
        return []
    for group, row in request.kv.items():
        first = step.start // cache.block_tokens[group]
        gone += [Lost(b.id, group, cache.pool.forget(b, step.start)) for b in row[first:] if b.keys]
    for work in step.states:
        blocks = [cache.pool.blocks[i] for i in work.writes.values()]
        gone += [Lost(b.id, work.group, cache.pool.forget(b)) for b in blocks if b.keys]
    return [lost for lost in gone if lost.keys]


def _name_kv(
    cache: BlockStateCache, request: Request, group: int, row: list[Block], start: int, end: int
) -> None:
    chain, pool, block = request.chain, cache.pool, cache.block_tokens[group]
    first, known = start // block, min(end, chain.hashed)
    at = first * block
    for kv in row[first:]:
        at += block
        if at <= known:
            kv.length = at
            pool.name(kv, Key(chain.at(at), at), is_state=False)
        else:
            kv.length = min(at, end)
    # A state inside an attention block is of no use without the KV up to it.
    if cache.mode is not CacheMode.ALIGN:
        return
    for at in request.stops.kv_points:
        if start < at <= known and at % block:
            pool.name(row[at // block], Key(chain.at(at), at), is_state=False)


def _settle(cache: BlockStateCache, request: Request, group: int, row: StateRow, end: int) -> None:
    """The block of ``end`` becomes the running one; the others get a name or go."""
    old, row.running, row.owned = row.running, row.pending[end], True
    gone: list[Block] = []
    for point, block in row.pending.items():
        if point > end:
            gone.append(block)
            continue
        block.length = point
        named = _name_state(cache, request, block, point)
        if block is not row.running:
            if named and cache.mode is CacheMode.ALL:
                row.kept.append(block)
            else:
                gone.append(block)
    if old is not None and old is not row.running and old not in row.pending.values():
        (row.kept if cache.mode is CacheMode.ALL else gone).append(old)
    row.pending = {}
    cache._give_back(gone)


def _name_state(cache: BlockStateCache, request: Request, block: Block, at: int) -> bool:
    chain, stops = request.chain, request.stops
    on_grid = at % cache.state_block == 0 or at == stops.tail
    if cache.mode is CacheMode.NONE or not on_grid or at % chain.unit or at > chain.hashed:
        return False
    if not cache.retention.keeps(at, stops.points):
        return False
    return cache.pool.name(block, Key(chain.at(at), at), is_state=True)
