"""Replays fast enough to follow a slider: one trace read once, then any placement and budget.

``LiveReplay`` takes the decisions of ``RadixStateCache`` under least recent use, on bare lists and
without the objects that an engine needs: leases, pages by number, the record of every change. A
test holds its figures against those of ``replay``, field by field. Where the two differ, that one
is right.
"""

from __future__ import annotations

import time
from collections import OrderedDict

from kdalab.cache import Placement
from kdalab.cache.keys import common_pages
from kdalab.lab.replay import ReplayResult, check_budget, without_garbage_collection
from kdalab.lab.trace import Requests
from kdalab.memory.counting import CountingPool
from kdalab.spec import ModelSpec, state_sizes

_ID = 8  # bytes of a block's id in a key


class LiveReplay:
    """A trace ready to be replayed again and again, with the sizes of one model.

    Holds 8 bytes for each block of each prompt. Lengths inside are in bytes of keys: 8 a block.

    Args:
        trace: read once.
        spec: the model whose state is counted.
    """

    def __init__(self, trace: Requests, spec: ModelSpec) -> None:
        self.trace, self.spec = trace, spec
        self.block = block = trace.block_tokens
        sizes = state_sizes(spec)
        self.page_bytes = sizes.latent_bytes(block)
        self.checkpoint_bytes = sizes.checkpoint_bytes
        self.tokens: list[int] = []
        self._requests: list[tuple[bytes, int, int]] = []  # key, tokens, end of the last restore
        for r in trace:
            key = r.blocks[: r.input_tokens // block].tobytes()
            self.tokens.append(r.input_tokens)
            self._requests.append((key, r.input_tokens, (r.input_tokens - 1) // block * _ID))

    @property
    def smallest_budget(self) -> int:
        """Bytes in which every request can keep its own prompt and a checkpoint."""
        blocks = max(self.tokens, default=0) // self.block
        return blocks * self.page_bytes + self.checkpoint_bytes

    def run(
        self,
        placement: Placement,
        budget: int | None = None,
        restored: list[int] | None = None,
        known: list[int] | None = None,
    ) -> ReplayResult:
        """As ``replay(trace, spec, placement, budget)``.

        Args:
            restored: gets the tokens that each request restored, in order.
            known: gets the tokens of each whose latent KV was in the cache, in order.

        Raises:
            KdalabError: the budget is smaller than what one request needs; an interval off the
                grid.
        """
        begin = time.perf_counter()
        placement.boundaries(self.block, 0, None, self.block)  # refuses an interval off the grid
        if budget is not None and budget < self.smallest_budget:
            check_budget(self.trace, budget, self.page_bytes, self.checkpoint_bytes)
        result = ReplayResult(
            self.trace.name,
            self.spec.name,
            str(placement),
            budget,
            self.block,
            self.page_bytes,
            self.checkpoint_bytes,
        )
        with without_garbage_collection():
            _Run(self, budget, result).go(placement, restored, known)
        result.skipped_lines = self.trace.n_skipped
        result.skipped_examples = [str(s) for s in self.trace.skipped]
        result.seconds = time.perf_counter() - begin
        return result


class _Run:
    """One replay: the tree as lists by node number, and both orders of use, oldest first.

    A node is locked while the one request that runs holds the path to it, and just then it is not
    in the order of KV.
    """

    def __init__(self, live: LiveReplay, budget: int | None, result: ReplayResult) -> None:
        self.live, self.result = live, result
        self.budget = budget
        self.parent = [0]
        self.edge = [b""]
        self.kids: list[dict[bytes, int]] = [{}]
        self.slot = [-1]  # number of the checkpoint, -1 for a tombstone
        self.kv_used, self.state_used = [0], [0]
        self.kv: OrderedDict[int, None] = OrderedDict()
        self.states: OrderedDict[int, None] = OrderedDict()
        self.clock = 0
        self.pool = CountingPool(live.page_bytes, live.checkpoint_bytes, budget)

    def go(
        self, placement: Placement, restored: list[int] | None, matches: list[int] | None
    ) -> None:
        kids, edge, slot, parent = self.kids, self.edge, self.slot, self.parent
        kv, states, state_used, kv_used = self.kv, self.states, self.state_used, self.kv_used
        block, read = self.live.block, set()
        hit = known = replayed = reads = n_input = 0
        boundaries = placement.boundaries
        for key, n, last in self.live._requests:
            node = at = matched = deepest = source = start = 0
            size = len(key)
            while at < size:
                child = kids[node].get(key[at : at + _ID])
                if child is None:
                    break
                run = edge[child]
                if not key.startswith(run, at):
                    matched = common_pages(key[at : at + len(run)], run, _ID) * _ID
                    break
                node, at = child, at + len(run)
                if slot[child] >= 0:
                    deepest = at
                    if at <= last:
                        source, start = child, at
            matched += at
            restore, match = start // _ID * block, matched // _ID * block
            n_input += n
            hit += restore
            known += match
            if match > restore:
                replayed += match - restore
            if restored is not None:
                restored.append(restore)
            if matches is not None:
                matches.append(match)
            part = source
            while part:
                del kv[part]
                part = parent[part]
            if source:
                self.clock += 1
                state_used[source] = self.clock
                states.move_to_end(source)
                reads += 1
                read.add(slot[source])
            branching = match if matched > deepest else None
            lease = source
            for boundary in boundaries(n, restore, branching, block):
                end = boundary // block * _ID
                lease = self.commit(lease, start, key, end)
                start = end
            self.clock = clock = self.clock + 1
            part = lease
            while part:
                kv_used[part] = clock
                kv[part] = None  # deepest first
                part = parent[part]
        result, pool = self.result, self.pool
        result.requests, result.input_tokens = len(self.live.tokens), n_input
        result.hit_tokens, result.known_tokens, result.replayed_tokens = hit, known, replayed
        result.reads, result.states_read_at_least_once = reads, len(read)
        result.kv_bytes, result.state_bytes = pool.kv_bytes, pool.state_bytes
        result.peak_bytes = pool.peak_bytes
        result.evicted_kv_bytes = result.evicted_pages * pool.page_bytes
        result.evicted_state_bytes = result.evicted_states * pool.checkpoint_bytes

    def commit(self, lease: int, start: int, key: bytes, end: int) -> int:
        """Leave a checkpoint at ``end``, making room first; its node. There always is room: no
        budget is below what one prompt and one checkpoint need, and no more is locked."""
        pool, result = self.pool, self.result
        blocks = (end - start) // _ID
        if self.budget is not None and pool.missing(blocks, 1):
            self.evict(blocks)
        new_slot = pool.take(blocks, 1)[1].start
        kids, edge, slot, parent, kv = self.kids, self.edge, self.slot, self.parent, self.kv
        node, at = lease, start
        while at < end:
            child = kids[node].get(key[at : at + _ID])
            if child is None:
                break
            run = edge[child]
            stop = at + len(run)
            if stop > end or not key.startswith(run, at):
                cut = common_pages(key[at : min(stop, end)], run, _ID) * _ID
                upper = self.hang(node, run[:cut])
                kids[upper][run[cut : cut + _ID]] = child
                parent[child], edge[child] = upper, run[cut:]
                child, stop = upper, at + cut
            else:
                del kv[child]
            node, at = child, stop
        fresh, existed = (end - at) // _ID, False
        if at < end:
            node = self.hang(node, key[at:end])
        elif slot[node] >= 0:
            existed = True
        if existed or fresh < blocks:
            pool.give(blocks - fresh, int(existed))
        result.pages_written += fresh
        if not existed:
            slot[node] = new_slot
            result.states_written += 1
        self.clock += 1
        self.state_used[node] = self.clock
        self.states[node] = None
        if existed:
            self.states.move_to_end(node)
        return node

    def hang(self, node: int, run: bytes) -> int:
        new = len(self.parent)
        self.parent.append(node)
        self.edge.append(run)
        self.kids.append({})
        self.slot.append(-1)
        self.kv_used.append(0)
        self.state_used.append(0)
        self.kids[node][run[:_ID]] = new
        return new

    def evict(self, blocks: int) -> None:
        """Give up what was used least recently, of either kind, until so many pages and one
        checkpoint fit."""
        kv, states, kv_used, state_used = self.kv, self.states, self.kv_used, self.state_used
        pool = self.pool
        while pool.missing(blocks, 1):
            leaf, old = next(iter(kv), 0), next(iter(states), 0)
            if leaf and (not old or kv_used[leaf] < state_used[old]):
                self.drop_leaf(leaf)
            elif self.kids[old] or old not in kv:
                self.slot[old] = -1
                del states[old]
                self.result.evicted_states += 1
                pool.give(0, 1)
            else:
                self.drop_leaf(old)

    def drop_leaf(self, leaf: int) -> None:
        above = self.parent[leaf]
        self.detach(leaf)
        self.sweep(above)

    def sweep(self, node: int) -> None:
        """Remove what has no child, no state and no lock, and then its parent if that has none."""
        while node and not self.kids[node] and self.slot[node] < 0 and node in self.kv:
            above = self.parent[node]
            self.detach(node)
            node = above

    def detach(self, node: int) -> None:
        run, has_state = self.edge[node], self.slot[node] >= 0
        if has_state:
            self.slot[node] = -1
            del self.states[node]
        del self.kv[node]
        del self.kids[self.parent[node]][run[:_ID]]
        pages = len(run) // _ID
        self.result.evicted_pages += pages
        self.result.evicted_states += has_state
        self.pool.give(pages, int(has_state))
