"""One node of the radix tree: an edge of tokens, its latent pages, and at most one checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kdalab.spec.checkpoint import Checkpoint


class Node:
    """The edge from ``parent.end`` to ``end`` and what the cache keeps for it.

    ``key`` are the edge's page bytes and ``pages`` one latent page id for each of them;
    ``state`` is the checkpoint at ``end``, exactly. Without one the node is a *tombstone*: its
    latent KV is known but nothing can be restored there. ``kv_lock`` counts those who read a path
    through this node; ``state_lock`` those who read this state.

    With a host tier, ``host_pages`` and ``host_state`` are the copies one level down. A node
    whose pages have left the device has ``pages == ()`` and lives from its host copy.
    ``host_lock`` counts the transfers under way at or below it, ``hits`` the requests that have
    used it.
    """

    __slots__ = (
        "children",
        "end",
        "hits",
        "host_lock",
        "host_pages",
        "host_state",
        "host_state_used",
        "host_used",
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
        self.hits = 0
        self.host_pages: Sequence[int] = ()
        self.host_state: Checkpoint | None = None
        self.host_lock = 0
        self.host_used = 0
        self.host_state_used = 0

    @property
    def start(self) -> int:
        """First token of the edge."""
        return self.parent.end if self.parent is not None else 0

    @property
    def is_useless(self) -> bool:
        """Nothing hangs below, nothing can be restored here, and nobody reads it."""
        return not (
            self.children
            or self.kv_lock
            or self.host_lock
            or self.state is not None
            or self.host_state is not None
        )

    def up_to(self, ancestor: Node | None) -> Iterator[Node]:
        """This node and its ancestors, nearest first, ``ancestor`` excluded."""
        node: Node | None = self
        while node is not None and node is not ancestor:
            yield node
            node = node.parent

    def __repr__(self) -> str:
        state = "tombstone" if self.state is None else f"state in slot {self.state.slot}"
        where = "" if self.pages or self.parent is None else ", KV on the host only"
        return f"<node {self.id}: tokens [{self.start:,}, {self.end:,}), {state}{where}>"
