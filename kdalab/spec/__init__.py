"""What state is: kinds, sizes, identity and the presets. Pure arithmetic, no tensors."""

from __future__ import annotations

from pathlib import Path

from kdalab.spec.dtypes import DTYPES, canonical_dtype, itemsize
from kdalab.spec.entry import CacheEntry, Location, Tier
from kdalab.spec.hf_config import FAMILIES, load_hf_config, spec_from_hf_config
from kdalab.spec.identity import (
    CONV_LAYOUTS,
    RECURRENT_LAYOUTS,
    IdentityMismatchError,
    ParallelLayout,
    StateIdentity,
)
from kdalab.spec.kinds import CHECKPOINT_KINDS, StateKind
from kdalab.spec.model_spec import (
    FeedForward,
    GroupedAttention,
    LatentAttention,
    LayerType,
    LinearAttention,
    ModelSpec,
    three_to_one,
)
from kdalab.spec.presets import PRESETS, preset
from kdalab.spec.sizing import StateSizes, checkpoints_over, state_sizes

__all__ = [
    "CHECKPOINT_KINDS",
    "CONV_LAYOUTS",
    "DTYPES",
    "FAMILIES",
    "PRESETS",
    "RECURRENT_LAYOUTS",
    "CacheEntry",
    "FeedForward",
    "GroupedAttention",
    "IdentityMismatchError",
    "LatentAttention",
    "LayerType",
    "LinearAttention",
    "Location",
    "ModelSpec",
    "ParallelLayout",
    "StateIdentity",
    "StateKind",
    "StateSizes",
    "Tier",
    "canonical_dtype",
    "checkpoints_over",
    "itemsize",
    "load_hf_config",
    "preset",
    "resolve_model",
    "spec_from_hf_config",
    "state_sizes",
    "three_to_one",
]


def resolve_model(name_or_path: str) -> ModelSpec:
    """A preset by name, or a ``config.json`` (or a folder with one) by path.

    Raises:
        KdalabError: neither; the message lists the known presets.
    """
    if name_or_path.strip().lower() in PRESETS:
        return preset(name_or_path)
    looks_like_path = name_or_path.endswith(".json") or "/" in name_or_path or "\\" in name_or_path
    if looks_like_path or (len(name_or_path) < 256 and Path(name_or_path).exists()):
        return load_hf_config(name_or_path)
    return preset(name_or_path)
