"""Decisions without tensors: what is known, what can be restored, what to keep, what to evict."""

from kdalab.cache.host import HostTier
from kdalab.cache.keys import PrefixKey
from kdalab.cache.placement import Placement, parse_placement
from kdalab.cache.protocol import Bytes, Checkpoint, Committed, Evicted, Lease, Lookup, StateCache
from kdalab.cache.radix import RadixStateCache
from kdalab.cache.retention import EvictionOrder, Lru, Retention, parse_retention
from kdalab.cache.snapshot import load as load_cache
from kdalab.cache.snapshot import save as save_cache
from kdalab.cache.transfers import Landed, Transfer, Wish

__all__ = [
    "Bytes",
    "Checkpoint",
    "Committed",
    "Evicted",
    "EvictionOrder",
    "HostTier",
    "Landed",
    "Lease",
    "Lookup",
    "Lru",
    "Placement",
    "PrefixKey",
    "RadixStateCache",
    "Retention",
    "StateCache",
    "Transfer",
    "Wish",
    "load_cache",
    "parse_placement",
    "parse_retention",
    "save_cache",
]
