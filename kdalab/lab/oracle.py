"""A schedule made with knowledge of the future: which checkpoints to hold, from when until when.

Greedy: requests are served in the order of tokens for each unit of price (the prices are those
that prove the upper bound), each by the deepest boundary whose state and latent KV still fit every
gap on the way. What a schedule holds is counted as a tree holds it: a state keeps all blocks above
it, once, however many states need them. ``oracle_run`` plays it through the cache's own code.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np

from kdalab.lab.bounds import Bound, Choices, Problem, holding
from kdalab.lab.kv_only_tree import PromptTree

Spans = list[tuple[int, int]]


@dataclass(slots=True)
class Schedule:
    """``keep[r]``: the boundaries on request r's path (in blocks) whose states are held after it,
    until the next request that passes there. ``planned`` are the tokens that it should restore."""

    keep: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))
    planned: int = 0


def plan(problem: Problem, budget: int, bound: Bound) -> Schedule:
    """The greedy schedule under ``budget`` bytes."""
    tree, c = problem.tree, problem.choices
    room = _Room(problem, budget)
    if not len(c.request):
        return room.schedule
    page, state = problem.page_bytes, problem.state_bytes
    cost = holding(c, bound.prices, state / page) * page
    gain = c.depth * tree.block_tokens
    net = gain - cost
    density = gain / np.maximum(cost, 1e-12)
    begins = np.unique(c.first)
    ends = np.append(begins[1:], len(c.request))
    # Each request's choices by what they gain net; requests by the density of their best one.
    orders = [b + np.argsort(-net[b:e], kind="stable") for b, e in zip(begins, ends, strict=True)]
    best = np.array([o[0] for o in orders])
    taken: dict[int, int] = {}
    for i in np.lexsort((-gain[best], -density[best])).tolist():
        for row in orders[i].tolist():
            r, since, depth = int(c.request[row]), int(c.since[row]), int(c.depth[row])
            if room.take(_path(tree, c, row), depth, since, r):
                taken[r] = row
                room.restored[r] = depth
                break
    room.schedule.planned = sum(room.restored) * tree.block_tokens
    for _, row in sorted(taken.items()):
        room.make(_path(tree, c, row), int(c.depth[row]), int(c.since[row]))
    return room.schedule


def _path(tree: PromptTree, c: Choices, row: int) -> tuple[int, ...]:
    """Edges that a choice restores, top first."""
    return tree.paths[int(c.request[row])][: row - int(c.first[row]) + 1]


class _Room:
    """Bytes held in every gap, and who holds what: spans of gaps for each edge and each state."""

    def __init__(self, problem: Problem, budget: int) -> None:
        self.problem, self.budget = problem, budget
        self.tree = problem.tree
        self.schedule = Schedule()
        self.restored = [0] * self.tree.n_requests  # blocks
        self.used = np.zeros(self.tree.n_requests, np.int64)
        self.edges: dict[int, Spans] = {}
        self.states: dict[tuple[int, int], Spans] = {}
        self.visits: dict[int, list[int]] = defaultdict(list)
        for r, path in enumerate(self.tree.paths):
            for edge in path:
                self.visits[edge].append(r)

    def take(self, path: tuple[int, ...], depth: int, a: int, b: int) -> bool:
        """Hold the state at ``depth`` and the blocks above it over the gaps [a, b), if they fit;
        whether they did."""
        tree, page, used = self.tree, self.problem.page_bytes, self.used
        wanted: list[tuple[Spans, int, Spans]] = []
        for edge in path:
            spans = self.edges.setdefault(edge, [])
            fresh = _uncovered(spans, a, b)
            if fresh:
                wanted.append((spans, tree.length[edge] * page, fresh))
        spans = self.states.setdefault((path[-1], depth), [])
        wanted.append((spans, self.problem.state_bytes, _uncovered(spans, a, b)))
        for _, size, fresh in wanted:
            for start, end in fresh:
                used[start:end] += size
        if int(used[a:b].max()) > self.budget:
            for _, size, fresh in wanted:
                for start, end in fresh:
                    used[start:end] -= size
            return False
        for spans, _, fresh in wanted:
            for start, end in fresh:
                _add(spans, start, end)
        visits = self.visits[path[-1]]
        for r in visits[bisect_left(visits, a) : bisect_left(visits, b)]:
            self.schedule.keep[r].add(depth)
        return True

    def make(self, path: tuple[int, ...], depth: int, since: int) -> None:
        """See to it that the state is there to be held from ``since`` on: that request computes
        past it, or it is held from an earlier one that did. Where it cannot be, the state will be
        missing when the schedule is played."""
        visits, spans = self.visits[path[-1]], self.states[path[-1], depth]
        i = bisect_left(visits, since)
        while self.restored[visits[i]] >= depth:
            if i == 0 or not _uncovered(spans, visits[i] - 1, visits[i]):
                break
            i -= 1
        if visits[i] < since:
            self.take(path, depth, visits[i], since)


def _uncovered(spans: Spans, a: int, b: int) -> Spans:
    """What of [a, b) no span covers; spans are sorted and apart."""
    out, at = [], a
    i = bisect_right(spans, (a, 1 << 60)) - 1
    for start, end in spans[max(0, i) :]:
        if start >= b:
            break
        if end <= at:
            continue
        if start > at:
            out.append((at, start))
        at = max(at, end)
    if at < b:
        out.append((at, b))
    return out


def _add(spans: Spans, a: int, b: int) -> None:
    """Put a span that overlaps none among them; neighbours that touch become one."""
    i = bisect_left(spans, (a, b))
    if i < len(spans) and spans[i][0] == b:
        b = spans.pop(i)[1]
    if i and spans[i - 1][1] == a:
        a = spans.pop(i - 1)[0]
        i -= 1
    spans.insert(i, (a, b))
