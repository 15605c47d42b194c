"""Several checkpoints of one prompt in one call, where the tree knows nothing beyond the lease.

A placement such as ``all`` leaves hundreds of checkpoints a prompt. One commit each walks, checks
and moves the lease each time, which is most of a replay's work; here that is done once. What the
tree holds afterwards is what single commits would have left, node by node.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kdalab.cache import insertion
from kdalab.cache.keys import PrefixKey
from kdalab.cache.page_path import PagePath
from kdalab.cache.protocol import Lease
from kdalab.errors import KdalabError
from kdalab.spec.checkpoint import Checkpoint

if TYPE_CHECKING:
    from kdalab.cache.radix import RadixStateCache


def knows_more(cache: RadixStateCache, lease: Lease, key: PrefixKey) -> bool:
    """Does the tree hold tokens of ``key`` beyond the lease?"""
    at, width = lease.boundary // cache.page_tokens * key.page_bytes, key.page_bytes
    return key.data[at : at + width] in cache.nodes[lease.node].children


def commit_run(
    cache: RadixStateCache,
    lease: Lease,
    key: PrefixKey,
    pages: Sequence[int],
    checkpoints: Sequence[Checkpoint],
) -> Lease:
    """As ``cache.commit`` for one checkpoint after the other; returns the last lease.

    Args:
        pages: of tokens [lease.boundary, last boundary).
        checkpoints: one or more, by ascending boundary.

    Raises:
        KdalabError: as ``commit``; the tree knows more of the key; boundaries that do not ascend,
            or one off the grid; a cache with a host tier, a cap of states or the whole-path rule,
            which have something to do after each commit. Nothing has changed.
    """
    cache._check_key(key)
    cache._check_lease(lease)
    ends = [c.boundary for c in checkpoints]
    if not ends or any(end % cache.grid for end in ends):
        raise KdalabError(f"checkpoints at {ends}; give one or more, on the grid of {cache.grid:,}")
    if any(a >= b for a, b in zip([lease.boundary, *ends], ends, strict=False)):
        raise KdalabError(f"checkpoints at {ends} after {lease.boundary:,} do not ascend")
    insertion.check_commit(cache, lease, key, pages, ends[-1])
    if not cache._is_plain:
        raise KdalabError("this cache has work to do after each commit: commit one by one")
    if knows_more(cache, lease, key):
        raise KdalabError(f"{lease}: the tree knows more of this key; commit there first")
    cache.key_width = key.page_bytes
    cache.unlock_state(lease)
    node, first = cache.nodes[lease.node], 0
    for checkpoint in checkpoints:
        last = first + (checkpoint.boundary - node.end) // cache.page_tokens
        node = cache.hang_leaf(node, key, pages[first:last], checkpoint)
        first = last
    del cache.leases[lease.id]
    assert isinstance(lease.pages, PagePath)
    return cache._lease(node, PagePath([pages], lease.pages), key)
