"""Faults that leave a checkpoint's memory to others: what its readers find then.

``share_checkpoint``: nobody copies before writing.

Requests that hit one checkpoint then read and write one state in common. The engine keeps that
state beside the cache, as a stand-in of the checkpoint that begins as its copy: whoever hits the
checkpoint while the fault is on, now or later, goes on from whatever the last writer left. The
checkpoint's own bytes stay what they were, so the cache is clean once the fault is off.

Rows of one batch read before any of them writes; the last row's state is the one that stays.

``alias_snapshot`` and ``free_locked`` make such a stand-in too, which is read once, by the copy: of
a snapshot that its maker writes on, and of a locked checkpoint whose slot another snapshot takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from kdalab.engine import checkpointing
from kdalab.engine import events as ev
from kdalab.engine.request import Request, Start

if TYPE_CHECKING:
    from kdalab.engine.core import Engine

FAULT = "share_checkpoint"


@dataclass(slots=True)
class StandIn:
    """A checkpoint's state as its users have left it. ``writer`` wrote last, "" until somebody
    has. ``told`` holds the (reader, writer) pairs that the log has. ``maker`` is the request whose
    slot an alias is, ``seen`` the tokens that such a state has seen."""

    recurrent: torch.Tensor
    conv: torch.Tensor
    boundary: int
    writer: str = ""
    told: set[tuple[str, str]] = field(default_factory=set)
    maker: str = ""
    seen: int = 0


def begin(engine: Engine, request: Request) -> None:
    """Instead of the copy: the request's state is from here on the one that all of them share."""
    assert request.lease is not None
    assert request.lease.state is not None
    slot, boundary = request.lease.state.slot, request.lease.boundary
    key = request.lease.node, slot, boundary
    if key not in engine.stand_ins:
        recurrent, conv = engine.checkpoints.read(slot)
        engine.stand_ins[key] = StandIn(recurrent, conv, boundary)
    request.stand_in = engine.stand_ins[key]


def before_reading(engine: Engine, request: Request) -> None:
    """Bring the slot of one that shares its state up to what the last writer left."""
    shared = request.stand_in
    if shared is None:
        return
    if shared.writer and shared.writer != request.name:
        _say(engine, request, shared)
    engine.active.write(request.active_slot, shared.recurrent, shared.conv, request.name)


def after_writing(
    engine: Engine, requests: Sequence[Request], recurrent: torch.Tensor, conv: torch.Tensor
) -> None:
    """What these requests wrote, [request, ...] each, is what the next reader finds."""
    aliased = engine.config.faults.alias_snapshot
    for row, request in enumerate(requests):
        mine = [s for s in engine.stand_ins.values() if aliased and s.maker == request.name]
        if request.stand_in is not None:
            mine.append(request.stand_in)
        for shared in mine:
            shared.recurrent, shared.conv = recurrent[row].clone(), conv[row].clone()
            shared.writer = request.name


def snapshot(engine: Engine, request: Request, boundary: int) -> None:
    """At a boundary where a checkpoint was to be taken, under a fault.

    ``alias_snapshot``: the checkpoint enters the tree as always, and beside it a stand-in that is
    the maker's own slot. A request that has read one leaves nothing. ``free_locked``: where no slot
    is free, that of a checkpoint that somebody waits to copy is taken.
    """
    faults = engine.config.faults
    if faults.active == ("alias_snapshot",) and not request.spoiled:
        checkpointing.in_prefill(engine, request, boundary)
        node = engine.cache.nodes[request.lease.node] if request.lease is not None else None
        if node is not None and node.state is not None and node.end == boundary:
            recurrent, conv = engine.active.read(request.active_slot)
            stand_in = StandIn(recurrent, conv, boundary, maker=request.name, seen=boundary)
            engine.stand_ins[node.id, node.state.slot, boundary] = stand_in
            what = (
                f"checkpoint {node.state.slot} of {boundary:,} tokens is not a copy: it is "
                f"{request.name}'s slot {request.active_slot}, and {request.name} writes on in it."
            )
            engine.emit(ev.FaultInjected(request.name, "alias_snapshot", what))
    elif faults.free_locked and not engine.checkpoints.slots.n_free:
        _take_locked(engine, request, boundary)


def _take_locked(engine: Engine, request: Request, boundary: int) -> None:
    waits = [r for r in engine.running if r.start is Start.COPY and r is not request]
    if engine.cache.evictable_states or not waits:
        return
    lease = waits[0].lease
    assert lease is not None
    assert lease.state is not None
    slot = lease.state.slot
    recurrent, conv = engine.active.read(request.active_slot)
    engine.stand_ins[lease.node, slot, lease.boundary] = StandIn(
        recurrent, conv, lease.boundary, request.name, seen=boundary
    )
    what = (
        f"checkpoint {slot} is locked, because {waits[0].name} will copy it; {request.name}'s "
        f"snapshot of {boundary:,} tokens takes its slot."
    )
    engine.emit(ev.FaultInjected(request.name, "free_locked", what))


def reach(engine: Engine, request: Request) -> None:
    """After the copy of a checkpoint: what the copy has read, if the checkpoint's memory is no
    longer its own."""
    faults = engine.config.faults
    lease = request.lease
    if not (faults.alias_snapshot or faults.free_locked) or lease is None or lease.state is None:
        return
    found = engine.stand_ins.get((lease.node, lease.state.slot, lease.boundary))
    if found is None or not found.writer:
        return
    engine.active.write(request.active_slot, found.recurrent, found.conv, request.name)
    request.spoiled = True
    what = (
        f"{request.name} copies checkpoint {lease.state.slot} of {lease.boundary:,} tokens and "
        f"gets the state that {found.writer} has written there."
    )
    engine.emit(ev.FaultInjected(request.name, faults.active[0], what))


def _say(engine: Engine, request: Request, shared: StandIn) -> None:
    pair = request.name, shared.writer
    if pair in shared.told:
        return
    shared.told.add(pair)
    what = (
        f"{request.name} reads the shared state of {shared.boundary:,} tokens as "
        f"{shared.writer} has overwritten it."
    )
    engine.emit(ev.FaultInjected(request.name, FAULT, what))
