"""What an eviction order that weighs FLOPs against bytes must know about the engine's own model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kdalab.cache import BlockRetention, Marconi, PrefillFlops, Retention
from kdalab.spec import spec_from_hf_config

if TYPE_CHECKING:
    from kdalab.engine.pools import Pools
    from kdalab.model import HybridModel


def with_costs(retention: Retention, model: HybridModel, pools: Pools) -> Retention:
    """``retention`` with the FLOPs of ``model`` and the bytes of ``pools``, where it asks for them.

    The sizes come from the config that the network was built from, so that they cannot differ.
    """
    if not retention.asks_for_costs:
        return retention
    return retention.bound(_flops(model), pools.page_bytes, pools.checkpoint_bytes)


def block_costed(retention: BlockRetention, model: HybridModel, block_bytes: int) -> BlockRetention:
    """The same for blocks of ``block_bytes``."""
    if not isinstance(retention.order, Marconi):
        return retention
    return retention.bound(_flops(model), block_bytes)


def _flops(model: HybridModel) -> PrefillFlops:
    return PrefillFlops.of(spec_from_hf_config(model.config.to_hf()))
