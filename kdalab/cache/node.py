"""One node of the radix tree: an edge of tokens, its latent pages, and at most one checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kdalab.cache.protocol import Checkpoint


class Node:
    """The edge from ``parent.end`` to ``end`` and what the cache keeps for it.

    ``key`` are the edge's page bytes and ``pages`` one latent page id for each of them;
    ``state`` is the checkpoint at ``end``, exactly. Without one the node is a *tombstone*: its
    latent KV is known but nothing can be restored there. ``kv_lock`` counts the leases that read
    a path through this node; ``state_lock`` those that read this state.
    """

    __slots__ = (
        "children",
        "end",
        "id",
        "key",
        "kv_lock",
        "kv_used",
        "pages",
        "parent",
        "state",
        "state_lock",
        "state_used",
    )

    def __init__(
        self, node_id: int, parent: Node | None, key: bytes, pages: Sequence[int], end: int
    ) -> None:
        self.id = node_id
        self.parent = parent
        self.key = key
        self.pages = pages
        self.end = end
        self.children: dict[bytes, Node] = {}
        self.state: Checkpoint | None = None
        self.kv_lock = 0
        self.state_lock = 0
        self.kv_used = 0
        self.state_used = 0

    @property
    def start(self) -> int:
        """First token of the edge."""
        return self.parent.end if self.parent is not None else 0

    def up_to(self, ancestor: Node | None) -> Iterator[Node]:
        """This node and its ancestors, nearest first, ``ancestor`` excluded."""
        node: Node | None = self
        while node is not None and node is not ancestor:
            yield node
            node = node.parent

    def __repr__(self) -> str:
        state = "tombstone" if self.state is None else f"state in slot {self.state.slot}"
        return f"<node {self.id}: tokens [{self.start:,}, {self.end:,}), {state}>"
