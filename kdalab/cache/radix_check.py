"""Every invariant of the radix tree, rebuilt from the nodes and compared with the bookkeeping.

What SGLang's ``sanity_check`` proves when idle, proved at any time: locks are recounted from the
leases and transfers that hold them.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from kdalab.cache.host_check import check_host, transfer_locks
from kdalab.errors import InvariantError

if TYPE_CHECKING:
    from kdalab.cache.node import Node
    from kdalab.cache.radix import RadixStateCache


def _require(holds: bool, rule: str, detail: object = "") -> None:
    if not holds:
        raise InvariantError(f"{rule}{f': {detail}' if detail != '' else ''}")


def check(cache: RadixStateCache) -> None:
    """Raise ``InvariantError`` with the first broken rule named. Costs a walk of the tree."""
    nodes = _walk(cache)
    _check_shape(cache, nodes)
    _check_slots(cache, nodes)
    _check_locks(cache, nodes)
    _check_orders(cache, nodes)
    if cache.host is not None:
        check_host(cache, cache.host, nodes)


def _walk(cache: RadixStateCache) -> list[Node]:
    found, todo = [], [cache.root]
    while todo:
        node = todo.pop()
        found.append(node)
        for first, child in node.children.items():
            _require(child.parent is node, "a child names its parent", child)
            _require(
                child.key[: cache.key_width] == first, "a child hangs under its first page", child
            )
            todo.append(child)
    return found


def _check_shape(cache: RadixStateCache, nodes: list[Node]) -> None:
    _require({n.id: n for n in nodes} == cache.nodes, "every registered node is in the tree")
    for node in nodes:
        if node is cache.root:
            bare = node.state is None and not node.pages and not node.host_pages and node.end == 0
            _require(bare, "the root holds no tokens and no state")
            continue
        length = node.end - node.start
        _require(length > 0, "an edge holds at least one page", node)
        count, rest = divmod(length, cache.page_tokens)
        _require(rest == 0, "an edge is made of whole pages", node)
        if node.pages:
            _require(len(node.pages) == count, "one page id a page", node)
            above = node.parent is cache.root or (node.parent is not None and node.parent.pages)
            _require(bool(above), "KV on the device has all KV before it", node)
        else:
            _require(len(node.host_pages) == count, "a node has KV, here or on the host", node)
            _require(node.state is None, "a state on the device has its KV there", node)
        _require(len(node.key) == count * (cache.key_width or 0), "a key has whole pages", node)
        if node.state is not None:
            _require(node.state.boundary == node.end, "key length equals state length", node)
            _require(node.end % cache.grid == 0, "states stand on the grid", node)
        _require(not node.is_useless, "an unlocked leaf is never a tombstone", node)


def _check_slots(cache: RadixStateCache, nodes: list[Node]) -> None:
    pages = Counter(p for n in nodes for p in n.pages)
    twice = [p for p, count in pages.items() if count > 1]
    _require(not twice, "a latent page belongs to one node", twice[:5])
    states = Counter(n.state.slot for n in nodes if n.state is not None)
    twice = [s for s, count in states.items() if count > 1]
    _require(not twice, "a checkpoint slot belongs to one node", twice[:5])
    _require(pages.total() == cache.cached_pages, "the page counter equals the tree's pages")
    _require(states.total() == cache.cached_states, "the state counter equals the tree's states")


def _check_locks(cache: RadixStateCache, nodes: list[Node]) -> None:
    kv, state = transfer_locks(cache)
    kv[0] += 1
    for lease in cache.leases.values():
        _require(lease.node in cache.nodes, "a leased node is never evicted", lease)
        node = cache.nodes[lease.node]
        _require(node.end == lease.boundary, "a lease ends where its node ends", lease)
        held = tuple(p for n in reversed(list(node.up_to(None))) for p in n.pages)
        _require(held == lease.pages, "a lease reads the pages of its path", lease)
        kv.update(n.id for n in node.up_to(cache.root))
        if lease.id in cache._state_locked:
            state[node.id] += 1
            _require(
                node.state is not None and node.state == lease.state,
                "a locked state is never evicted",
                lease,
            )
    _require(cache._state_locked <= set(cache.leases), "only a lease in force locks a state")
    for node in nodes:
        _require(
            node.kv_lock == kv[node.id],
            "KV locks equal the leases and transfers at and below",
            node,
        )
        _require(
            node.state_lock == state[node.id],
            "state locks equal the leases and transfers here",
            node,
        )
        _require(node.kv_lock >= node.state_lock, "a locked state has its path locked", node)
        _require(
            node.parent is None or node.parent is cache.root or node.parent.kv_lock >= node.kv_lock,
            "KV is locked along the whole path",
            node,
        )


def _check_orders(cache: RadixStateCache, nodes: list[Node]) -> None:
    unlocked = {n.id for n in nodes if n.kv_lock == 0 and n.pages}
    _require(set(cache.kv_lru) == unlocked, "the KV order holds just the unlocked nodes")
    place = {node_id: i for i, node_id in enumerate(cache.kv_lru)}
    for node in cache.kv_lru.values():
        if node.parent is not None and node.parent.id in place:
            _require(
                place[node.id] < place[node.parent.id], "descendants come before ancestors", node
            )
    free = {n.id for n in nodes if n.state is not None and n.state_lock == 0}
    _require(set(cache.state_lru) == free, "the state order holds just the unlocked states")
    ages = [n.state_used for n in cache.state_lru.values()]
    _require(ages == sorted(ages), "the state order is by last use")
    ages = [n.kv_used for n in cache.kv_lru.values()]
    _require(ages == sorted(ages), "the KV order is by last use")
    evictable = sum(len(n.pages) for n in cache.kv_lru.values())
    _require(evictable == cache.evictable_pages, "the counter of evictable pages is their sum")
