"""The memory of one engine, as its configuration asks for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kdalab.engine.config import EngineConfig
from kdalab.memory import (
    ActivePool,
    CheckpointPool,
    Int8CheckpointPool,
    LatentPool,
    UnifiedBuffer,
)
from kdalab.memory.unified import state_bytes

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
        KdalabError: the bytes asked for do not hold what one request needs, or an INT8 pool
            would exceed its limit.
    """
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
    page = model.n_mla_layers * config.page_tokens * model.latent_dim * model.dtype.itemsize
    state = state_bytes(*shapes)
    nbytes = config.memory_bytes
    if nbytes is None:
        n_states = config.n_active + config.n_checkpoints
        nbytes = UnifiedBuffer.bytes_for(config.n_pages, page, n_states, state)
    buffer = UnifiedBuffer(nbytes, page, state, config.lazy_compaction, config.poison)
    active = ActivePool(0, *shapes, storage=buffer.state_storage(*shapes))
    latents = LatentPool(
        0, model.n_mla_layers, config.page_tokens, model.latent_dim, model.dtype, buffer
    )
    return Pools(buffer, active, CheckpointPool.sharing(active), latents)
