"""What the host holds: copies, their order of use, and what goes when the host is full."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kdalab.cache import eviction
from kdalab.cache.keys import PrefixKey
from kdalab.cache.node import Node
from kdalab.cache.protocol import Bytes, Dropped, Evicted
from kdalab.errors import KdalabError

if TYPE_CHECKING:
    from kdalab.cache.radix import RadixStateCache


class HostCopies:
    """Host copies of a radix cache's nodes, in two orders of use like the device's.

    ``kv_lru`` and ``state_lru`` hold, oldest first, the copies that no transfer is using. A node
    comes after its descendants, so the oldest in ``kv_lru`` has no copy below it.
    """

    def __init__(self) -> None:
        self.kv_lru: OrderedDict[int, Node] = OrderedDict()
        self.state_lru: OrderedDict[int, Node] = OrderedDict()
        self.cached_pages = 0
        self.cached_states = 0
        self._tree: RadixStateCache | None = None

    def attach(self, tree: RadixStateCache) -> None:
        """Serve ``tree`` from now on; one cache only."""
        if self._tree is not None:
            raise KdalabError("this host tier serves a cache already; make one for each cache")
        self._tree = tree

    @property
    def tree(self) -> RadixStateCache:
        """The cache that it serves."""
        if self._tree is None:
            raise KdalabError("this host tier serves no cache yet; RadixStateCache(..., host=tier)")
        return self._tree

    def reach(
        self, path: Sequence[Node], beyond: Node | None, matched: int, key: PrefixKey
    ) -> tuple[int, int, int | None]:
        """(tokens of KV on the device, deepest state of either level, restore point once what
        the host holds is brought back)."""
        nodes = [*path, beyond] if beyond is not None else path
        kv = next((n.start for n in nodes if not n.pages), matched)
        known, back = 0, None
        for node in reversed(path):
            if node.state is not None or node.host_state is not None:
                known = known or node.end
                if node.end < key.n_tokens:
                    back = node.end
                    break
        return kv, known, back

    def evict(self, need: Bytes) -> Evicted:
        """Give up host copies, least recently used first, by the bytes of a device page and slot.

        ``kv_bytes`` and ``state_bytes`` of the answer are those freed *on the host*. A node that
        had nothing but its copy goes, and what becomes useless with it.
        """
        tree, dropped = self.tree, list[Dropped]()
        page, state = tree.page_bytes, tree.checkpoint_bytes
        kv0, state0 = self.cached_pages * page, self.cached_states * state
        while kv0 - self.cached_pages * page < need.kv and self.kv_lru:
            self._drop_copy(next(iter(self.kv_lru.values())), dropped)
        while state0 - self.cached_states * state < need.state and self.state_lru:
            self._drop_state_copy(next(iter(self.state_lru.values())), dropped)
        floor = kv0 + state0 - need.either
        while self.cached_pages * page + self.cached_states * state > floor and self.kv_lru:
            leaf = next(iter(self.kv_lru.values()))
            old = next(iter(self.state_lru.values()), None)
            if old is not None and old.host_state_used < leaf.host_used:
                self._drop_state_copy(old, dropped)
            else:
                self._drop_copy(leaf, dropped)
        gone = eviction.account(page, state, dropped)
        return gone._replace(
            kv_bytes=len(gone.host_pages) * page, state_bytes=len(gone.host_states) * state
        )

    def use(self, node: Node) -> None:
        """The copies on the path to ``node`` are the youngest, and its state's copy with them."""
        self.tree.clock += 1
        for part in node.up_to(self.tree.root):
            if part.host_pages and not part.host_lock:
                part.host_used = self.tree.clock
                self.kv_lru[part.id] = part
                self.kv_lru.move_to_end(part.id)
                if part.host_state is not None and (part is node or part.id not in self.state_lru):
                    part.host_state_used = self.tree.clock
                    self.state_lru[part.id] = part
                    self.state_lru.move_to_end(part.id)

    def clear(self, node: Node) -> tuple[tuple[int, ...], int | None]:
        """Take a node's copies off it: host pages and, if there is one, the state's slot."""
        pages, slot = tuple(node.host_pages), None
        node.host_pages = ()
        self.kv_lru.pop(node.id, None)
        self.cached_pages -= len(pages)
        if node.host_state is not None:
            slot, node.host_state = node.host_state.slot, None
            self.state_lru.pop(node.id, None)
            self.cached_states -= 1
        return pages, slot

    def _drop_copy(self, node: Node, dropped: list[Dropped]) -> None:
        if not node.pages and not node.kv_lock:
            # Nothing hangs below: it would live from copies of its own, and they go first.
            parent = node.parent
            dropped.append(self.tree.detach(node))
            eviction.sweep(self.tree, parent, dropped)
            return
        pages, slot = self.clear(node)
        dropped.append(Dropped(node.id, None, (), False, pages, slot))
        eviction.sweep(self.tree, node, dropped)

    def _drop_state_copy(self, node: Node, dropped: list[Dropped]) -> None:
        assert node.host_state is not None
        slot, node.host_state = node.host_state.slot, None
        del self.state_lru[node.id]
        self.cached_states -= 1
        dropped.append(Dropped(node.id, None, (), False, (), slot))
        eviction.sweep(self.tree, node, dropped)


def lacks_state(node: Node) -> bool:
    """There is a state here that the host has no copy of."""
    return node.state is not None and node.host_state is None


def lacks_copy(node: Node) -> bool:
    """The node is on the device, and its KV or its state is not on the host."""
    return bool(node.pages) and (not node.host_pages or lacks_state(node))
