"""Replays fast enough to follow a slider: one trace read once, then any placement and budget.

``LiveReplay`` takes the decisions of ``RadixStateCache`` under least recent use on a tree of its
own (``live_tree``), which keeps a request's checkpoints as one group, and without the objects that
an engine needs: leases, pages by number, the record of every change. A test holds its figures
against those of ``replay``, field by field. Where the two differ, that one is right.
"""

from __future__ import annotations

import time

from kdalab.cache import Placement
from kdalab.errors import InvariantError
from kdalab.lab.live_tree import Chain, ChainTree
from kdalab.lab.replay import ReplayResult, check_budget, without_garbage_collection
from kdalab.lab.trace import Requests
from kdalab.spec import ModelSpec, state_sizes

_NO_LIMIT = 1 << 80  # bytes that no trace can fill


class LiveReplay:
    """A trace ready to be replayed again and again, with the sizes of one model.

    Holds 8 bytes for each block of each prompt.

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
        self._requests: list[tuple[bytes, int, int]] = []  # key, tokens, blocks to restore at most
        for r in trace:
            key = r.blocks[: r.input_tokens // block].tobytes()
            self.tokens.append(r.input_tokens)
            self._requests.append((key, r.input_tokens, (r.input_tokens - 1) // block))

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
    """One replay: the account, and the bytes that are free."""

    def __init__(self, live: LiveReplay, budget: int | None, result: ReplayResult) -> None:
        self.live, self.result = live, result
        self.limit = self.room = self.least = _NO_LIMIT if budget is None else budget
        self.tree = ChainTree(live.checkpoint_bytes, live.page_bytes)

    def go(
        self, placement: Placement, restored: list[int] | None, matches: list[int] | None
    ) -> None:
        tree, block = self.tree, self.live.block
        hit = known = replayed = reads = once = n_input = 0
        for key, n, last in self.live._requests:
            path, at = tree.walk(key)
            source = tree.deepest(path, at if at < last else last)
            start = deepest = 0
            tree.lock_at, tree.lock = tree.root, 0
            if source is not None:
                group, i = source
                start = deepest = group.ends[i]
                reads += 1
                once += not group.read
                tree.lock_at, tree.lock = tree.touch(group, i, read=True).node, start
            if at > last and (end := tree.deepest(path, at)) is not None:
                deepest = end[0].ends[end[1]]
            restore, match = start * block, at * block
            n_input += n
            hit += restore
            known += match
            if match > restore:
                replayed += match - restore
            if restored is not None:
                restored.append(restore)
            if matches is not None:
                matches.append(match)
            wanted = placement.boundaries(n, restore, match if at > deepest else None, block)
            if wanted:
                self.commit(path, at, key, start, [b // block for b in wanted], last)
        result, live = self.result, self.live
        result.requests, result.input_tokens = len(live.tokens), n_input
        result.hit_tokens, result.known_tokens, result.replayed_tokens = hit, known, replayed
        result.reads, result.states_read_at_least_once = reads, once
        result.evicted_pages, result.evicted_states = tree.evicted_pages, tree.evicted_states
        result.evicted_kv_bytes = tree.evicted_pages * live.page_bytes
        result.evicted_state_bytes = tree.evicted_states * live.checkpoint_bytes
        blocks, states = tree.contents()
        result.kv_bytes = blocks * live.page_bytes
        result.state_bytes = states * live.checkpoint_bytes
        result.peak_bytes = self.limit - self.least
        gone = (result.pages_written - blocks, result.states_written - states)
        if gone != (tree.evicted_pages, tree.evicted_states):
            raise InvariantError(f"written - in the tree = {gone}, and not what was evicted")
        if result.kv_bytes + result.state_bytes != self.limit - self.room:
            raise InvariantError("bytes in the tree are not the bytes in use")

    def commit(
        self, path: list[Chain], known: int, key: bytes, start: int, ends: list[int], last: int
    ) -> None:
        """Leave checkpoints at ``ends``, making room for each before it comes. There always is
        room: no budget is below what one prompt and one checkpoint need.

        Room is made for all blocks since the last one; those that are known go back at once.
        What was decided and not yet written into the tree are the checkpoints from ``first`` on.
        """
        tree, result = self.tree, self.result
        page, state = self.live.page_bytes, self.live.checkpoint_bytes
        room, least = self.room, self.least
        first = pages = 0
        existed = None
        group, left = None, 0  # what goes next, and how many of its checkpoints there are
        for i, end in enumerate(ends):
            need = (end - start) * page + state
            if room < need:
                many = (need - room + state - 1) // state
                if not left and (group := tree.oldest()) is not None:
                    left = group.hi - group.lo
                if many < left:  # not its last one, with which latent KV may go
                    left -= many
                    room += many * state
                else:
                    if group is not None:
                        tree.shorten(group, left)
                    left = 0
                    if i > first:
                        tree.leave(path, known, key, ends, first, i)
                        first, known = i, max(known, start)
                    room += tree.evict(need - room)
                    if known > start:  # what is known and not locked may be gone
                        path, known = tree.walk(key)
            if room - need < least:
                least = room - need
            if end > known:
                new = end - (known if known > start else start)
                pages += new
                room -= new * page + state
            else:
                if end > last:  # all that was given up must be written before looking
                    if group is not None and left:
                        tree.shorten(group, left)
                    existed = tree.at(path, end)
                room -= state if existed is None else 0
            start = end
        if group is not None and left:
            tree.shorten(group, left)
        written = len(ends) - (existed is not None)
        if written > first:
            tree.leave(path, known, key, ends, first, written)
        if existed is not None:
            tree.touch(*existed, read=False)
        result.pages_written += pages
        result.states_written += written
        self.room, self.least = room, least
