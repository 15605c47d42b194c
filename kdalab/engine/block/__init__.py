"""vLLM's way in the engine: one pool of blocks for latent KV and states, found by hash."""

from kdalab.engine.block.config import BlockEngineConfig
from kdalab.engine.block.core import BlockEngine
from kdalab.engine.block.metadata import BatchMetadata, QueryRow, batch_metadata
from kdalab.engine.block.plan import BlockPlan
from kdalab.engine.block.view import BlockRequestView, BlockView, Slot, fold

__all__ = [
    "BatchMetadata",
    "BlockEngine",
    "BlockEngineConfig",
    "BlockPlan",
    "BlockRequestView",
    "BlockView",
    "QueryRow",
    "Slot",
    "batch_metadata",
    "fold",
]
