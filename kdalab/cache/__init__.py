"""Decisions without tensors: what is known, what can be restored, what to keep, what to evict."""

from kdalab.cache.block_hash import ExtraKeys, HashChain, Image
from kdalab.cache.block_lookup import BlockLookup, CacheMode, GroupReach
from kdalab.cache.block_retention import BlockRetention, parse_block_retention
from kdalab.cache.block_rows import Copy, StateWork, Step
from kdalab.cache.block_state import BlockConfig, BlockStateCache
from kdalab.cache.flops import PrefillFlops
from kdalab.cache.groups import (
    BlockLayout,
    BlockSizes,
    CacheSpec,
    Group,
    GroupKind,
    attention_block,
    block_sizes,
    group_layers,
    layer_specs,
    packed_layout,
    padded_layout,
    plain_groups,
)
from kdalab.cache.host import HostTier
from kdalab.cache.keys import PrefixKey
from kdalab.cache.marconi import Marconi, MarconiOrder, best_alpha
from kdalab.cache.placement import Placement, parse_placement
from kdalab.cache.protocol import Bytes, Checkpoint, Committed, Evicted, Lease, Lookup, StateCache
from kdalab.cache.radix import RadixStateCache
from kdalab.cache.retention import EvictionOrder, Lru, Retention, parse_retention
from kdalab.cache.snapshot import load as load_cache
from kdalab.cache.snapshot import save as save_cache
from kdalab.cache.transfers import Landed, Transfer, Wish

__all__ = [
    "BlockConfig",
    "BlockLayout",
    "BlockLookup",
    "BlockRetention",
    "BlockSizes",
    "BlockStateCache",
    "Bytes",
    "CacheMode",
    "CacheSpec",
    "Checkpoint",
    "Committed",
    "Copy",
    "Evicted",
    "EvictionOrder",
    "ExtraKeys",
    "Group",
    "GroupKind",
    "GroupReach",
    "HashChain",
    "HostTier",
    "Image",
    "Landed",
    "Lease",
    "Lookup",
    "Lru",
    "Marconi",
    "MarconiOrder",
    "Placement",
    "PrefillFlops",
    "PrefixKey",
    "RadixStateCache",
    "Retention",
    "StateCache",
    "StateWork",
    "Step",
    "Transfer",
    "Wish",
    "attention_block",
    "best_alpha",
    "block_sizes",
    "group_layers",
    "layer_specs",
    "load_cache",
    "packed_layout",
    "padded_layout",
    "parse_block_retention",
    "parse_placement",
    "parse_retention",
    "plain_groups",
    "save_cache",
]
