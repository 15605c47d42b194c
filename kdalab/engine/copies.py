"""Deferred beginnings, and where a request's state is read from.

A hit is decided at admission, but the bytes move with the forward: the checkpoint is copied into
the private slot just before the request's first cell runs, in whatever order requests get there.
Until then the checkpoint stays locked, so nobody can take it away.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from kdalab.engine import shared_state
from kdalab.engine.request import Request, Start
from kdalab.memory.int8 import dequantise, quantise

if TYPE_CHECKING:
    from kdalab.engine.core import Engine


def settle(engine: Engine, request: Request) -> None:
    """Do what the request's private slot waits for; harmless if repeated, also after a failure."""
    start = request.start
    name, slot = request.name, request.active_slot
    if start is Start.CLEAR:
        if not engine.config.faults.skip_clear:
            engine.active.clear(slot, name)
    elif start is Start.COPY:
        assert request.lease is not None
        assert request.lease.state is not None
        engine.checkpoints.load(request.lease.state, engine.active, slot, name)
        faults = engine.config.faults
        if faults.share_checkpoint:
            shared_state.begin(engine, request)
        shared_state.reach(engine, request)
        if faults.drop_conv:
            recurrent, conv = engine.active.read(slot)
            engine.active.write(slot, recurrent, torch.zeros_like(conv), name)
        if faults.skip_replay and request.token_match > request.computed:
            request.stale_state = engine.active.read(slot)
        engine.cache.unlock_state(request.lease)
    request.start = None  # last, so that a copy that broke is made again


def read_state(engine: Engine, request: Request) -> tuple[torch.Tensor, torch.Tensor]:
    """(recurrent, conv) after ``request.computed`` tokens, as copies."""
    return engine.active.read(_source(engine, request))


def read_states(engine: Engine, requests: list[Request]) -> tuple[torch.Tensor, torch.Tensor]:
    """As ``read_state``, stacked: [request, ...] each."""
    return engine.active.read_many([_source(engine, r) for r in requests])


def _source(engine: Engine, request: Request) -> int:
    settle(engine, request)
    shared_state.before_reading(engine, request)
    return request.source_slot if request.source_slot >= 0 else request.active_slot


def write_state(
    engine: Engine, request: Request, recurrent: torch.Tensor, conv: torch.Tensor
) -> None:
    """What the forward made goes into the active slot; what it read from is let go."""
    write_states(engine, [request], recurrent[None], conv[None])


def write_states(
    engine: Engine, requests: list[Request], recurrent: torch.Tensor, conv: torch.Tensor
) -> None:
    """As ``write_state``, for the rows of a batch."""
    if engine.config.faults.quantise_in_recurrence:
        recurrent = dequantise(*quantise(recurrent), recurrent.dtype)
    slots, owners = [r.active_slot for r in requests], [r.name for r in requests]
    engine.active.write_many(slots, recurrent, conv, owners)
    shared_state.after_writing(engine, requests, recurrent, conv)
    for request in requests:
        if request.source_slot >= 0:
            request.source_slot = -1
            if request.lease is not None:
                engine.cache.unlock_state(request.lease)
