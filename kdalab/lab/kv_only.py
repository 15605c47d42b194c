"""Hit rates of a cache that keeps latent KV only: FIFO, LRU, and the clairvoyant policy.

The rules are those of the KV-only simulators in use (kvcache-simulator 0.1.3 among them), so that
figures can be held side by side: capacity in blocks, whole prompts one after the other, a hit ends
at the first block that is missing, and only the later requests count, once the cache has been full.
LRU and the clairvoyant policy give up leaves only, so every block in the cache has its prefix
there; FIFO gives up whatever is oldest. The clairvoyant policy knows the next request for
every block, gives up the leaf needed last, and keeps out what is needed later than all that is in.

All three walk edges of a ``PromptTree``, on which each is exact:

* **FIFO**: the capacity C holds the last C blocks put in. An edge enters as a whole, and once its
  first block has gone, the second goes when the first comes back, and so on: what remains of one
  number an edge.
* **LRU**: a request makes its path young, deepest block first. So the cache of C blocks is the
  top of one stack, and a block is hit by every C of at least its place in it (Mattson et al.,
  "Evaluation techniques for storage hierarchies", 1970): one pass gives all capacities.
* **Clairvoyant**: all blocks of an edge have the same next request, so a heap of edges is enough.
"""

from __future__ import annotations

import heapq
from array import array
from bisect import bisect_right
from collections.abc import Sequence

import numpy as np

from kdalab.lab.kv_only_tree import PromptTree

POLICIES = ("fifo", "lru", "clairvoyant")


def fifo_hits(tree: PromptTree, capacity: int) -> array[int]:
    """Blocks hit by each request when the oldest block goes first."""
    length, out = tree.length, array("q")
    entered = [-1 - capacity] * len(length)  # when an edge's first block came in
    count = 0
    for path in tree.paths:
        hit, floor = 0, count - capacity
        for edge in path:
            if entered[edge] < floor:
                break
            hit += length[edge]
        out.append(hit)
        for edge in path:
            if entered[edge] < count - capacity:
                entered[edge] = count
                count += length[edge]
    return out


def lru_hits(tree: PromptTree, capacities: Sequence[int]) -> list[array[int]]:
    """Blocks hit by each request, for each capacity, when the least recently used leaf goes first.

    One pass over the trace for all capacities that hold the longest prompt, and one for each of
    the others.
    """
    large = [c for c in capacities if c >= tree.longest]
    stack = dict(zip(large, _stack_hits(tree, large), strict=True)) if large else {}
    return [stack[c] if c in stack else _small_lru_hits(tree, c) for c in capacities]


def _stack_hits(tree: PromptTree, capacities: Sequence[int]) -> list[array[int]]:
    """Hits by the place in the LRU stack.

    The stack is ordered by last request, young first, and within one request from the top of its
    path. Blocks whose last request is q lie together, below those of all later requests.
    """
    n, length = tree.n_requests, tree.length
    below = [0] * (n + 1)  # Fenwick tree over requests: blocks whose last request it is
    last = [-1] * len(length)
    total = 0
    of_request, above, blocks = array("q"), array("q"), array("q")  # of each run of a path
    for r, path in enumerate(tree.paths):
        runs: dict[int, int] = {}
        for edge in path:
            q = last[edge]
            runs[q] = runs.get(q, 0) + length[edge]
            last[edge] = r
        brought = 0
        for q, size in runs.items():
            brought += size
            if q < 0:
                total += size
                continue
            younger, i = total, q + 1  # all, less those of requests up to q
            while i:
                younger -= below[i]
                i &= i - 1
            of_request.append(r)
            above.append(younger)
            blocks.append(size)
        for q, size in runs.items():  # only now: all places are those before this request
            i = q + 1
            while 0 < i <= n:
                below[i] -= size
                i += i & -i
        i = r + 1
        while i <= n:
            below[i] += brought
            i += i & -i
    owner, free, size_of = (np.array(a, np.int64) for a in (of_request, above, blocks))
    out = []
    for capacity in capacities:
        hit = np.clip(capacity - free, 0, size_of)
        each = np.bincount(owner, weights=hit, minlength=n).astype(np.int64)
        out.append(array("q", each.tobytes()))
    return out


