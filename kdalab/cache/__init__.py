"""Decisions without tensors: what is known, what can be restored, what to keep, what to evict."""

from kdalab.cache.keys import PrefixKey
from kdalab.cache.placement import Placement, parse_placement
from kdalab.cache.protocol import Bytes, Checkpoint, Committed, Evicted, Lease, Lookup, StateCache
from kdalab.cache.radix import RadixStateCache

__all__ = [
    "Bytes",
    "Checkpoint",
    "Committed",
    "Evicted",
    "Lease",
    "Lookup",
    "Placement",
    "PrefixKey",
    "RadixStateCache",
    "StateCache",
    "parse_placement",
]
