"""Several checkpoints in one call leave what one commit each leaves."""

from __future__ import annotations

from typing import Any

import pytest

from kdalab.cache import Bytes, Checkpoint, PrefixKey, RadixStateCache, Retention
from kdalab.cache.commit_run import commit_run
from kdalab.errors import KdalabError

PAGE = 4


def tree_of(cache: RadixStateCache) -> dict[int, Any]:
    """Every node with what it holds, and both orders of eviction."""
    nodes = {
        n.id: (n.parent and n.parent.id, n.key, tuple(n.pages), n.end, n.state, n.kv_lock)
        for n in cache.nodes.values()
    }
    return {-1: (list(cache.kv_lru), list(cache.state_lru)), **nodes}


def served(
    prompts: list[tuple[list[int], list[int]]], runs: bool
) -> tuple[RadixStateCache, list[Any]]:
    """Prompts of page ids with the boundaries (pages) to keep; a lookup and an eviction each."""
    cache = RadixStateCache(PAGE, PAGE)
    seen: list[Any] = []
    slot = page = 0
    for blocks, ends in prompts:
        key = PrefixKey.from_blocks(blocks, PAGE, len(blocks) * PAGE)
        found = cache.lookup(key)
        seen.append((found.restore, found.token_match, found.path))
        lease = cache.acquire(found)
        cache.unlock_state(lease)
        todo = [Checkpoint(slot + i, e * PAGE) for i, e in enumerate(ends)]
        slot += len(ends)
        todo = [c for c in todo if c.boundary > lease.boundary]
        while todo:
            many = todo if runs and len(lease.pages) * PAGE >= found.token_match else todo[:1]
            count = (many[-1].boundary - lease.boundary) // PAGE
            pages, page = tuple(range(page, page + count)), page + count
            if len(many) > 1:
                lease = commit_run(cache, lease, key, pages, many)
            else:
                lease = cache.commit(lease, key, pages, many[0]).lease
            todo = todo[len(many) :]
        seen.append((tuple(lease.pages), lease.state, lease.boundary))
        cache.check()
        cache.release(lease)
        seen.append(cache.evict(Bytes(either=3)))
        cache.check()
    return cache, seen


def test_a_run_of_checkpoints_leaves_what_single_commits_leave() -> None:
    prompts = [
        ([1, 2, 3, 4, 5, 6], [1, 2, 4, 6]),
        ([1, 2, 3, 7, 8, 9, 10], [2, 3, 5, 7]),
        ([1, 2, 3, 7, 8, 9, 11, 12, 13], [6, 7, 8, 9]),
        ([20, 21, 22], [1, 2, 3]),
        ([1, 2, 3, 4, 5, 6], [6]),
    ]
    (one, found), (many, same) = served(prompts, runs=False), served(prompts, runs=True)
    assert found == same
    assert tree_of(one) == tree_of(many)


def test_a_run_where_the_tree_knows_more_or_off_the_grid_is_refused_and_changes_nothing() -> None:
    cache = RadixStateCache(PAGE, PAGE)
    other = PrefixKey.from_blocks([1, 2, 3, 4], PAGE, 16)
    lease = cache.acquire(cache.lookup(other))
    cache.release(commit_run(cache, lease, other, range(4), [Checkpoint(0, 8), Checkpoint(1, 16)]))
    key = PrefixKey.from_blocks([1, 2, 3, 9], PAGE, 16)
    lease = cache.acquire(cache.lookup(key))
    before = tree_of(cache)
    for ends, words in (
        ([12, 16], "knows more"),
        ([4, 16], "ascend"),
        ([3, 16], "on the grid"),
        ([16, 12], "ascend"),
        ([], "one or more"),
    ):
        pages = range((16 - lease.boundary) // PAGE) if ends and ends[-1] == 16 else range(0)
        with pytest.raises(KdalabError, match=words):
            commit_run(cache, lease, key, pages, [Checkpoint(50 + e, e) for e in ends])
    assert tree_of(cache) == before
    capped = RadixStateCache(PAGE, PAGE, retention=Retention(max_states_per_path=1))
    lease = capped.acquire(capped.lookup(key))
    with pytest.raises(KdalabError, match="one by one"):
        commit_run(capped, lease, key, range(2), [Checkpoint(0, 4), Checkpoint(1, 8)])
    assert list(capped.nodes) == [0]
