"""The tree of a live replay: prefixes as chains of blocks, checkpoints as groups on them.

``RadixStateCache`` has a node for each checkpoint. Here a node ends only where prompts part or
end, and the checkpoints that one request leaves on it are one group: a slice of the request's
boundaries. They are used last one after the other, so least recent use takes a group's upper
checkpoints at once, by moving one index.

That order alone says what goes: a prefix ends in a checkpoint, which was used before the request
that left it let go of its latent KV. So whenever latent KV is the oldest, that checkpoint is
older still, and goes first with what ends in it. Positions are counted in blocks.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from heapq import heappop, heappush

from kdalab.cache.keys import common_pages
from kdalab.errors import InvariantError

ID = 8  # bytes of a block's id in a key


class Group:
    """Checkpoints at ``ends[lo:hi]``, ascending; the one at ``ends[i]`` was used at ``tick + i``.

    ``read``: was it ever restored? Only a group of one ever is.
    """

    __slots__ = ("ends", "hi", "lo", "node", "read", "tick")

    def __init__(
        self, node: Chain, ends: Sequence[int], lo: int, hi: int, tick: int, read: bool = False
    ) -> None:
        self.node, self.ends, self.lo, self.hi = node, ends, lo, hi
        self.tick, self.read = tick, read


class Chain:
    """The blocks in (start, end] below ``parent``, their ids in ``run``; ``groups`` by depth."""

    __slots__ = ("end", "groups", "kids", "parent", "run", "start")

    def __init__(self, parent: Chain | None, run: bytes, start: int, end: int) -> None:
        self.parent, self.run, self.start, self.end = parent, run, start, end
        self.kids: dict[bytes, Chain] = {}
        self.groups: list[Group] = []

    def add(self, group: Group) -> None:
        """A group none of whose checkpoints has one of another group beside it."""
        groups, first = self.groups, group.ends[group.lo]
        at = len(groups)
        while at and groups[at - 1].ends[groups[at - 1].lo] > first:
            at -= 1
        groups.insert(at, group)


class ChainTree:
    """All that is cached, and the one path that is locked: to ``lock``, which is on ``lock_at``."""

    def __init__(self, state_bytes: int, page_bytes: int) -> None:
        self.state_bytes, self.page_bytes = state_bytes, page_bytes
        self.root = Chain(None, b"", 0, 0)
        self.clock = 0
        self.order: list[tuple[int, Group]] = []  # a heap by tick; empty groups are left in it
        self.lock_at, self.lock = self.root, 0
        self.latest = Group(self.root, (), 0, 0, 0)
        self.evicted_states = self.evicted_pages = 0

    def walk(self, key: bytes) -> tuple[list[Chain], int]:
        """The chains below the root that ``key`` follows, and how far."""
        node, at, size = self.root, 0, len(key)
        path = []
        while at < size:
            child = node.kids.get(key[at : at + ID])
            if child is None:
                break
            path.append(child)
            run = child.run
            if not key.startswith(run, at):
                return path, at // ID + common_pages(key[at : at + len(run)], run, ID)
            node, at = child, at + len(run)
        return path, at // ID

    @staticmethod
    def deepest(path: list[Chain], limit: int) -> tuple[Group, int] | None:
        """The deepest checkpoint at or above ``limit``: its group and its index there."""
        for node in reversed(path):
            for group in reversed(node.groups):
                ends, lo, hi = group.ends, group.lo, group.hi
                if ends[lo] <= limit:
                    if ends[hi - 1] <= limit:
                        return group, hi - 1
                    return group, bisect_right(ends, limit, lo, hi) - 1
        return None

    @classmethod
    def at(cls, path: list[Chain], end: int) -> tuple[Group, int] | None:
        """The checkpoint at ``end``, as ``deepest``; None if there is none."""
        found = cls.deepest(path, end)
        return found if found is not None and found[0].ends[found[1]] == end else None

    def contents(self) -> tuple[int, int]:
        """Blocks and checkpoints in the tree, counted there."""
        blocks = states = 0
        found = [self.root]
        for node in found:
            blocks += node.end - node.start
            states += sum(group.hi - group.lo for group in node.groups)
            found.extend(node.kids.values())
        return blocks, states

    def touch(self, group: Group, i: int, read: bool) -> Group:
        """Use one checkpoint: it becomes a group of its own, the youngest."""
        node, lo, hi = group.node, group.lo, group.hi
        groups = node.groups
        at = groups.index(group)
        clock = self.clock = self.clock + 1
        own = Group(node, (group.ends[i],), 0, 1, clock, read or group.read)
        if hi - lo == 1:
            groups[at] = own
            group.hi = lo
        elif i == lo:
            group.lo = lo + 1
            groups.insert(at, own)
        else:
            groups.insert(at + 1, own)
            if i < hi - 1:
                groups.insert(at + 2, self._lower(group, i + 1))
            group.hi = i
        heappush(self.order, (clock, own))
        return own

    def _lower(self, group: Group, i: int) -> Group:
        """A second group of the checkpoints from index ``i`` on; the caller ends the first."""
        lower = Group(group.node, group.ends, i, group.hi, group.tick)
        heappush(self.order, (group.tick + i, lower))
        return lower

    def leave(
        self, path: list[Chain], known: int, key: bytes, ends: Sequence[int], lo: int, hi: int
    ) -> None:
        """Leave checkpoints at ``ends[lo:hi]``, and lock down to the last of them.

        Args:
            path: the chains that are cached of ``key``, down to ``known``; grows.
        """
        tick = self.clock + 1 - lo
        self.clock += hi - lo
        last = ends[hi - 1]
        if ends[lo] <= known:
            inside = hi if last <= known else bisect_right(ends, known, lo, hi)
            for node in path:
                if node.end >= ends[lo]:
                    stop = inside
                    if ends[inside - 1] > node.end:
                        stop = bisect_right(ends, node.end, lo, inside)
                    self._put(node, ends, lo, stop, tick)
                    lo = stop
                    if lo == inside:
                        break
        if last > known:
            node = path[-1] if path else self.root
            if known < node.end:
                node = path[-1] = self._split(node, known)
            run = key[known * ID : last * ID]
            if node.kids or node is self.root:
                child = Chain(node, run, known, last)
                node.kids[run[:ID]] = child
                path.append(child)
                node = child
            else:
                node.run += run
                node.end = last
            self._put(node, ends, lo, hi, tick)
        self.lock_at, self.lock = node, last

    def _put(self, node: Chain, ends: Sequence[int], lo: int, hi: int, tick: int) -> None:
        latest = self.latest
        if latest.ends is ends and latest.hi == lo > latest.lo and latest.node is node:
            latest.hi = hi  # goes on where the same request stopped
            return
        group = self.latest = Group(node, ends, lo, hi, tick)
        node.add(group)
        heappush(self.order, (tick + lo, group))

    def _split(self, node: Chain, cut: int) -> Chain:
        """Part a chain at ``cut``; the upper half, which is new."""
        parent = node.parent
        assert parent is not None
        size = (cut - node.start) * ID
        upper = Chain(parent, node.run[:size], node.start, cut)
        parent.kids[node.run[:ID]] = upper
        node.run, node.start, node.parent = node.run[size:], cut, upper
        upper.kids[node.run[:ID]] = node
        below = []
        for group in node.groups:
            ends, lo, hi = group.ends, group.lo, group.hi
            if ends[lo] > cut:
                below.append(group)
                continue
            if ends[hi - 1] > cut:
                middle = bisect_right(ends, cut, lo, hi)
                below.append(self._lower(group, middle))
                group.hi = middle
            group.node = upper
            upper.groups.append(group)
        node.groups = below
        return upper

    def oldest(self) -> Group | None:
        """The group whose first checkpoint was used least recently; None without any."""
        order = self.order
        while order:
            group = order[0][1]
            if group.lo < group.hi:
                return group
            heappop(order)
        return None

    def shorten(self, group: Group, left: int) -> None:
        """Give up a group's upper checkpoints, all but ``left`` (at least 1: no latent KV goes)."""
        self.evicted_states += group.hi - left - group.lo
        group.lo = group.hi - left

    def evict(self, short: int) -> int:
        """Give up what was used least recently until ``short`` bytes or more are free; the bytes
        that became free.

        Raises:
            InvariantError: nothing is left to give up.
        """
        freed, size = 0, self.state_bytes
        while freed < short:
            group = self.oldest()
            if group is None:
                raise InvariantError("nothing is left to evict, and there is no room")
            many = min(group.hi - group.lo - 1, (short - freed + size - 1) // size)
            if many:
                self.shorten(group, group.hi - group.lo - many)
                freed += many * size
                continue
            heappop(self.order)
            node = group.node
            node.groups.remove(group)
            at = group.ends[group.lo]
            group.hi = group.lo
            self.evicted_states += 1
            freed += size
            if at == node.end and not node.kids:
                freed += self._trim(node) * self.page_bytes
        return freed

    def _trim(self, node: Chain) -> int:
        """Blocks that go with a prefix's last checkpoint: up to the next one above, to where
        another prompt parts, or to the lock."""
        pages = 0
        while node.parent is not None and not node.kids:
            keep = node.start
            if node.groups:
                group = node.groups[-1]
                keep = group.ends[group.hi - 1]
            if node is self.lock_at and keep < self.lock:
                keep = self.lock
            pages += node.end - keep
            if keep > node.start:
                node.run, node.end = node.run[: (keep - node.start) * ID], keep
                break
            del node.parent.kids[node.run[:ID]]
            node = node.parent
        self.evicted_pages += pages
        return pages
