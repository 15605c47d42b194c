"""Policies of a replay: what the caches bring, Marconi's order, and one's own from a file.

A policy of one's own is a class without arguments, in a Python file on this machine. It is a
placement if it has ``boundaries``, an eviction order if it has ``leaf``, ``state`` and
``leaf_first`` (see ``kdalab lab policy-template``). What it raises is reported with the request
and the call, and what it answers is checked: a replay never goes on from a wrong answer.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from kdalab.cache import EvictionOrder, Lru, MarconiOrder, Placement, PrefillFlops, Retention
from kdalab.cache.retention import Aged, N, parse_retention
from kdalab.errors import KdalabError

RETENTION_FORMS = "lru, lru-path, marconi, marconi:ALPHA, each also with +cap:N"
T = TypeVar("T")


def check_retention(text: str) -> None:
    """Refuse a retention that nobody knows.

    Raises:
        KdalabError: lists the known forms.
    """
    _marconi(text)


def is_marconi_auto(text: str) -> bool:
    """Must alpha be tuned on the trace first?"""
    found = _marconi(text)
    return found is not None and found[0] is None


def build_retention(
    text: str, flops: PrefillFlops, page_bytes: int, state_bytes: int, alpha: float | None = None
) -> Retention:
    """The retention of that name for a model of these sizes; ``alpha`` is what tuning found."""
    found = _marconi(text)
    if found is None:
        return parse_retention(text)
    own, kept = found
    weight = own if own is not None else alpha if alpha is not None else 1.0
    order = MarconiOrder(flops, page_bytes, state_bytes, weight)
    return Retention(order, kept.refresh, kept.max_states_per_path)


def _marconi(text: str) -> tuple[float | None, Retention] | None:
    """(alpha or None for auto, the rest) of a ``marconi`` form; None for the cache's own forms."""
    words = text.strip().lower()
    name, plus, rest = words.partition("+")
    head, colon, number = name.partition(":")
    try:
        if head != "marconi":
            parse_retention(words)
            return None
        kept = parse_retention("lru" + plus + rest)
        alpha = float(number) if colon else None
        if alpha is not None and not 0 <= alpha < 1e6:
            raise KdalabError(f"alpha {number}")
    except ValueError:
        shown = text if len(text) <= 40 else text[:37] + "..."
        raise KdalabError(f"unknown retention {shown!r}; allowed: {RETENTION_FORMS}") from None
    return alpha, kept


class PolicyError(KdalabError):
    """A policy of one's own raised, or answered something impossible."""


class Guard:
    """Stands between the cache and a policy; ``request`` is the line of the request served."""

    def __init__(self, policy: Any, name: str) -> None:
        self.policy, self.name, self.request = policy, name, 0

    def call(self, method: str, run: Callable[[], T], shown: str) -> T:
        """Run one call of the policy.

        Raises:
            PolicyError: it raised; names the policy, the call and the request.
        """
        try:
            return run()
        except Exception as error:
            raise self.wrong(f"{method}({shown})", f"raised {type(error).__name__}: {error}") from (
                error
            )

    def wrong(self, call: str, why: str) -> PolicyError:
        """The error for a call that went wrong."""
        return PolicyError(f"{self.name}: {call} {why}, at the request on line {self.request:,}")

    def __str__(self) -> str:
        return self.name


class GuardedPlacement(Guard):
    """A placement of one's own, its answers checked."""

    def boundaries(
        self, n_tokens: int, restore: int, branching: int | None, grid: int
    ) -> tuple[int, ...]:
        shown = f"n_tokens={n_tokens}, restore={restore}, branching={branching}, grid={grid}"
        found = self.call(
            "boundaries",
            lambda: tuple(self.policy.boundaries(n_tokens, restore, branching, grid)),
            shown,
        )
        last = restore
        for b in found:
            if type(b) is not int or b % grid or not last < b <= n_tokens:
                why = f"answered {b!r}; allowed: ascending multiples of grid in (restore, n_tokens]"
                raise self.wrong(f"boundaries({shown})", why)
            last = b
        return found


