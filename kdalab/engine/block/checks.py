"""The rules that bind blocks, cache and requests together, proved on the live objects."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from kdalab.engine.block.metadata import NULL_BLOCK
from kdalab.errors import InvariantError

if TYPE_CHECKING:
    from kdalab.cache.block_pool import Block
    from kdalab.engine.block.core import BlockEngine


def _require(holds: bool, rule: str, detail: object = "") -> None:
    if not holds:
        raise InvariantError(f"{rule}{f': {detail}' if detail != '' else ''}")


def check(engine: BlockEngine) -> None:
    """Raise ``InvariantError`` with the first broken rule named. Between two steps."""
    engine.cache.check()
    _check_requests(engine)
    _check_named(engine)
    if engine.config.poison:
        _check_poison(engine)


def _check_requests(engine: BlockEngine) -> None:
    cache, running = engine.cache, {r.name for r in engine.running}
    _require(not cache.copies and not cache.later, "no copy is left over between steps")
    for r in engine.requests.values():
        _require(r.is_running == (r.name in running), "running requests are in the batch", r.name)
        _require(
            r.is_running == (r.lease is not None), "it holds blocks just while it runs", r.name
        )
        if r.lease is None:
            continue
        rows = cache.requests[r.lease.id]
        _require(rows.open is None, "every step that was allocated has been advanced", r.name)
        _require(rows.computed == r.computed, "cache and request count the same tokens", r.name)
    held = {r.lease.id for r in engine.running if r.lease is not None}
    _require(held == set(cache.leases), "every lease belongs to a running request", held)


def _check_named(engine: BlockEngine) -> None:
    """A name promises numbers: a cached block was written, all of it that the name covers."""
    for block in engine.cache.pool.blocks:
        if not block.keys:
            continue
        if block.group in engine.memory.states:
            found = engine.memory.states[block.group]
            good = all(_finite(x.recurrent[block.id]) and _finite(x.conv[block.id]) for x in found)
        else:
            n = _covered(engine, block)
            pages = engine.memory.kv[block.group]
            good = all(_finite(x.pages[block.id, :n]) for x in pages)
        _require(good, "what a name covers was written", block)


def _covered(engine: BlockEngine, block: Block) -> int:
    """Tokens of a KV block that its names cover."""
    size = engine.cache.groups[block.group].block_tokens
    return (max(k.boundary for k in block.keys) - 1) % size + 1


def _finite(t: torch.Tensor) -> bool:
    return bool(t.isfinite().all())


def _check_poison(engine: BlockEngine) -> None:
    pool, memory = engine.cache.pool, engine.memory
    empty = [b.id for b in pool.free_blocks() if not b.keys]
    rule = "free memory stays poisoned: nobody writes where nobody owns"
    _require(memory.is_poisoned([NULL_BLOCK]), "the null block is never written")
    _require(memory.is_poisoned(empty), rule)
    for group in range(len(engine.cache.groups)):
        used = [b.id for b in pool.blocks if b.group == group and (b.ref or b.keys)]
        untouched = memory.padding_is_untouched(group, used)
        _require(untouched, "only real bytes are written, no padding", group)
