"""The tree itself: nodes, locks and the two orders of use. Every change of structure is in here.

Two orders, oldest first, over what nobody has locked. In the KV order a node always comes after
its descendants, so the oldest is always a leaf on the device and can go at once: who releases a
path puts its nodes at the end, deepest first. Both are hash tables threaded by a doubly linked
list (``OrderedDict``), so entering, leaving and finding the oldest cost the same whatever the
number of nodes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kdalab.cache.keys import PrefixKey
from kdalab.cache.node import Node
from kdalab.cache.protocol import Added, Change, Checkpoint, Dropped, Refilled, Split
from kdalab.errors import KdalabError

if TYPE_CHECKING:
    from kdalab.cache.host import HostTier


class RadixTree:
    """Nodes of page-keyed edges, and what is locked, used and counted on them.

    Args:
        page_tokens: tokens a latent page holds.
        grid: boundaries that can hold a state are multiples of this (tokens).
        page_bytes: bytes of one latent page, all layers.
        checkpoint_bytes: bytes of one checkpoint (recurrent + conv, all layers).
    """

    def __init__(
        self, page_tokens: int, grid: int, page_bytes: int = 1, checkpoint_bytes: int = 1
    ) -> None:
        if page_tokens <= 0 or grid <= 0 or grid % page_tokens:
            raise KdalabError(
                f"the grid of checkpoints ({grid} tokens) must be a multiple of the page "
                f"({page_tokens} tokens)"
            )
        self.page_tokens = page_tokens
        self.grid = grid
        self.page_bytes = page_bytes
        self.checkpoint_bytes = checkpoint_bytes
        self.key_width: int | None = None  # bytes of one page of a key; fixed by the first commit
        self.root = Node(0, None, b"", (), 0)
        self.root.kv_lock = self.root.host_lock = 1  # never evicted
        self.nodes: dict[int, Node] = {0: self.root}
        self.kv_lru: OrderedDict[int, Node] = OrderedDict()
        self.state_lru: OrderedDict[int, Node] = OrderedDict()
        self.cached_pages = 0
        self.cached_states = 0
        self.evictable_pages = 0
        self.host: HostTier | None = None
        self.clock = 0
        self._next_node = 1

    @property
    def kv_bytes(self) -> int:
        """Bytes of latent KV on the device."""
        return self.cached_pages * self.page_bytes

    @property
    def state_bytes(self) -> int:
        """Bytes of checkpoints on the device."""
        return self.cached_states * self.checkpoint_bytes

    @property
    def evictable_states(self) -> int:
        """Checkpoints that nobody reads."""
        return len(self.state_lru)

    # -- structure ---------------------------------------------------------------------------

    def add_node(self, parent: Node, key: bytes, pages: Sequence[int], end: int) -> Node:
        """Hang a node under ``parent``; where an edge begins with the same page, it replaces it.
        The new node is in no order yet."""
        node = Node(self._next_node, parent, key, pages, end)
        self._next_node += 1
        self.nodes[node.id] = node
        parent.children[key[: self.key_width]] = node
        return node

    def add_leaf(
        self, parent: Node, key: PrefixKey, pages: Sequence[int], checkpoint: Checkpoint
    ) -> tuple[Node, Added]:
        """``hang_leaf``, and the record of it."""
        node = self.hang_leaf(parent, key, pages, checkpoint)
        added = Added(node.id, parent.id, parent.end, node.end, tuple(pages), checkpoint.slot)
        return node, added

    def hang_leaf(
        self, parent: Node, key: PrefixKey, pages: Sequence[int], checkpoint: Checkpoint
    ) -> Node:
        """A new leaf for tokens [parent.end, checkpoint.boundary), with its state; it is locked
        by the commit that adds it."""
        width, count = key.page_bytes, len(pages)
        first = parent.end // self.page_tokens * width
        edge = key.data[first : first + count * width]
        node = self.add_node(parent, edge, pages, checkpoint.boundary)
        node.kv_lock = 1
        self.cached_pages += count
        self.set_state(node, checkpoint)
        return node

    def split(self, lower: Node, pages: int) -> tuple[Node, Split]:
        """Cut ``lower`` after its first ``pages`` pages.

        The state stays below: it summarises everything up to the *end* of its edge and says
        nothing about a point in the middle, so the new upper node has none. Whoever reads the
        lower part reads the upper one too, and so the path-wise locks are copied; a state's lock
        is not.
        """
        assert lower.parent is not None
        assert self.key_width is not None
        cut = pages * self.key_width
        end = lower.start + pages * self.page_tokens
        upper = self.add_node(lower.parent, lower.key[:cut], lower.pages[:pages], end)
        upper.kv_lock, upper.host_lock = lower.kv_lock, lower.host_lock
        upper.hits = lower.hits
        upper.kv_used = self.clock
        lower.key, lower.pages = lower.key[cut:], lower.pages[pages:]
        lower.parent = upper
        upper.children[lower.key[: self.key_width]] = lower
        if upper.pages and not upper.kv_lock:
            # Only for a moment: the commit that splits locks it, and takes it out again.
            self.kv_lru[upper.id] = upper
        if self.host is not None:
            self.host.on_split(upper, lower, pages)
        return upper, Split(lower.id, upper.id, end)

    def refill(self, node: Node, pages: Sequence[int]) -> Change:
        """Give pages on the device to an unlocked node that lives from its host copy."""
        node.pages = pages
        self.cached_pages += len(pages)
        self.evictable_pages += len(pages)
        self.kv_lru[node.id] = node
        return Refilled(node.id, tuple(pages))

    def detach(self, node: Node) -> Dropped:
        """Take a childless, unlocked node out of the tree, with all that it holds."""
        assert node.parent is not None
        slot = self.drop_state(node) if node.state is not None else None
        pages = self.drop_pages(node)
        host_pages: tuple[int, ...] = ()
        host_state = None
        if self.host is not None:
            host_pages, host_state = self.host.on_detach(node)
        del node.parent.children[node.key[: self.key_width]]
        del self.nodes[node.id]
        return Dropped(node.id, slot, pages, True, host_pages, host_state)

    # -- contents ----------------------------------------------------------------------------

    def set_state(self, node: Node, checkpoint: Checkpoint) -> None:
        """Put a state on a node that has none.

        Raises:
            KdalabError: key length and state length differ.
        """
        if checkpoint.boundary != node.end:
            raise KdalabError(
                f"a state of {checkpoint.boundary:,} tokens cannot stand at a key of {node.end:,}"
            )
        node.state = checkpoint
        self.cached_states += 1
        self.use_state(node)

    def use_state(self, node: Node) -> None:
        """This unlocked state is the one used last."""
        self.clock += 1
        node.state_used = self.clock
        self.state_lru[node.id] = node
        self.state_lru.move_to_end(node.id)

    def drop_state(self, node: Node) -> int | None:
        """Take the state off a node; its slot, if it had one."""
        if node.state is None:
            return None
        slot, node.state = node.state.slot, None
        self.state_lru.pop(node.id, None)
        self.cached_states -= 1
        return slot

    def drop_pages(self, node: Node) -> tuple[int, ...]:
        """Take the device pages off an unlocked node."""
        pages = tuple(node.pages)
        if pages:
            node.pages = ()
            del self.kv_lru[node.id]
            self.cached_pages -= len(pages)
            self.evictable_pages -= len(pages)
        return pages

    # -- locks -------------------------------------------------------------------------------

    def lock_state_of(self, node: Node) -> None:
        """One more reader of this node's state; of no other."""
        node.state_lock += 1
        self.state_lru.pop(node.id, None)

    def unlock_state_of(self, node: Node) -> None:
        """One reader less; the state counts as just used when it was the last."""
        node.state_lock -= 1
        if not node.state_lock:
            self.use_state(node)

    def lock_kv_of(self, node: Node) -> None:
        """One more reader of a path through ``node``."""
        node.kv_lock += 1
        if node.kv_lock == 1:
            del self.kv_lru[node.id]
            self.evictable_pages -= len(node.pages)

    def lock_path(self, node: Node) -> list[Sequence[int]]:
        """Lock the KV from ``node`` up to the root; the pages of each edge, top first."""
        held: list[Sequence[int]] = []
        hold, lru, part, root, freed = held.append, self.kv_lru, node, self.root, 0
        while part is not root:
            locks = part.kv_lock
            part.kv_lock = locks + 1
            pages = part.pages
            if not locks:
                del lru[part.id]
                freed += len(pages)
            hold(pages)
            part = part.parent  # type: ignore[assignment]
        self.evictable_pages -= freed
        held.reverse()
        return held

    def unlock_path(self, node: Node) -> None:
        """Undo ``lock_path``; the whole path counts as just used."""
        self.clock += 1
        clock, lru, part, root, freed = self.clock, self.kv_lru, node, self.root, 0
        while part is not root:
            locks = part.kv_lock - 1
            part.kv_lock = locks
            if not locks:
                part.kv_used = clock
                lru[part.id] = part  # deepest first: descendants stay before ancestors
                freed += len(part.pages)
            part = part.parent  # type: ignore[assignment]
        self.evictable_pages += freed
