"""Every invariant of the block cache, recounted from the requests and compared with the pool."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from kdalab.cache.block_lookup import CacheMode
from kdalab.errors import InvariantError

if TYPE_CHECKING:
    from kdalab.cache.block_rows import Request
    from kdalab.cache.block_state import BlockStateCache


def _require(holds: bool, rule: str, detail: object = "") -> None:
    if not holds:
        raise InvariantError(f"{rule}{f': {detail}' if detail != '' else ''}")


def check(cache: BlockStateCache) -> None:
    """Raise ``InvariantError`` with the first broken rule named."""
    cache.pool.check()
    refs: Counter[int] = Counter(b.id for b in (*cache.copy_refs, *cache.later))
    writers: Counter[int] = Counter()
    for request in cache.requests.values():
        refs.update(b.id for b in request.blocks())
        writers.update(_written(cache, request))
        _check_rows(cache, request)
    for block in cache.pool.blocks[1:]:
        _require(block.ref == refs[block.id], "references equal the rows, copies and steps", block)
    twice = [b for b, count in writers.items() if count > 1]
    _require(not twice, "a block has one writer", twice[:5])
    _require(
        cache.pool.n_free + len(+refs) == len(cache.pool.blocks) - 1, "free + referenced = total"
    )
    for group in cache.state_groups:
        for block in {b.id: b for b in cache.pool.tables[group].values()}.values():
            (key,) = block.keys
            _require(key.boundary == block.length, "key length equals state length", block)
            on_unit = key.boundary % cache.sizes.unit == 0
            _require(on_unit, "states are known on the hash unit", block)
    names = [c.target for c in cache.copies]
    _require(len(names) == len(set(names)), "a block is the target of one copy", names)


def _written(cache: BlockStateCache, request: Request) -> set[int]:
    """Blocks that the request may write: where its running state goes, and its last KV block."""
    found = {b.id for row in request.states.values() for b in row.pending.values()}
    for group, row in request.kv.items():
        first = request.computed // cache.groups[group].block_tokens
        found |= {b.id for b in row[first:]}
    return found


def _check_rows(cache: BlockStateCache, request: Request) -> None:
    block = cache.config.state_block
    for group, kv in request.kv.items():
        size = cache.groups[group].block_tokens
        held = len(kv) * size
        short = request.computed - held
        _require(short <= 0 or group in request.borrowed, "KV covers what is computed", group)
        for index, b in enumerate(kv[: request.computed // size]):
            _require(b.length == (index + 1) * size, "a KV block before the end is full", b)
    for row in request.states.values():
        running = row.running
        _require((running is None) == (request.computed == 0), "a state once there are tokens")
        if running is None:
            continue
        _require(running.length == request.computed, "the running state is of all tokens", running)
        if row.owned and request.open is not None:
            _require(
                not (running.keys and running in row.pending.values()),
                "a named state is not written",
                running,
            )
        if cache.mode is CacheMode.ALIGN:
            for b in row.blocks():
                slot_end = -(-b.length // block) * block
                _require(
                    not b.keys or b.length in (slot_end, b.keys[0].boundary),
                    "slot p holds the state after exactly (p + 1) x block tokens, or its tail",
                    b,
                )
