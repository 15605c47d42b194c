"""FLOP-aware eviction (Marconi, arXiv 2411.19379): S = recency + alpha x FLOPs saved per byte.

Both terms are min-max normalised over the candidates: what nobody has locked and has at most one
child. Recency is ``1 / (now - last use)``. The saving is what a hit here saves *beyond its parent*,
over the bytes that go: state and the edge's own KV for a leaf, the state alone inside the tree,
whose KV the child still needs. Long prefixes give more FLOPs for the same state, and with alpha
above 0 they outlive short ones of the same age.

Admission is the placement's: ``Leaf(branch=True)`` leaves a state at a prompt's end, and at the
branching point once a second prompt is seen to share it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

from kdalab.cache.flops import PrefillFlops
from kdalab.cache.node import Node
from kdalab.cache.retention import Aged, N
from kdalab.errors import KdalabError

#: The paper's grid of alpha: 0, 0.1, ..., 2.0. 0 is least recent use.
ALPHAS = tuple(i / 10 for i in range(21))


class Worth(NamedTuple):
    """One candidate's raw terms: 1 / ticks since its use, and FLOPs per byte."""

    recency: float
    efficiency: float


class Score(NamedTuple):
    """One candidate's normalised terms, each 0 to 1; ``total`` decides."""

    recency: float
    efficiency: float
    total: float


def scores(candidates: Sequence[Worth], alpha: float) -> list[Score]:
    """S of each candidate. A term that is equal for all of them counts 0 for all."""
    if not candidates:
        return []
    recency = _normalised([c.recency for c in candidates])
    efficiency = _normalised([c.efficiency for c in candidates])
    return [Score(r, e, r + alpha * e) for r, e in zip(recency, efficiency, strict=True)]


def _normalised(values: list[float]) -> list[float]:
    low, high = min(values), max(values)
    return [(v - low) / (high - low) if high > low else 0.0 for v in values]


@dataclass(frozen=True, slots=True)
class Marconi:
    """The order's text form, ``marconi:ALPHA``: which weight, and not yet what anything costs.

    Raises:
        KdalabError: a negative alpha; being asked to choose before it was told costs.
    """

    alpha: float

    def __post_init__(self) -> None:
        _check_alpha(self.alpha)

    def __str__(self) -> str:
        return f"marconi:{self.alpha:g}"

    def bound(self, flops: PrefillFlops, page_bytes: int, state_bytes: int) -> MarconiOrder:
        """The order that can choose."""
        return MarconiOrder(flops, page_bytes, state_bytes, self.alpha)

    def leaf(self, nodes: Mapping[int, N]) -> N | None:
        raise self._unbound()

    def state(self, nodes: Mapping[int, N]) -> N | None:
        raise self._unbound()

    def leaf_first(self, leaf: Aged, state: Aged) -> bool:
        raise self._unbound()

    def _unbound(self) -> KdalabError:
        return KdalabError(
            f"{self} weighs FLOPs against bytes and knows neither; call "
            "Retention.bound(flops, page_bytes, state_bytes) first"
        )


def _check_alpha(alpha: float) -> None:
    if not alpha >= 0:
        raise KdalabError(f"alpha = {alpha}; use 0 (least recent use) or more")


@dataclass(slots=True)
class MarconiOrder:
    """The order for ``Retention``. Looks at every candidate each time: an eviction costs a walk.

    Args:
        flops: what tokens cost.
        page_bytes, state_bytes: what a latent page and a checkpoint weigh.
        alpha: weight of the saving against recency; 0 for least recent use.

    Raises:
        KdalabError: a negative alpha.
    """

    flops: PrefillFlops
    page_bytes: int
    state_bytes: int
    alpha: float = 1.0

    def __post_init__(self) -> None:
        _check_alpha(self.alpha)

    def __str__(self) -> str:
        return f"marconi:{self.alpha:g}"

    def worth(self, node: Node, now: int, whole: bool) -> Worth:
        """Raw terms of a node that would go as a whole, or give up its state only."""
        used = max(node.kv_used, node.state_used) if whole else node.state_used
        nbytes = self.state_bytes if node.state is not None else 0
        if whole:
            nbytes += self.page_bytes * len(node.pages)
        # A tombstone leaf can be restored by nobody: it saves nothing.
        saved = self.flops.between(node.start, node.end) if node.state is not None else 0
        return Worth(1 / max(1, now - used), saved / max(1, nbytes))

    def leaf(self, nodes: Mapping[int, N]) -> N | None:
        """The leaf of least worth."""
        found = cast("Iterable[Node]", nodes.values())
        parents = {n.parent.id for n in found if n.parent is not None}
        return self._least([n for n in nodes.values() if cast("Node", n).id not in parents], True)

    def state(self, nodes: Mapping[int, N]) -> N | None:
        """The state of least worth among nodes with at most one child; forks go only after them."""
        few = [n for n in nodes.values() if len(cast("Node", n).children) <= 1]
        return self._least(few or list(nodes.values()), False)

    def leaf_first(self, leaf: Aged, state: Aged) -> bool:
        """Of the least leaf and the least state, the one of less worth."""
        if leaf is state:
            return True
        pair = (cast("Node", leaf), cast("Node", state))
        now = 1 + max(max(n.kv_used, n.state_used) for n in pair)
        whole = (True, not pair[1].children)
        first, second = scores(
            [self.worth(n, now, w) for n, w in zip(pair, whole, strict=True)], self.alpha
        )
        return first.total <= second.total

    def _least(self, candidates: list[N], leaves: bool) -> N | None:
        if not candidates:
            return None
        nodes = cast("list[Node]", candidates)
        now = 1 + max(max(n.kv_used, n.state_used) for n in nodes)
        rated = scores([self.worth(n, now, leaves or not n.children) for n in nodes], self.alpha)
        # Ties go to the older one: both mappings are ordered by last use.
        best = min(range(len(rated)), key=lambda i: rated[i].total)
        return candidates[best]


def best_alpha(saved: Callable[[float], float], alphas: Sequence[float] = ALPHAS) -> float:
    """The alpha whose replay of one window saves the most FLOPs; the smallest of equals.

    ``saved`` replays the same requests from the same cache under the alpha it is given.
    """
    if not alphas:
        raise KdalabError("no alpha to choose from")
    return max(alphas, key=lambda a: (saved(a), -a))