def _small_lru_hits(tree: PromptTree, capacity: int) -> array[int]:
    """As ``lru_hits`` for a cache that not every prompt fits.

    A prompt that is too long ends with its last block thrown out for the next, which then has
    nothing to stand on; so one block stays free. The simulators do so, and so does this.
    """
    length, parent, out = tree.length, tree.parent, array("q")
    n_edges = len(length)
    held, kids, used = [0] * n_edges, [0] * n_edges, [-1] * n_edges
    heap: list[int] = []  # last request * n_edges + edge, of leaves
    free = capacity
    for r, path in enumerate(tree.paths):
        hit, deepest, added = 0, 0, False
        whole = True
        for edge in path:
            have = held[edge]
            if whole:
                hit += have
                if have:
                    used[edge] = r
                    deepest = edge
                if have == length[edge]:
                    continue
                whole = False
            want = length[edge] - have
            while want > free and heap:
                when, victim = divmod(heap[0], n_edges)
                if not held[victim] or kids[victim] or used[victim] != when:
                    heapq.heappop(heap)
                    continue
                taken = min(want - free, held[victim])
                held[victim] -= taken
                free += taken
                if not held[victim]:
                    heapq.heappop(heap)
                    above = parent[victim]
                    kids[above] -= 1
                    if above and not kids[above] and used[above] != r:
                        heapq.heappush(heap, used[above] * n_edges + above)
            take = min(want, free)
            if take:
                if not have:
                    kids[parent[edge]] += 1
                held[edge] = have + take
                used[edge] = r
                free -= take
                deepest, added = edge, True
            if take < want:
                if added:
                    held[deepest] -= 1
                    free += 1
                    if not held[deepest]:
                        deepest = parent[deepest]
                        kids[deepest] -= 1
                break
        out.append(hit)
        if deepest and not kids[deepest]:
            heapq.heappush(heap, r * n_edges + deepest)
    return out


def clairvoyant_hits(
    tree: PromptTree, capacity: int, following: Sequence[tuple[int, ...]] | None = None
) -> array[int]:
    """Blocks hit by each request when the leaf needed last goes first.

    Args:
        following: ``tree.next_visits()``, where it is at hand already.
    """
    following = tree.next_visits() if following is None else following
    length, parent, never, out = tree.length, tree.parent, tree.n_requests, array("q")
    n_edges = len(length)
    held, kids, needed = [0] * n_edges, [0] * n_edges, [0] * n_edges
    heap: list[int] = []  # (never - next request) * n_edges + edge, of leaves
    free = capacity
    for r, path in enumerate(tree.paths):
        after = following[r]
        hit, deepest = 0, 0
        i = 0
        for i, edge in enumerate(path):
            needed[edge] = after[i]
            have = held[edge]
            hit += have
            if have:
                deepest = edge
            if have != length[edge]:
                break
        else:
            i = len(path)
        out.append(hit)
        for j in range(i, len(path)):
            edge, when = path[j], after[j]
            needed[edge] = when
            want = length[edge] - held[edge]
            while want > free and heap:
                wait, victim = divmod(heap[0], n_edges)
                if not held[victim] or kids[victim] or needed[victim] != never - wait:
                    heapq.heappop(heap)
                    continue
                if never - wait <= when:  # its own path among them: that is needed no later
                    break
                taken = min(want - free, held[victim])
                held[victim] -= taken
                free += taken
                if not held[victim]:
                    heapq.heappop(heap)
                    above = parent[victim]
                    kids[above] -= 1
                    if above and not kids[above]:
                        heapq.heappush(heap, (never - needed[above]) * n_edges + above)
            take = min(want, free)
            if take:
                if not held[edge]:
                    kids[parent[edge]] += 1
                held[edge] += take
                free -= take
                deepest = edge
            if take < want:
                break
        if deepest and not kids[deepest]:
            heapq.heappush(heap, (never - needed[deepest]) * n_edges + deepest)
    return out


def full_by(seen: Sequence[int], capacity: int) -> int:
    """The first request after which the cache has been full; ``len(seen)`` if never."""
    return bisect_right(seen, capacity - 1)
