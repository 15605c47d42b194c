"""An upper bound on what any policy can restore under a budget of bytes; ``docs/yardsticks.md`` has
the argument.

Each request may restore at one boundary of its path. That takes one checkpoint, held since the
last request that passed there, and every block above, held since the last request that passed each
of them. So each choice takes bytes in the gaps between requests, and no gap has more than the
budget. With a price on each gap (tokens for a byte that is held across it), Lagrange's relaxation
lets every request choose alone; whatever the prices are, what they then gain together is a bound.
Subgradient steps look for prices that make it small.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from kdalab.errors import KdalabError
from kdalab.lab.kv_only_tree import PromptTree
from kdalab.lab.trace import Requests
from kdalab.spec import ModelSpec, state_sizes

STEPS = 200
_SLACK = 1e-9  # rounding of sums of up to a million doubles, far above what it can be


class Choices(NamedTuple):
    """Where requests may restore. One row a choice, those of a request together, top first.

    ``request``; ``since``, the last request before that passed there (its state is held from
    then); ``blocks`` that this choice has beyond the one before it, which were all passed last by
    that same request; ``depth``, the blocks restored.
    """

    request: np.ndarray
    since: np.ndarray
    blocks: np.ndarray
    depth: np.ndarray
    first: np.ndarray
    """For each row, the row at which its request begins."""


@dataclass(frozen=True, slots=True)
class Bound:
    """``tokens`` that no policy exceeds over the whole trace; ``prices`` (tokens a byte) for the
    gap after each request, which prove it; ``known`` is the bound without a budget."""

    tokens: int
    known: int
    prices: np.ndarray


@dataclass(frozen=True, slots=True)
class Problem:
    """A trace and a model's sizes (bytes), made ready once for any budget."""

    tree: PromptTree
    choices: Choices
    page_bytes: int
    state_bytes: int

    @classmethod
    def of(cls, trace: Requests, spec: ModelSpec) -> Problem:
        """Read ``trace`` once."""
        sizes = state_sizes(spec)
        tree = PromptTree(trace, whole_only=True)
        page = sizes.latent_bytes(trace.block_tokens)
        return cls(tree, choices_of(tree), page, sizes.checkpoint_bytes)


def choices_of(tree: PromptTree) -> Choices:
    """Every edge's end that an earlier request has passed, as far as a token is left to compute.

    Boundaries inside an edge need not be looked at: all blocks of an edge were passed last by the
    same request, so at any prices the net gain is linear along it, and where it falls, the edge
    above is the better choice, whose state is held for no longer.
    """
    request: list[int] = []
    since: list[int] = []
    blocks: list[int] = []
    depth: list[int] = []
    first: list[int] = []
    for r, (path, before) in enumerate(zip(tree.paths, tree.previous_visits(), strict=True)):
        usable, at, begin = (tree.tokens[r] - 1) // tree.block_tokens, 0, len(request)
        for edge, q in zip(path, before, strict=True):
            take = min(tree.length[edge], usable - at)
            if q < 0 or take <= 0:
                break
            at += take
            request.append(r)
            since.append(q)
            blocks.append(take)
            depth.append(at)
            first.append(begin)
    return Choices(*(np.array(a, np.int64) for a in (request, since, blocks, depth, first)))


def upper_bound(problem: Problem, budget: int, steps: int = STEPS) -> Bound:
    """Tokens that no schedule can exceed under ``budget`` bytes, and the prices that prove it.

    Args:
        steps: of the search for prices. More make the bound closer; every one is valid.

    Raises:
        KdalabError: a budget or steps below 1.
    """
    if budget < 1 or steps < 1:
        raise KdalabError(f"a budget of {budget:,} bytes, {steps} steps; use 1 or more of both")
    choices, block = problem.choices, problem.tree.block_tokens
    known = int(_most(choices, choices.depth.astype(float))[0].sum()) * block
    n = problem.tree.n_requests
    best = Bound(known, known, np.zeros(n))
    if not known:
        return best
    # In pages instead of bytes, so that numbers are near 1.
    room, state = budget / problem.page_bytes, problem.state_bytes / problem.page_bytes
    level = _level(choices, room, state, block, n)
    prices = np.full(n, level)
    value = np.inf
    for step in range(steps):
        gain, usage = _relaxed(choices, prices, state, block)
        total = room * prices.sum() + gain
        if total < value:
            value = total
            best = Bound(_rounded(total, block, known), known, prices / problem.page_bytes)
        # Dearer where more is wanted than there is, cheaper where less; steps that shrink.
        rate = 0.5 / np.sqrt(1 + step)
        prices = np.maximum(prices, level * 1e-6) * np.exp(rate * np.clip(usage / room - 1, -1, 1))
    return best


def _rounded(total: float, block: int, known: int) -> int:
    """Down to whole blocks, which is what can be restored."""
    return min(known, int(total * (1 + _SLACK)) // block * block)


def _level(choices: Choices, room: float, state: float, block: int, n: int) -> float:
    """The one price for all gaps that gives the least bound, within some percent."""
    grid = block * np.geomspace(1e-7, 1.0, 60)
    totals = []
    for price in grid:
        gain, _ = _relaxed(choices, np.full(n, price), state, block)
        totals.append(room * price * n + gain)
    return float(grid[int(np.argmin(totals))])


def net_gain(choices: Choices, prices: np.ndarray, state: float, block: int) -> np.ndarray:
    """Tokens of each choice, less the price of all that it holds (one unit a block)."""
    return choices.depth * block - holding(choices, prices, state)


def holding(choices: Choices, prices: np.ndarray, state: float) -> np.ndarray:
    """The price of all that each choice holds."""
    until = np.concatenate(([0.0], np.cumsum(prices)))
    each = until[choices.request] - until[choices.since]
    summed = np.cumsum(choices.blocks * each)
    above = np.where(choices.first > 0, summed[choices.first - 1], 0.0)
    return summed - above + state * each


def _most(choices: Choices, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The largest value of each request that has a choice, and its row."""
    starts = np.unique(choices.first)
    most = np.maximum.reduceat(values, starts)
    row = np.arange(len(values))
    where = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(values))))
    hit = np.where(values == most[where], row, -1)
    return most, np.maximum.reduceat(hit, starts)


def _relaxed(
    choices: Choices, prices: np.ndarray, state: float, block: int
) -> tuple[float, np.ndarray]:
    """What all requests gain, each by its own best choice, and what that holds in every gap."""
    most, row = _most(choices, net_gain(choices, prices, state, block))
    row = row[most > 0]
    n = len(prices)
    change = np.zeros(n + 1)
    taken = np.zeros(len(choices.request) + 1)
    np.add.at(taken, choices.first[row], 1)
    np.add.at(taken, row + 1, -1)
    held = choices.blocks * np.cumsum(taken)[:-1]
    change += np.bincount(choices.since, held, n + 1) - np.bincount(choices.request, held, n + 1)
    change += state * (
        np.bincount(choices.since[row], minlength=n + 1)
        - np.bincount(choices.request[row], minlength=n + 1)
    )
    return float(most[most > 0].sum()), np.cumsum(change)[:-1]