class GuardedOrder(Guard):
    """An eviction order of one's own, its answers checked."""

    def leaf(self, nodes: Mapping[int, N]) -> N | None:
        return self._chosen("leaf", nodes)

    def state(self, nodes: Mapping[int, N]) -> N | None:
        return self._chosen("state", nodes)

    def leaf_first(self, leaf: Aged, state: Aged) -> bool:
        shown = f"leaf={leaf}, state={state}"
        return bool(self.call("leaf_first", lambda: self.policy.leaf_first(leaf, state), shown))

    def _chosen(self, method: str, nodes: Mapping[int, N]) -> N | None:
        shown = f"{len(nodes):,} nodes"
        node = self.call(method, lambda: getattr(self.policy, method)(nodes), shown)
        if not nodes:
            return None
        if node is None or nodes.get(getattr(node, "id", -1)) is not node:
            raise self.wrong(f"{method}({shown})", f"answered {node!r}; allowed: one of the nodes")
        if method == "leaf":
            children: dict[bytes, Any] = getattr(node, "children", {})
            below = [c for c in children.values() if c.id in nodes]
            if below:
                raise self.wrong(f"{method}({shown})", f"answered {node!r}, which has descendants")
        return node


def load_policy(text: str) -> tuple[GuardedPlacement | None, GuardedOrder | None]:
    """``FILE.py:Class`` -> a placement or an eviction order, guarded; the other is None.

    Runs the file: it is the user's own.

    Raises:
        KdalabError: no such file or class, or a class that is neither.
    """
    path, _, name = text.rpartition(":")
    if not path.endswith(".py") or not name.isidentifier():
        raise KdalabError(f"policy {text!r}; use FILE.py:Class")
    file = Path(path)
    if not file.is_file():
        raise KdalabError(f"there is no file {path!r}")
    spec = importlib.util.spec_from_file_location(f"kdalab_policy_{abs(hash(path))}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
        policy = getattr(module, name)()
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        raise PolicyError(f"{text} cannot be made without arguments: {why}") from error
    if callable(getattr(policy, "boundaries", None)):
        return GuardedPlacement(policy, text), None
    if all(callable(getattr(policy, m, None)) for m in ("leaf", "state", "leaf_first")):
        return None, GuardedOrder(policy, text)
    raise KdalabError(
        f"{text} is no policy; a placement has boundaries(), an eviction order leaf(), state() "
        "and leaf_first()"
    )


def _protocols() -> tuple[Placement, EvictionOrder]:
    """For the type checker: the guards are what the cache expects."""
    return GuardedPlacement(None, ""), GuardedOrder(Lru(), "")


TEMPLATE = '''"""Two policies of one's own. Try them:

    kdalab lab replay TRACE memory=256GiB --policy {file}:TailAndHalf
    kdalab lab leaderboard TRACE --policy {file}:TailAndHalf --policy {file}:ShortestFirst
"""


class TailAndHalf:
    """A placement: a checkpoint at the prompt's end, and one halfway."""

    def boundaries(self, n_tokens, restore, branching, grid):
        """Ascending multiples of grid in (restore, n_tokens]. branching: where a second prompt
        was seen to part, or None. All in tokens."""
        points = {{n_tokens // grid * grid, n_tokens // 2 // grid * grid}}
        return sorted(b for b in points if restore < b)


class ShortestFirst:
    """An eviction order: among the oldest, the node with the shortest prefix goes first."""

    def leaf(self, nodes):
        """The next whose latent KV goes. nodes: id -> node, oldest first; only a node without
        children among them may be chosen. A node has start, end (tokens), pages, state, children,
        kv_used and state_used (ticks)."""
        return next(iter(nodes.values()), None)

    def state(self, nodes):
        """The next whose checkpoint goes."""
        oldest = [node for node, _ in zip(nodes.values(), range(32))]
        return min(oldest, key=lambda node: node.end, default=None)

    def leaf_first(self, leaf, state):
        """Room for either kind is wanted: does the leaf go (True) or the state?"""
        return leaf.kv_used < state.state_used
'''
