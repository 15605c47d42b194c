"""The memory of one engine, as its configuration asks for it."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, NamedTuple

from kdalab.engine.config import EngineConfig
from kdalab.engine.failures import named
from kdalab.engine.strategy import slots_per_request
from kdalab.errors import KdalabError
from kdalab.memory import (
    ActivePool,
    CheckpointPool,
    Int8CheckpointPool,
    LatentPool,
    UnifiedBuffer,
)
from kdalab.memory.int8 import int8_slot_bytes
from kdalab.memory.unified import state_bytes
from kdalab.units import format_bytes

if TYPE_CHECKING:
    from kdalab.model import HybridModel


class Pools(NamedTuple):
    """``buffer`` is None when memory is split."""

    buffer: UnifiedBuffer | None
    active: ActivePool
    checkpoints: CheckpointPool | Int8CheckpointPool
    latents: LatentPool

    @property
    def page_bytes(self) -> int:
        """Bytes that one page gives back."""
        return self.buffer.pages.entry_bytes if self.buffer else self.latents.page_bytes

    @property
    def checkpoint_bytes(self) -> int:
        """Bytes that one checkpoint gives back."""
        return self.buffer.states.entry_bytes if self.buffer else self.checkpoints.slot_bytes


def build_pools(model: HybridModel, config: EngineConfig) -> Pools:
    """Allocate everything.

    Raises:
        KdalabError: the bytes asked for do not hold what one request needs, exceed the machine's
            memory, or an INT8 pool would exceed its limit.
    """
    wanted, machine = bytes_wanted(model, config), machine_bytes()
    if machine is not None and wanted > machine:
        raise KdalabError(
            f"the pools need {format_bytes(wanted)}; this machine has {format_bytes(machine)} of "
            "memory. Lower n_pages, n_active, n_checkpoints, memory_bytes or the host's sizes"
        )
    try:
        return _build(model, config)
    except (RuntimeError, MemoryError) as error:
        raise KdalabError(
            f"the pools need {format_bytes(wanted)}, which cannot be had: {named(error)}"
        ) from error


def bytes_wanted(model: HybridModel, config: EngineConfig) -> int:
    """Bytes of every pool of both levels, before anything is allocated."""
    shapes = model.recurrent_shape, model.conv_shape, model.dtype
    page = _page_bytes(model, config)
    state = state_bytes(*shapes)
    checkpoint = int8_slot_bytes(*shapes) if config.int8 else state
    total = config.n_pages * page + config.n_active * state + config.n_checkpoints * checkpoint
    if config.memory == "unified" and config.memory_bytes is not None:
        total = config.memory_bytes
    if config.host is not None:
        total += config.host.n_pages * page + config.host.n_checkpoints * checkpoint
    return total


def machine_bytes() -> int | None:
    """Bytes of this machine's memory; None where the system does not tell."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # Windows has no sysconf
        return None


def _page_bytes(model: HybridModel, config: EngineConfig) -> int:
    shape = model.n_mla_layers, config.page_tokens, model.latent_dim
    return math.prod(shape) * model.dtype.itemsize


def _build(model: HybridModel, config: EngineConfig) -> Pools:
    shapes = model.recurrent_shape, model.conv_shape, model.dtype
    latent = model.n_mla_layers, config.page_tokens, model.latent_dim, model.dtype
    if config.memory == "unified":
        return _unified(model, config)
    latents = LatentPool(config.n_pages, *latent)
    checkpoints: CheckpointPool | Int8CheckpointPool
    if config.int8:
        active = ActivePool(config.n_active, *shapes)
        limit = config.checkpoint_limit
        checkpoints = Int8CheckpointPool(config.n_checkpoints, *shapes, limit=limit)
    elif config.shares_states:
        active = ActivePool(config.n_active + config.n_checkpoints, *shapes)
        checkpoints = CheckpointPool.sharing(active)
    else:
        active = ActivePool(config.n_active, *shapes)
        checkpoints = CheckpointPool(config.n_checkpoints, *shapes)
    if not config.poison:
        active.fill, checkpoints.fill, latents.fill = None, None, None
    return Pools(None, active, checkpoints, latents)


def _unified(model: HybridModel, config: EngineConfig) -> Pools:
    shapes = model.recurrent_shape, model.conv_shape, model.dtype
    page = _page_bytes(model, config)
    state = state_bytes(*shapes)
    nbytes = config.memory_bytes
    if nbytes is None:
        n_states = config.n_active + config.n_checkpoints
        nbytes = UnifiedBuffer.bytes_for(config.n_pages, page, n_states, state)
    buffer = UnifiedBuffer(nbytes, page, state, config.lazy_compaction, config.poison)
    need = slots_per_request(config.how, config.overlap)
    if buffer.most_pages(need) < 1:
        page, state = buffer.pages.entry_bytes, buffer.states.entry_bytes
        raise KdalabError(
            f"unified memory of {nbytes:,} bytes: one request under {config.how} needs {need} "
            f"states of {state:,} bytes = {need * state:,}, one page of {page:,} and "
            f"{buffer.sink_bytes:,} of padding; {UnifiedBuffer.bytes_for(1, page, need, state):,} "
            "bytes are enough. Raise memory_bytes, or n_pages, n_active and n_checkpoints"
        )
    active = ActivePool(0, *shapes, storage=buffer.state_storage(*shapes))
    latents = LatentPool(
        0, model.n_mla_layers, config.page_tokens, model.latent_dim, model.dtype, buffer
    )
    return Pools(buffer, active, CheckpointPool.sharing(active), latents)
