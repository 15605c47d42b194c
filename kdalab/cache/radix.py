"""The radix tree whose nodes may hold a checkpoint: SGLang's way (its ``MambaRadixCache``).

A prompt's text may be known far beyond the last boundary at which a recurrent state was kept.
So a match has two answers, the token match and the restore point, and only the second can be
computed from. Two rules carry the structure:

* A split leaves the state with the lower node. A state summarises everything up to the *end* of
  its edge; it says nothing about a point in the middle, so the new upper node has none.
* Latent KV is locked along the whole path, a state on its own node only. The recurrence needs one
  state; attention reads every page from the root down.

The structure is in ``tree``, what enters in ``insertion``, what goes in ``eviction`` and
``retention``, the second level in ``host``, the proofs in ``radix_check``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kdalab.cache import eviction, insertion, radix_check
from kdalab.cache.host import HostTier
from kdalab.cache.keys import PrefixKey, common_pages
from kdalab.cache.node import Node
from kdalab.cache.page_path import PagePath
from kdalab.cache.protocol import (
    Bytes,
    Change,
    Checkpoint,
    Committed,
    Dropped,
    Evicted,
    Lease,
    Lookup,
    Revived,
)
from kdalab.cache.retention import Lru, Retention
from kdalab.cache.tree import RadixTree
from kdalab.errors import KdalabError
from kdalab.spec import StateKind


class RadixStateCache(RadixTree):
    """A page-keyed radix tree over prompts, with checkpoints on its nodes.

    Args:
        page_tokens: tokens a latent page holds.
        grid: boundaries that can hold a state are multiples of this (tokens).
        page_bytes: bytes of one latent page, all layers.
        checkpoint_bytes: bytes of one checkpoint (recurrent + conv, all layers).
        retention: what is kept and what goes first.
        host: a second level that takes copies; None for none.
    """

    def __init__(
        self,
        page_tokens: int,
        grid: int,
        page_bytes: int = 1,
        checkpoint_bytes: int = 1,
        retention: Retention | None = None,
        host: HostTier | None = None,
    ) -> None:
        super().__init__(page_tokens, grid, page_bytes, checkpoint_bytes)
        self.retention = retention or Retention()
        self.leases: dict[int, Lease] = {}
        self._state_locked: set[int] = set()  # leases that still hold their state's lock
        self._next_lease = 1
        if host is not None:
            host.attach(self)
            self.host = host
        # Nothing to do after a commit but what the tree does itself.
        self._is_plain = host is None and replace(self.retention, order=Lru()) == Retention()

    # -- reading -----------------------------------------------------------------------------

    def lookup(self, key: PrefixKey) -> Lookup:
        """Walk the tree along ``key``. Pure: no split, no refresh, no lock."""
        self._check_key(key)
        data, width = key.data, key.page_bytes
        node, offset, size = self.root, 0, len(data)
        path: list[Node] = []
        partial = 0
        while offset < size:
            child = node.children.get(data[offset : offset + width])
            if child is None:
                break
            edge = child.key
            if not data.startswith(edge, offset):
                # The first page is the same, so the edge is shared up to some page of it.
                partial = common_pages(data[offset : offset + len(edge)], edge, width)
                break
            path.append(child)
            node, offset = child, offset + len(edge)
        matched = node.end + partial * self.page_tokens
        ids = [n.id for n in path]
        # At least one token must be computed, to have logits.
        deepest, restore = self._deepest_states(path, key.n_tokens - 1)
        kv, known, back = matched, deepest.end, None
        if self.host is not None:
            kv, known, back = self.host.reach(path, child if partial else None, matched, key)
        if partial:
            assert child is not None
            ids.append(child.id)
        branching = matched // self.grid * self.grid
        state = deepest.end
        return Lookup(
            key.n_tokens,
            matched,
            {StateKind.MLA_KV: kv, StateKind.KDA_RECURRENT: state, StateKind.KDA_CONV: state},
            restore.end,
            branching if branching > known else None,
            tuple(ids),
            (restore, key),
            back if back is not None and back > restore.end else None,
        )

    def _deepest_states(self, path: Sequence[Node], last: int) -> tuple[Node, Node]:
        """The deepest node of ``path`` with a state, and the deepest that ends by ``last``."""
        deepest = None
        for node in reversed(path):
            if node.state is not None:
                deepest = deepest or node
                if node.end <= last:
                    return deepest, node
        return deepest or self.root, self.root

    # -- locks -------------------------------------------------------------------------------

    def acquire(self, lookup: Lookup) -> Lease:
        """Lock the path to the restore point and its state; what counts as used is up to the
        retention's ``refresh`` rule.

        Raises:
            KdalabError: the restore point has gone or moved since the lookup. Nothing is locked.
        """
        node, key = lookup.handle if type(lookup.handle) is tuple else (None, None)
        if (
            not isinstance(node, Node)
            or self.nodes.get(node.id) is not node
            or node.end != lookup.restore
            or (node is not self.root and node.state is None)
        ):
            raise KdalabError("the cache has changed since this lookup; look up again")
        lease = self._lease(node, PagePath(self.lock_path(node)), key)
        if node.state is not None:
            self.lock_state_of(node)
            self._state_locked.add(lease.id)
            if self.retention.refresh == "path":
                self._use_states_above(node)
        if self.host is not None:
            self.host.count([*node.up_to(self.root)])
        return lease

    def acquire_kv(self, lookup: Lookup) -> Lease:
        """Lock latent KV alone, as far as whole nodes of the path have it on the device: for a
        request whose state comes from elsewhere. The lease has no state to copy from.

        Raises:
            KdalabError: the path has gone since the lookup. Nothing is locked.
        """
        _, key = lookup.handle if type(lookup.handle) is tuple else (None, None)
        node = self.root
        for number in lookup.path:
            part = self.nodes.get(number)
            if part is None or part.parent is not node:
                raise KdalabError("the cache has changed since this lookup; look up again")
            if part.end > lookup.token_match or not part.pages:
                break
            node = part
        lease = self._lease(node, PagePath(self.lock_path(node)), key)._replace(state=None)
        self.leases[lease.id] = lease
        if self.host is not None:
            self.host.count([*node.up_to(self.root)])
        return lease

    def lock_state(self, lease: Lease) -> None:
        """Lock the state at the lease's own node again: somebody is about to read it. Harmless if
        repeated.

        Raises:
            KdalabError: the lease is not held, or its state has been evicted.
        """
        self._check_lease(lease)
        node = self.nodes[lease.node]
        if node.state is None or node.state is not lease.state:
            raise KdalabError(f"{lease}: its state has been evicted; look up again")
        if lease.id not in self._state_locked:
            self._state_locked.add(lease.id)
            self.lock_state_of(node)

    def unlock_state(self, lease: Lease) -> None:
        """The state has been copied; its checkpoint counts as just used. Harmless if repeated.

        Only a lock that this lease took is given back: a lease that began at a tombstone or at
        the root holds none, whatever the node has become since.
        """
        self._check_lease(lease)
        if lease.id in self._state_locked:
            self._state_locked.discard(lease.id)
            self.unlock_state_of(self.nodes[lease.node])

    def release(self, lease: Lease, used: bool = True) -> Evicted:
        """Give back the locks; the whole path counts as just used, deepest first.

        A lease that was of no use in the end, because its request has to wait, makes no node
        hotter for the host.

        A node that lost its state while this lease read its KV is of no use any more if nothing
        hangs below it. It goes now, and what it held is returned.
        """
        self.unlock_state(lease)
        del self.leases[lease.id]
        node = self.nodes[lease.node]
        self.unlock_path(node)
        if not used and self.host is not None:
            self.host.uncount(node.up_to(self.root))
        if node.state is not None:
            return eviction.NOTHING
        dropped: list[Dropped] = []
        eviction.sweep(self, node, dropped)
        return eviction.account(self.page_bytes, self.checkpoint_bytes, dropped)

    # -- writing -----------------------------------------------------------------------------

    def commit(
        self, lease: Lease, key: PrefixKey, pages: Sequence[int], checkpoint: Checkpoint
    ) -> Committed:
        """Enter the prefix that ends at ``checkpoint.boundary``, with its state.

        The key's length equals the state's, always: both are cut from the one boundary. Whether
        the state is a copy or the slot itself (donated) makes no difference here.

        Raises:
            KdalabError: the boundary is off the grid, not beyond the lease, or beyond the key;
                ``pages`` are not those of [lease.boundary, boundary); or ``key`` is not the
                continuation of what the lease holds. Nothing has changed.
        """
        self._check_key(key)
        self._check_lease(lease)
        boundary = checkpoint.boundary
        insertion.check_commit(self, lease, key, pages, boundary)
        self.key_width = key.page_bytes
        if lease.id in self._state_locked:
            self.unlock_state(lease)
        start = self.nodes[lease.node]
        changes: list[Change] = []
        passed = insertion.descend(self, start, key, boundary, changes)
        node = passed[-1] if passed else start
        known = node.end - start.end
        duplicates = known
        if self.host is not None:
            duplicates = insertion.refill(self, start.end, passed, pages, changes)
        for part in passed:
            self.lock_kv_of(part)
        existed = False
        if node.end < boundary:
            rest = pages[known // self.page_tokens :] if known else pages
            node, added = self.add_leaf(node, key, rest, checkpoint)
            passed.append(node)
            changes.append(added)
        elif node.state is None:
            self.set_state(node, checkpoint)
            changes.append(Revived(node.id, checkpoint.slot))
        else:
            existed = True
            if not node.state_lock:
                self.use_state(node)
        del self.leases[lease.id]
        assert isinstance(lease.pages, PagePath)
        held = PagePath([n.pages for n in passed], lease.pages)
        moved = self._lease(node, held, key)
        own = tuple(pages[: duplicates // self.page_tokens]) if duplicates else ()
        dropped = () if self._is_plain else self._after_commit(passed)
        return Committed(moved, own, existed, tuple(changes), dropped)

    def _after_commit(self, passed: list[Node]) -> tuple[Dropped, ...]:
        """Uses to be counted beyond the last state's, and the cap of states a path."""
        node, retention = passed[-1], self.retention
        if self.host is not None:
            self.host.count(passed[::-1])
        if retention.refresh == "path":
            self._use_states_above(node)
        if retention.max_states_per_path is None:
            return ()
        return tuple(eviction.cap_path(self, node, retention.max_states_per_path))

    def evict(self, need: Bytes) -> Evicted:
        """Give up what the retention names first, by bytes; what is locked stays."""
        return eviction.evict(self, self.retention.order, need)

    def check(self) -> None:
        """Prove every invariant of the tree; see ``radix_check``."""
        radix_check.check(self)

    # -- inside ------------------------------------------------------------------------------

    def _use_states_above(self, node: Node) -> None:
        """The whole-path rule: every state from the root to ``node`` is young, the deepest most."""
        for part in reversed([*node.up_to(self.root)]):
            if part.state is not None and not part.state_lock:
                self.use_state(part)

    def _lease(self, node: Node, pages: PagePath, key: PrefixKey | None) -> Lease:
        lease = Lease(self._next_lease, node.id, node.end, pages, node.state, key)
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
        if self.key_width is not None and key.page_bytes != self.key_width:
            raise KdalabError(
                f"this cache knows pages by {self.key_width} bytes each; the key's pages have "
                f"{key.page_bytes}: token ids and block ids do not mix"
            )
