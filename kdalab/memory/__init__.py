"""Bytes without decisions: slots with owners, and the pools that hold states and latent KV.

The tensor pools load torch when they are first asked for: a trace replay counts bytes with
``memory.counting`` and needs none of it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from kdalab.memory.counting import CountingPool
from kdalab.memory.slots import CACHE, SlotAllocator

if TYPE_CHECKING:
    from kdalab.memory.active import ActivePool
    from kdalab.memory.blocks import BlockBuffer
    from kdalab.memory.checkpoints import CheckpointPool
    from kdalab.memory.host import Level
    from kdalab.memory.int8 import Int8CheckpointPool
    from kdalab.memory.latent import LatentPool
    from kdalab.memory.unified import UnifiedBuffer
    from kdalab.memory.unified_slots import UnifiedSlots

__all__ = [
    "CACHE",
    "ActivePool",
    "BlockBuffer",
    "CheckpointPool",
    "CountingPool",
    "Int8CheckpointPool",
    "LatentPool",
    "Level",
    "SlotAllocator",
    "UnifiedBuffer",
    "UnifiedSlots",
]

_WITH_TENSORS = {
    "ActivePool": "kdalab.memory.active",
    "BlockBuffer": "kdalab.memory.blocks",
    "CheckpointPool": "kdalab.memory.checkpoints",
    "Int8CheckpointPool": "kdalab.memory.int8",
    "Level": "kdalab.memory.host",
    "LatentPool": "kdalab.memory.latent",
    "UnifiedBuffer": "kdalab.memory.unified",
    "UnifiedSlots": "kdalab.memory.unified_slots",
}


def __getattr__(name: str) -> Any:
    if name in _WITH_TENSORS:
        return getattr(import_module(_WITH_TENSORS[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
