"""The second level: copies in host memory, written through when a prefix is hot, loaded back.

SGLang's HiCache, decided without tensors. Three rules:

* What the host holds is closed upwards: a node has a copy only if its parent has one. So "all KV
  pages of the prefix" is what a copy means, and the host gives up leaves first, as the device.
* All KV pages are needed, but only the last state.
* A transfer under way locks its path on the host, and on the device what it reads. Those
  references stop the cascade. A node that is split meanwhile gets its ack for both halves.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kdalab.cache import eviction
from kdalab.cache.host_copies import HostCopies, lacks_copy, lacks_state
from kdalab.cache.node import Node
from kdalab.cache.protocol import BackedUp, Change, Checkpoint, Dropped, Evicted, Lookup, Revived
from kdalab.cache.transfers import Direction, Flight, Landed, Transfer, Wish, cut_into_segments
from kdalab.errors import KdalabError


class HostTier(HostCopies):
    """Host copies of a radix cache's nodes, and the transfers that make and read them.

    Args:
        write_through: a node is due for a copy once so many requests have used it (1: at once).

    Raises:
        KdalabError: a threshold below 1.
    """

    def __init__(self, write_through: int = 2) -> None:
        if type(write_through) is not int or write_through < 1:
            raise KdalabError(
                f"write_through = {write_through!r} hits; use 1 (copy at the first use) or more"
            )
        super().__init__()
        self.write_through = write_through
        self.flights: dict[int, Flight] = {}
        self._due: dict[int, Node] = {}
        self._next_job = 1

    # -- what is known and what is due -------------------------------------------------------

    def count(self, deepest_first: Sequence[Node]) -> None:
        """One more request has used these nodes of a path: younger, and perhaps hot by now."""
        self.tree.clock += 1
        for node in deepest_first:
            node.hits += 1
            if node.hits >= self.write_through and lacks_copy(node):
                self._due[node.id] = node
        if deepest_first:
            self.use(deepest_first[0])

    def uncount(self, path: Iterable[Node]) -> None:
        """The request was let go before the path was of use to it."""
        for node in path:
            node.hits = max(0, node.hits - 1)
            if node.hits < self.write_through:
                self._due.pop(node.id, None)

    def dismiss(self, node_id: int) -> None:
        """No copy of this node can be made now: it has to become hot again first."""
        node = self._due.pop(node_id, None)
        if node is not None:
            node.hits = 0

    def due(self) -> tuple[Wish, ...]:
        """Nodes that are hot and lack a copy, the longest known first.

        A node whose path has a backup under way waits for its end.
        """
        wishes = []
        for node in list(self._due.values()):
            if self.tree.nodes.get(node.id) is not node or not lacks_copy(node):
                del self._due[node.id]
                continue
            missing = self._missing_copies(node)
            if missing is not None:
                pages = sum(len(n.pages) for n in missing)
                wishes.append(Wish(node.id, node.end, pages, lacks_state(node)))
        return tuple(wishes)

    # -- transfers ---------------------------------------------------------------------------

    def start_backup(self, node_id: int, pages: Sequence[int], slot: int | None) -> Transfer:
        """Begin to copy the path to a node down to the host.

        Args:
            node_id: as in a ``Wish``.
            pages: host pages, as many as the wish says, for the path's edges from the top.
            slot: host slot for the node's state, or None when the wish has no state.

        Raises:
            KdalabError: the wish does not hold any more. Nothing is locked or taken.
        """
        tree = self.tree
        node = tree.nodes.get(node_id)
        missing = self._missing_copies(node) if node is not None and node.pages else None
        if node is None or missing is None:
            raise KdalabError(
                f"node {node_id} cannot be copied to the host: it is gone, off the device, or a "
                "copy of its path is under way. Ask due() again"
            )
        wanted = sum(len(n.pages) for n in missing)
        if len(pages) != wanted or (slot is not None) != lacks_state(node):
            raise KdalabError(
                f"{node} needs {wanted:,} host pages and "
                f"{'one slot' if lacks_state(node) else 'no slot'} for its state; given: "
                f"{len(pages):,} and {'none' if slot is None else 'one'}"
            )
        segments = cut_into_segments(missing, pages)
        state = None
        if slot is not None:
            assert node.state is not None
            state = (node.state.slot, slot)
            tree.lock_state_of(node)
        sources = tuple(p for n in missing for p in n.pages)
        job = self._job(Direction.BACKUP, node, sources, pages, state)
        return self._fly(Flight(job, node, node, state is not None, segments))

    def wanted_for(self, lookup: Lookup) -> Wish | None:
        """What a load up to ``lookup.host_restore`` needs on the device; None for no load."""
        found = self._load_target(lookup)
        if found is None:
            return None
        node, missing = found
        pages = sum(len(n.host_pages) for n in missing)
        return Wish(node.id, node.end, pages, node.state is None)

    def start_load(self, lookup: Lookup, pages: Sequence[int], slot: int | None) -> Transfer:
        """Begin to bring a prefix back: every page that is missing, and the last state only.

        Args:
            lookup: with a ``host_restore``.
            pages: device pages, as many as ``wanted_for`` says.
            slot: checkpoint slot for the state, or None when the device has it.

        Raises:
            KdalabError: there is nothing to load, the cache has changed, or other numbers are
                needed. Nothing is locked or taken.
        """
        tree = self.tree
        found = self._load_target(lookup)
        if found is None:
            raise KdalabError("there is nothing to load for this lookup (any more); look up again")
        node, missing = found
        wanted = sum(len(n.host_pages) for n in missing)
        if len(pages) != wanted or (slot is None) != (node.state is not None):
            raise KdalabError(
                f"{node} needs {wanted:,} device pages and "
                f"{'one slot' if node.state is None else 'no slot'} for its state; given: "
                f"{len(pages):,} and {'none' if slot is None else 'one'}"
            )
        segments = cut_into_segments(missing, pages)
        state, locks_state = None, node.state is not None
        if slot is not None:
            assert node.host_state is not None
            state = (node.host_state.slot, slot)
        else:
            tree.lock_state_of(node)
        sources = tuple(p for n in missing for p in n.host_pages)
        job = self._job(Direction.LOAD, node, sources, pages, state)
        anchor = missing[0].parent if missing else node
        assert anchor is not None
        return self._fly(Flight(job, node, anchor, locks_state, segments))

    def ack(self, job_id: int) -> Landed:
        """The copy is complete: what it brought is the cache's from now on.

        Raises:
            KdalabError: no such transfer is under way.
        """
        flight = self._land(job_id)
        changes: list[Change] = []
        duplicates: list[int] = []
        existed = False
        if flight.job.direction is Direction.BACKUP:
            self._store(flight, changes)
        else:
            duplicates, existed = self._bring_back(flight, changes)
        return Landed(tuple(changes), tuple(duplicates), existed, self._let_go(flight))

    def fail(self, job_id: int) -> Evicted:
        """The copy did not happen: locks go back, the target numbers stay with the caller.

        Raises:
            KdalabError: no such transfer is under way.
        """
        flight = self._land(job_id)
        if flight.job.direction is Direction.BACKUP:
            flight.node.hits = 0  # it has to become hot again before the next attempt
            self._due.pop(flight.node.id, None)
        return self._let_go(flight)

    # -- what the tree tells -----------------------------------------------------------------

    def on_split(self, upper: Node, lower: Node, pages: int) -> None:
        """``lower`` was cut after ``pages`` pages: so is its copy, and every transfer of it."""
        upper.host_pages, lower.host_pages = lower.host_pages[:pages], lower.host_pages[pages:]
        if lower.host_lock:
            for flight in self.flights.values():
                flight.split(upper, lower, pages)
        elif upper.host_pages:
            self.use(upper)
        if lower.id in self._due:
            self._due[upper.id] = upper

    def on_detach(self, node: Node) -> tuple[tuple[int, ...], int | None]:
        """``node`` leaves the tree: its copies go with it."""
        self._due.pop(node.id, None)
        return self.clear(node)

    # -- inside ------------------------------------------------------------------------------

    def _missing_copies(self, node: Node) -> list[Node] | None:
        """Nodes on the path to ``node`` without a copy, top first; None while one is under way."""
        missing = [n for n in node.up_to(self.tree.root) if not n.host_pages]
        missing.reverse()
        wanted = {n.id for n in missing} | {node.id}
        for flight in self.flights.values():
            if flight.job.direction is Direction.BACKUP:
                busy = {s.node.id for s in flight.segments} | {flight.node.id}
                if busy & wanted:
                    return None
        return missing

    def _load_target(self, lookup: Lookup) -> tuple[Node, list[Node]] | None:
        if lookup.host_restore is None:
            return None
        tree = self.tree
        for node_id in lookup.path:
            node = tree.nodes.get(node_id)
            if node is not None and node.end == lookup.host_restore:
                break
        else:
            return None
        if node.state is None and node.host_state is None:
            return None
        missing = [n for n in node.up_to(tree.root) if not n.pages]
        missing.reverse()
        if not missing and node.state is not None:
            return None
        return node, missing

    def _job(
        self,
        direction: Direction,
        node: Node,
        sources: tuple[int, ...],
        targets: Sequence[int],
        state: tuple[int, int] | None,
    ) -> Transfer:
        self._next_job += 1
        return Transfer(
            self._next_job - 1, direction, node.id, node.end, sources, tuple(targets), state
        )

    def _fly(self, flight: Flight) -> Transfer:
        self.flights[flight.job.id] = flight
        self.tree.lock_path(flight.anchor)
        for part in flight.node.up_to(self.tree.root):
            part.host_lock += 1
            self.kv_lru.pop(part.id, None)
            self.state_lru.pop(part.id, None)
        return flight.job

    def _land(self, job_id: int) -> Flight:
        flight = self.flights.pop(job_id, None)
        if flight is None:
            raise KdalabError(f"no transfer {job_id} is under way: it has ended already")
        return flight

    def _let_go(self, flight: Flight) -> Evicted:
        """Undo ``_fly``; what has become useless meanwhile goes."""
        tree, node = self.tree, flight.node
        if flight.locks_state:
            tree.unlock_state_of(node)
        for part in node.up_to(tree.root):
            part.host_lock -= 1
        tree.unlock_path(flight.anchor)
        self.use(node)
        dropped: list[Dropped] = []
        eviction.sweep(tree, node, dropped)
        return eviction.account(tree.page_bytes, tree.checkpoint_bytes, dropped)

    def _store(self, flight: Flight, changes: list[Change]) -> None:
        at = {s.node.id: s.targets for s in flight.segments}
        slot = flight.job.state[1] if flight.job.state is not None else None
        for segment in flight.segments:
            segment.node.host_pages = segment.targets
            self.cached_pages += len(segment.targets)
        node = flight.node
        if slot is not None:
            node.host_state = Checkpoint(slot, node.end)
            self.cached_states += 1
        for part in [s.node for s in flight.segments if s.node is not node] + [node]:
            pages = tuple(at.get(part.id, ()))
            changes.append(BackedUp(part.id, pages, slot if part is node else None))

    def _bring_back(self, flight: Flight, changes: list[Change]) -> tuple[list[int], bool]:
        tree, node, duplicates = self.tree, flight.node, list[int]()
        for segment in flight.segments:
            if segment.node.pages:  # computed anew meanwhile, by a request that passed through
                duplicates += segment.targets
            else:
                changes.append(tree.refill(segment.node, tuple(segment.targets)))
        for segment in reversed(flight.segments):  # ancestors follow their descendants
            if not segment.node.kv_lock:
                segment.node.kv_used = tree.clock
                tree.kv_lru.move_to_end(segment.node.id)
        if flight.job.state is None:
            return duplicates, False
        if node.state is not None:
            return duplicates, True
        slot = flight.job.state[1]
        tree.set_state(node, Checkpoint(slot, node.end))
        changes.append(Revived(node.id, slot))
        return duplicates, False
