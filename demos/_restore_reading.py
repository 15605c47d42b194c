"""What the restore page says beside its picture: the switches, the terms, the code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kdalab.cache import RadixStateCache
from kdalab.engine import prefill
from kdalab.memory import CheckpointPool

FAULTS = [
    ("the replay is skipped: trust the token match", "skip_replay"),
    ("the conv state is dropped: restore only the matrix", "drop_conv"),
]
TERMS = [
    ("token match", "matched prefix of `match_prefix`", "hit of the full-attention group"),
    (
        "restore point",
        "best node: the deepest with `mamba_value`",
        "hit of the Mamba group: the smallest of all groups' hits",
    ),
    ("checkpoint", "`mamba_value` of a tree node", "state block of a Mamba group"),
    ("tombstone", "node whose `mamba_value` is None", "null block in the state's table"),
    (
        "copy on write",
        "copy of the node's state into a private slot",
        "private copy of the block that was hit",
    ),
    (
        "donate",
        "the keep slot of the ping-pong enters the tree",
        "the block stays, its hash is registered",
    ),
    (
        "branching point",
        "`mamba_branching_seqlen`",
        "`shared_prefix_boundary`, a Marconi-style junction",
    ),
    (
        "checkpoint spacing",
        "`mamba_track_interval`",
        "block size in align mode, retention interval",
    ),
]
CODE: list[tuple[str, Callable[..., Any]]] = [
    (
        "Two answers from one walk: how far the text is known, and where it can restart.",
        RadixStateCache.lookup,
    ),
    (
        "What enters the tree: pages and a state of one boundary; a split leaves the state below.",
        RadixStateCache.commit,
    ),
    ("The copy of a shared checkpoint into a private slot.", CheckpointPool.load),
    ("Replay and new tokens: one computation, on one absolute grid.", prefill.run_chunk),
]
