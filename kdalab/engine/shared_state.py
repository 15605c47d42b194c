"""Fault ``share_checkpoint``: what happens to requests when nobody copies before writing.

Requests that hit one checkpoint then read and write one state in common. The engine keeps that
state beside the cache, as a stand-in of the checkpoint that begins as its copy: whoever hits the
checkpoint while the fault is on, now or later, goes on from whatever the last writer left. The
checkpoint's own bytes stay what they were, so the cache is clean once the fault is off.

Rows of one batch read before any of them writes; the last row's state is the one that stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from kdalab.engine import events as ev
from kdalab.engine.request import Request

if TYPE_CHECKING:
    from kdalab.engine.core import Engine

FAULT = "share_checkpoint"


@dataclass(slots=True)
class StandIn:
    """A checkpoint's state as its users have left it. ``writer`` wrote last, "" until somebody
    has. ``told`` holds the (reader, writer) pairs that the log has."""

    recurrent: torch.Tensor
    conv: torch.Tensor
    boundary: int
    writer: str = ""
    told: set[tuple[str, str]] = field(default_factory=set)


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


def after_writing(requests: Sequence[Request], recurrent: torch.Tensor, conv: torch.Tensor) -> None:
    """What these requests wrote, [request, ...] each, is what the next reader finds."""
    for row, request in enumerate(requests):
        shared = request.stand_in
        if shared is not None:
            shared.recurrent, shared.conv = recurrent[row].clone(), conv[row].clone()
            shared.writer = request.name


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
