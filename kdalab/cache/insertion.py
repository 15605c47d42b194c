"""How a finished prefix enters the tree: check it, walk down, cut, hang, revive."""

from __future__ import annotations

from collections.abc import Sequence

from kdalab.cache.keys import PrefixKey, common_pages
from kdalab.cache.node import Node
from kdalab.cache.protocol import Change, Lease
from kdalab.cache.tree import RadixTree
from kdalab.errors import KdalabError


def check_commit(
    tree: RadixTree, lease: Lease, key: PrefixKey, pages: Sequence[int], boundary: int
) -> None:
    """Refuse a commit that cannot be true.

    Raises:
        KdalabError: the boundary is off the grid, not beyond the lease, or beyond the key; the
            pages are not those of [lease.boundary, boundary); the key is another prompt's.
    """
    if boundary % tree.grid:
        raise KdalabError(
            f"a checkpoint at {boundary:,} is off the grid of {tree.grid:,} tokens; "
            f"the nearest boundary below is {boundary // tree.grid * tree.grid:,}"
        )
    whole = len(key.data) // key.page_bytes * tree.page_tokens
    if not lease.boundary < boundary <= whole:
        raise KdalabError(
            f"boundary {boundary:,} must lie beyond the lease ({lease.boundary:,}) and within "
            f"the whole pages of the key ({whole:,} tokens)"
        )
    wanted = (boundary - lease.boundary) // tree.page_tokens
    if len(pages) != wanted:
        raise KdalabError(
            f"tokens [{lease.boundary:,}, {boundary:,}) fill {wanted:,} pages of "
            f"{tree.page_tokens} tokens, but {len(pages):,} pages are given"
        )
    if lease.key is not key:
        _check_continues(tree, lease, key)


def _check_continues(tree: RadixTree, lease: Lease, key: PrefixKey) -> None:
    """A lease holds the prefix of one prompt. Another prompt's tokens must not go under it."""
    data = key.data
    if lease.key is not None and lease.key.data is data:
        return
    width = key.page_bytes
    for part in tree.nodes[lease.node].up_to(tree.root):
        at = part.start // tree.page_tokens * width
        if not data.startswith(part.key, at):
            same = common_pages(data[at : at + len(part.key)], part.key, width)
            raise KdalabError(
                f"the key does not continue the lease: the lease holds tokens "
                f"[0, {lease.boundary:,}), and the key has others from token "
                f"{part.start + same * tree.page_tokens:,} on. Commit under the lease of "
                "that prompt"
            )


def descend(
    tree: RadixTree, start: Node, key: PrefixKey, boundary: int, changes: list[Change]
) -> list[Node]:
    """Follow ``key`` down from ``start``, cutting an edge where it parts from the tree or where
    ``boundary`` falls inside it. Returns the nodes passed, top first."""
    data, width = key.data, key.page_bytes
    offset = start.end // tree.page_tokens * width
    limit = boundary // tree.page_tokens * width
    passed: list[Node] = []
    node = start
    while offset < limit:
        child = node.children.get(data[offset : offset + width])
        if child is None:
            break
        edge = child.key
        end = offset + len(edge)
        if end > limit or not data.startswith(edge, offset):
            shared = common_pages(data[offset : min(end, limit)], edge, width)
            child, change = tree.split(child, shared)
            changes.append(change)
            end = offset + shared * width
        passed.append(child)
        node, offset = child, end
    return passed


def refill(
    tree: RadixTree, start: int, passed: Sequence[Node], pages: Sequence[int], changes: list[Change]
) -> int:
    """Nodes passed that live from a host copy take the pages that were computed for them.

    Returns the tokens from ``start`` on that the device held before: duplicates of the caller's.
    """
    known = start
    for node in passed:
        if node.pages:
            known = node.end
        else:
            first = (node.start - start) // tree.page_tokens
            last = (node.end - start) // tree.page_tokens
            changes.append(tree.refill(node, tuple(pages[first:last])))
    return known - start
