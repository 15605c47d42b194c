"""Bytes without decisions: slots with owners, and the pools that hold states and latent KV."""

from kdalab.memory.active import ActivePool
from kdalab.memory.checkpoints import CheckpointPool
from kdalab.memory.latent import LatentPool
from kdalab.memory.slots import CACHE, SlotAllocator

__all__ = ["CACHE", "ActivePool", "CheckpointPool", "LatentPool", "SlotAllocator"]
