"""What goes when room is needed, and what goes with it.

* **KV** is given up by whole leaves, so more may be freed than was asked. With a host copy the
  node stays in the tree; without one it goes.
* **A state** inside the tree leaves a tombstone: its KV is still the way to what lies deeper. On
  an unlocked leaf it takes the KV with it, which leads nowhere any more.
* **The cascade**: what has become useless goes, and then its parent if that is useless now. It
  stops at the root, at locks, and at references of the host tier.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kdalab.cache.node import Node
from kdalab.cache.protocol import Bytes, Dropped, Evicted
from kdalab.cache.tree import RadixTree

if TYPE_CHECKING:
    from kdalab.cache.retention import EvictionOrder


def evict(tree: RadixTree, order: EvictionOrder, need: Bytes) -> Evicted:
    """Give up what ``order`` names until ``need`` is met or all that is left is locked."""
    dropped: list[Dropped] = []
    page, state = tree.page_bytes, tree.checkpoint_bytes
    kv_at_first, state_at_first = tree.cached_pages * page, tree.cached_states * state
    if need.kv > 0:
        while kv_at_first - tree.cached_pages * page < need.kv:
            leaf = order.leaf(tree.kv_lru)
            if leaf is None:
                break
            drop_leaf(tree, leaf, dropped)
    if need.state > 0:
        while state_at_first - tree.cached_states * state < need.state:
            old = order.state(tree.state_lru)
            if old is None:
                break
            drop_state(tree, old, dropped)
    if need.either > 0:
        floor = kv_at_first + state_at_first - need.either
        while tree.cached_pages * page + tree.cached_states * state > floor:
            leaf, old = order.leaf(tree.kv_lru), order.state(tree.state_lru)
            if leaf is not None and (old is None or order.leaf_first(leaf, old)):
                drop_leaf(tree, leaf, dropped)
            elif old is not None:
                drop_state(tree, old, dropped)
            else:
                break
    return account(page, state, dropped)


def drop_leaf(tree: RadixTree, leaf: Node, dropped: list[Dropped]) -> None:
    """Free an unlocked leaf's KV and state on the device, and what becomes useless with that."""
    if leaf.host_pages:
        slot = tree.drop_state(leaf)
        dropped.append(Dropped(leaf.id, slot, tree.drop_pages(leaf), removed=False))
        sweep(tree, leaf, dropped)
        return
    parent = leaf.parent
    dropped.append(tree.detach(leaf))
    if parent is not None and parent.state is None and not parent.children:
        sweep(tree, parent, dropped)


def drop_state(tree: RadixTree, node: Node, dropped: list[Dropped]) -> None:
    """Give up an unlocked state: a tombstone inside the tree, the whole of an unlocked leaf."""
    if node.children or node.kv_lock or node.host_state is not None:
        dropped.append(Dropped(node.id, tree.drop_state(node), (), False))
    else:
        drop_leaf(tree, node, dropped)


def sweep(tree: RadixTree, node: Node | None, dropped: list[Dropped]) -> None:
    """Remove ``node`` if it is useless, then its parent if that is, and so on."""
    while node is not None and node is not tree.root and node.is_useless:
        dropped.append(tree.detach(node))
        node = node.parent


def cap_path(tree: RadixTree, tail: Node, cap: int) -> list[Dropped]:
    """Keep at most ``cap`` states on the path to ``tail``: the shallowest inside go first.

    Soft, as SGLang's ``--mamba-max-states-per-path``: a fork serves other paths too, and a locked
    state is being read, by a request or by a copy to the host that is under way.
    """
    held = [n for n in tail.up_to(tree.root) if n.state is not None]
    excess = len(held) - cap
    dropped: list[Dropped] = []
    for node in reversed(held):
        if excess <= 0:
            break
        if node is tail or len(node.children) >= 2 or node.state_lock:
            continue
        dropped.append(Dropped(node.id, tree.drop_state(node), (), removed=False))
        excess -= 1
    return dropped


def account(page_bytes: int, checkpoint_bytes: int, dropped: Sequence[Dropped]) -> Evicted:
    """The sum of what was dropped on the device."""
    if not dropped:
        return NOTHING
    if len(dropped) == 1:
        d = dropped[0]
        states1 = () if d.state is None else (d.state,)
        return Evicted(
            len(d.pages) * page_bytes,
            len(states1) * checkpoint_bytes,
            d.pages,
            states1,
            (d,),
            d.host_pages,
            () if d.host_state is None else (d.host_state,),
        )
    pages: list[int] = []
    states: list[int] = []
    host_pages: list[int] = []
    host_states: list[int] = []
    for one in dropped:
        pages += one.pages
        host_pages += one.host_pages
        if one.state is not None:
            states.append(one.state)
        if one.host_state is not None:
            host_states.append(one.host_state)
    return Evicted(
        len(pages) * page_bytes,
        len(states) * checkpoint_bytes,
        tuple(pages),
        tuple(states),
        tuple(dropped),
        tuple(host_pages),
        tuple(host_states),
    )


NOTHING = Evicted(0, 0, (), (), ())
