"""The radix tree whose nodes may hold a checkpoint: SGLang's way (its ``MambaRadixCache``).

A prompt's text may be known far beyond the last boundary at which a recurrent state was kept.
So a match has two answers, the token match and the restore point, and only the second can be
computed from. Two rules carry the structure:

* A split leaves the state with the lower node. A state summarises everything up to the *end* of
  its edge; it says nothing about a point in the middle, so the new upper node has none.
* Latent KV is locked along the whole path, a state on its own node only. The recurrence needs one
  state; attention reads every page from the root down.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from kdalab.cache import radix_check
from kdalab.cache.keys import PrefixKey, common_pages
from kdalab.cache.node import Node
from kdalab.cache.protocol import (
    Added,
    Bytes,
    Change,
    Checkpoint,
    Committed,
    Dropped,
    Evicted,
    Lease,
    Lookup,
    Revived,
    Split,
)
from kdalab.errors import KdalabError
from kdalab.spec import StateKind


class RadixStateCache:
    """A page-keyed radix tree over prompts, with checkpoints on its nodes.

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
        self.root = Node(0, None, b"", (), 0)
        self.root.kv_lock = 1  # never evicted
        self.nodes: dict[int, Node] = {0: self.root}
        self.leases: dict[int, Lease] = {}
        # Two LRU orders, oldest first, over unlocked nodes. In the first one a node always comes
        # after its descendants, so the oldest is always a leaf and can go at once.
        self.kv_lru: OrderedDict[int, Node] = OrderedDict()
        self.state_lru: OrderedDict[int, Node] = OrderedDict()
        self.cached_pages = 0
        self.cached_states = 0
        self._state_locked: set[int] = set()  # leases that still hold their state's lock
        self._next_node = 1
        self._next_lease = 1
        self._clock = 0

    # -- reading -----------------------------------------------------------------------------

    @property
    def kv_bytes(self) -> int:
        """Bytes of latent KV in the tree."""
        return self.cached_pages * self.page_bytes

    @property
    def state_bytes(self) -> int:
        """Bytes of checkpoints in the tree."""
        return self.cached_states * self.checkpoint_bytes

    @property
    def evictable_pages(self) -> int:
        """Latent pages that no lease holds."""
        return sum(len(n.pages) for n in self.kv_lru.values())

    def lookup(self, key: PrefixKey) -> Lookup:
        """Walk the tree along ``key``. Pure: no split, no refresh, no lock."""
        self._check_key(key)
        data, width = key.data, key.page_bytes
        last = key.n_tokens - 1  # at least one token must be computed, to have logits
        node, offset, size = self.root, 0, len(data)
        restore = deepest = self.root
        path = []
        partial = 0
        while offset < size:
            child = node.children.get(data[offset : offset + width])
            if child is None:
                break
            edge = child.key
            if data[offset : offset + len(edge)] != edge:
                partial = common_pages(data[offset:], edge, width)
                path.append(child.id)
                break
            node, offset = child, offset + len(edge)
            path.append(node.id)
            if node.state is not None:
                deepest = node
                if node.end <= last:
                    restore = node
        matched = node.end + partial * self.page_tokens
        branching = matched // self.grid * self.grid
        return Lookup(
            n_tokens=key.n_tokens,
            token_match=matched,
            reach={
                StateKind.MLA_KV: matched,
                StateKind.KDA_RECURRENT: deepest.end,
                StateKind.KDA_CONV: deepest.end,
            },
            restore=restore.end,
            branching=branching if branching > deepest.end else None,
            path=tuple(path),
            handle=restore,
        )

    # -- locks -------------------------------------------------------------------------------

    def acquire(self, lookup: Lookup) -> Lease:
        """Lock the path to the restore point and its state; only that state's age is refreshed."""
        node = lookup.handle
        if (
            not isinstance(node, Node)
            or self.nodes.get(node.id) is not node
            or node.end != lookup.restore
            or (node is not self.root and node.state is None)
        ):
            raise KdalabError("the cache has changed since this lookup; look up again")
        pages: list[int] = []
        for part in reversed(list(node.up_to(self.root))):
            pages.extend(part.pages)
        self._lock_path(node, self.root)
        lease = self._lease(node, tuple(pages), node.state)
        if node.state is not None:
            node.state_lock += 1
            self.state_lru.pop(node.id, None)
            self._state_locked.add(lease.id)
        return lease

    def unlock_state(self, lease: Lease) -> None:
        """The state has been copied; its checkpoint counts as just used. Harmless if repeated."""
        self._check_lease(lease)
        if lease.id not in self._state_locked:
            return
        self._state_locked.discard(lease.id)
        node = self.nodes[lease.node]
        node.state_lock -= 1
        if node.state_lock == 0:
            self._use_state(node)

    def release(self, lease: Lease) -> Evicted:
        """Give back the locks; the whole path counts as just used, deepest first.

        A node that lost its state while this lease read its KV is of no use any more if nothing
        hangs below it. It goes now, and what it held is returned.
        """
        self.unlock_state(lease)
        del self.leases[lease.id]
        node = self.nodes[lease.node]
        self._unlock_path(node)
        dropped: list[Dropped] = []
        if node.state is None:
            self._remove(node, dropped)
        return self._evicted(dropped)

    # -- writing -----------------------------------------------------------------------------

    def commit(
        self, lease: Lease, key: PrefixKey, pages: Sequence[int], checkpoint: Checkpoint
    ) -> Committed:
        """Enter the prefix that ends at ``checkpoint.boundary``, with its state.

        The key's length equals the state's, always: both are cut from the one boundary.

        Raises:
            KdalabError: the boundary is off the grid, not beyond the lease, or beyond the key;
                or ``pages`` are not those of [lease.boundary, boundary). Nothing has changed.
        """
        self._check_key(key)
        self._check_lease(lease)
        boundary = checkpoint.boundary
        if boundary % self.grid:
            raise KdalabError(
                f"a checkpoint at {boundary:,} is off the grid of {self.grid:,} tokens; "
                f"the nearest boundary below is {boundary // self.grid * self.grid:,}"
            )
        if not lease.boundary < boundary <= key.n_pages * self.page_tokens:
            raise KdalabError(
                f"boundary {boundary:,} must lie beyond the lease ({lease.boundary:,}) and within "
                f"the whole pages of the key ({key.n_pages * self.page_tokens:,} tokens)"
            )
        if len(pages) != (boundary - lease.boundary) // self.page_tokens:
            raise KdalabError(
                f"tokens [{lease.boundary:,}, {boundary:,}) fill "
                f"{(boundary - lease.boundary) // self.page_tokens:,} pages of "
                f"{self.page_tokens} tokens, but {len(pages):,} pages are given"
            )
        start = self.nodes[lease.node]
        changes: list[Change] = []
        node, known = self._descend(start, key, boundary, changes)
        duplicates = tuple(pages[: known // self.page_tokens])
        existed = False
        if node.end < boundary:
            node = self._add_leaf(node, key, pages[len(duplicates) :], checkpoint, changes)
        elif node.state is None:
            self._set_state(node, checkpoint)
            changes.append(Revived(node.id, checkpoint.slot))
        else:
            existed = True
        self.unlock_state(lease)
        self._lock_path(node, start)
        del self.leases[lease.id]
        fresh: list[int] = []
        for part in reversed(list(node.up_to(start))):
            fresh.extend(part.pages)
        if node.state_lock == 0:
            self._use_state(node)
        moved = self._lease(node, lease.pages + tuple(fresh), node.state)
        return Committed(moved, duplicates, existed, tuple(changes))

    def evict(self, need: Bytes) -> Evicted:
        """Give up the least recently used, by bytes; what is locked stays."""
        dropped: list[Dropped] = []
        kv = state = counted = 0
        for kind, target in (("kv", need.kv), ("state", need.state), ("either", need.either)):
            while {"kv": kv, "state": state, "either": kv + state}[kind] < target:
                if not self._evict_one(kind, dropped):
                    break  # all that is left is locked
                more_kv, more_state = self._bytes_of(dropped[counted:])
                kv, state, counted = kv + more_kv, state + more_state, len(dropped)
        return self._evicted(dropped)

    def check(self) -> None:
        """Prove every invariant of the tree; see ``radix_check``."""
        radix_check.check(self)

    # -- inside ------------------------------------------------------------------------------

    def _descend(
        self, start: Node, key: PrefixKey, boundary: int, changes: list[Change]
    ) -> tuple[Node, int]:
        """Follow ``key`` down from ``start``, cutting an edge where it parts from the tree or
        where ``boundary`` falls inside it. Returns the last node and the known tokens passed."""
        width = key.page_bytes
        data = key.data[: boundary // self.page_tokens * width]
        offset = start.end // self.page_tokens * width
        node = start
        while offset < len(data):
            child = node.children.get(data[offset : offset + width])
            if child is None:
                break
            shared = len(child.key)
            if data[offset : offset + shared] != child.key:
                shared = common_pages(data[offset:], child.key, width) * width
                child = self._split(child, shared // width, changes)
            node, offset = child, offset + shared
        return node, node.end - start.end

    def _split(self, lower: Node, pages: int, changes: list[Change]) -> Node:
        """Cut ``lower`` after its first ``pages`` pages; the new upper node has no state."""
        parent = lower.parent
        assert parent is not None
        width = len(lower.key) // len(lower.pages)
        upper = self._new_node(
            parent, lower.key[: pages * width], lower.pages[:pages], pages * self.page_tokens
        )
        upper.kv_lock = lower.kv_lock  # whoever reads the lower part reads the upper one too
        upper.kv_used = lower.kv_used
        lower.key = lower.key[pages * width :]
        lower.pages = lower.pages[pages:]
        lower.parent = upper
        upper.children[lower.key[:width]] = lower
        if upper.kv_lock == 0:
            # The commit that splits locks this node before it ends, and takes it out again.
            self.kv_lru[upper.id] = upper
        changes.append(Split(lower.id, upper.id, upper.end))
        return upper

    def _add_leaf(
        self,
        parent: Node,
        key: PrefixKey,
        pages: Sequence[int],
        checkpoint: Checkpoint,
        changes: list[Change],
    ) -> Node:
        first = parent.end // self.page_tokens * key.page_bytes
        last = checkpoint.boundary // self.page_tokens * key.page_bytes
        leaf = self._new_node(parent, key.data[first:last], pages, checkpoint.boundary - parent.end)
        self.cached_pages += len(pages)
        self._set_state(leaf, checkpoint)
        changes.append(
            Added(leaf.id, parent.id, parent.end, leaf.end, tuple(pages), checkpoint.slot)
        )
        return leaf

    def _new_node(self, parent: Node, key: bytes, pages: Sequence[int], tokens: int) -> Node:
        node = Node(self._next_node, parent, key, pages, parent.end + tokens)
        self._next_node += 1
        self.nodes[node.id] = node
        parent.children[key[: len(key) // len(pages)]] = node
        return node

    def _set_state(self, node: Node, checkpoint: Checkpoint) -> None:
        if checkpoint.boundary != node.end:
            raise KdalabError(
                f"a state of {checkpoint.boundary:,} tokens cannot stand at a key of {node.end:,}"
            )
        node.state = checkpoint
        self.cached_states += 1
        self._use_state(node)

    def _use_state(self, node: Node) -> None:
        self._clock += 1
        node.state_used = self._clock
        self.state_lru[node.id] = node
        self.state_lru.move_to_end(node.id)

    def _evict_one(self, kind: str, dropped: list[Dropped]) -> bool:
        """Give up the oldest leaf ("kv"), the oldest state, or the older of the two ("either")."""
        leaf = next(iter(self.kv_lru.values()), None) if kind != "state" else None
        old = next(iter(self.state_lru.values()), None) if kind != "kv" else None
        if leaf is not None and (old is None or leaf.kv_used < old.state_used):
            self._remove(leaf, dropped)
        elif old is not None and (old.children or old.kv_lock):
            dropped.append(self._drop_state(old))
        elif old is not None:
            self._remove(old, dropped)
        else:
            return False
        return True

    def _bytes_of(self, dropped: Sequence[Dropped]) -> tuple[int, int]:
        pages = sum(len(d.pages) for d in dropped)
        states = sum(d.state is not None for d in dropped)
        return pages * self.page_bytes, states * self.checkpoint_bytes

    def _evicted(self, dropped: Sequence[Dropped]) -> Evicted:
        return Evicted(
            *self._bytes_of(dropped),
            tuple(p for d in dropped for p in d.pages),
            tuple(d.state for d in dropped if d.state is not None),
            tuple(dropped),
        )

    def _drop_state(self, node: Node) -> Dropped:
        assert node.state is not None
        slot, node.state = node.state.slot, None
        self.state_lru.pop(node.id, None)
        self.cached_states -= 1
        return Dropped(node.id, slot, (), removed=False)

    def _remove(self, node: Node, dropped: list[Dropped]) -> None:
        """Remove a leaf, then every tombstone above it that this leaves childless and unlocked."""
        leaf: Node | None = node
        while leaf is not None and leaf is not self.root and not leaf.children and not leaf.kv_lock:
            slot = self._drop_state(leaf).state if leaf.state is not None else None
            parent = leaf.parent
            assert parent is not None
            width = len(leaf.key) // len(leaf.pages)
            del parent.children[leaf.key[:width]]
            del self.nodes[leaf.id]
            self.kv_lru.pop(leaf.id, None)
            self.cached_pages -= len(leaf.pages)
            dropped.append(Dropped(leaf.id, slot, tuple(leaf.pages), removed=True))
            leaf = parent if parent.state is None else None

    def _lock_path(self, node: Node, above: Node) -> None:
        for part in node.up_to(above):
            part.kv_lock += 1
            if part.kv_lock == 1:
                self.kv_lru.pop(part.id, None)

    def _unlock_path(self, node: Node) -> None:
        self._clock += 1
        for part in node.up_to(self.root):
            part.kv_lock -= 1
            if part.kv_lock == 0:
                part.kv_used = self._clock
                self.kv_lru[part.id] = part  # deepest first: descendants stay before ancestors

    def _lease(self, node: Node, pages: tuple[int, ...], state: Checkpoint | None) -> Lease:
        lease = Lease(self._next_lease, node.id, node.end, pages, state)
        self._next_lease += 1
        self.leases[lease.id] = lease
        return lease

    def _check_lease(self, lease: Lease) -> None:
        if self.leases.get(lease.id) is not lease:
            raise KdalabError(f"lease {lease.id} is not held: released already, or moved by commit")

    def _check_key(self, key: PrefixKey) -> None:
        if key.page_tokens != self.page_tokens:
            raise KdalabError(
                f"this cache has pages of {self.page_tokens} tokens; the key's pages have "
                f"{key.page_tokens}"
            )
