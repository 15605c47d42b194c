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
from contextlib import redirect_stdout
from functools import partial
from itertools import islice
from numbers import Integral
from pathlib import Path
from typing import Any, TypeVar

from kdalab.cache import (
    EvictionOrder,
    Lru,
    Marconi,
    MarconiOrder,
    Placement,
    PrefillFlops,
    Retention,
)
from kdalab.cache.retention import Aged, N, parse_retention
from kdalab.errors import KdalabError
from kdalab.lab.views import NodesView, NodeView

RETENTION_FORMS = "lru, lru-path, marconi, marconi:ALPHA, each also with +cap:N"
T = TypeVar("T")
_ORDER = ("leaf", "state", "leaf_first")
_NUMPY_BOOLS = ("bool", "bool_")  # the name of numpy's type, by its version


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


def block_order(text: str, alpha: float | None = None) -> Lru | Marconi:
    """What goes first among blocks, by the same name; ``alpha`` is what tuning found.

    Raises:
        KdalabError: lru-path or a cap: both are of a tree.
    """
    found = _marconi(text)
    own, kept = found if found is not None else (None, parse_retention(text))
    if kept.refresh != "consumed" or kept.max_states_per_path is not None:
        raise KdalabError(
            f"retention {text!r} with cache=block; use lru, marconi or marconi:ALPHA here: a path "
            "and its cap are of the tree. Which states blocks keep is said by interval"
        )
    if found is None:
        return Lru()
    return Marconi(own if own is not None else alpha if alpha is not None else 1.0)


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
    """Stands between the cache and a policy; ``request`` is the line of the request served.

    What a policy prints goes to standard error: standard output is the command's own.
    """

    def __init__(self, policy: Any, name: str) -> None:
        self.policy, self.name, self.request = policy, name, 0

    def call(self, method: str, run: Callable[[], T], shown: str) -> T:
        """Run one call of the policy.

        Raises:
            PolicyError: it raised, or wanted to end the program; names the policy, the call and
                the request.
        """
        try:
            with redirect_stdout(sys.stderr):
                return run()
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise self.wrong(f"{method}({shown})", f"raised {_words(error)}") from error

    def wrong(self, call: str, why: str) -> PolicyError:
        """The error for a call that went wrong."""
        return PolicyError(f"{self.name}: {call} {why}, at the request on line {self.request:,}")

    def __str__(self) -> str:
        return self.name


def _words(error: BaseException) -> str:
    """Name and text of an exception, if it has one."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:
        return type(error).__name__


def _shown(value: object) -> str:
    """A policy's answer for an error: its repr if it has one, not too long, and its type where
    that does not go without saying."""
    try:
        text = repr(value)
        if not isinstance(value, int | str) and type(value).__name__ not in text:
            text += f" ({type(value).__name__})"
    except Exception:
        text = f"a {type(value).__name__} without a repr"
    return text if len(text) <= 200 else text[:197] + "..."


def _whole(value: object) -> int | None:
    """A whole number as Python's own; numpy's are whole numbers too, True and False are none."""
    return int(value) if isinstance(value, Integral) and not isinstance(value, bool) else None


class GuardedPlacement(Guard):
    """A placement of one's own, its answers checked."""

    def boundaries(
        self, n_tokens: int, restore: int, branching: int | None, grid: int
    ) -> tuple[int, ...]:
        shown = f"n_tokens={n_tokens}, restore={restore}, branching={branching}, grid={grid}"
        found = self.call(
            "boundaries",
            # No more than there are multiples of grid: a generator may never end.
            lambda: tuple(
                islice(
                    self.policy.boundaries(n_tokens, restore, branching, grid), n_tokens // grid + 1
                )
            ),
            shown,
        )
        last, kept = restore, []
        for answer in found:
            b = self.call("boundaries", partial(_whole, answer), shown)
            if b is None or b % grid or not last < b <= n_tokens:
                allowed = "ascending multiples of grid in (restore, n_tokens], whole numbers"
                raise self.wrong(
                    f"boundaries({shown})", f"answered {_shown(answer)}; allowed: {allowed}"
                )
            kept.append(b)
            last = b
        return tuple(kept)


class GuardedOrder(Guard):
    """An eviction order of one's own, its answers checked."""

    def leaf(self, nodes: Mapping[int, N]) -> N | None:
        return self._chosen("leaf", nodes)

    def state(self, nodes: Mapping[int, N]) -> N | None:
        return self._chosen("state", nodes)

    def leaf_first(self, leaf: Aged, state: Aged) -> bool:
        shown, seen = f"leaf={leaf}, state={state}", (NodeView(leaf), NodeView(state))
        answer = self.call("leaf_first", lambda: self.policy.leaf_first(*seen), shown)
        if not isinstance(answer, bool) and type(answer).__name__ not in _NUMPY_BOOLS:
            raise self.wrong(
                f"leaf_first({shown})", f"answered {_shown(answer)}; allowed: True or False"
            )
        return bool(answer)

    def _chosen(self, method: str, nodes: Mapping[int, N]) -> N | None:
        shown = f"{len(nodes):,} nodes"
        seen = NodesView(nodes)
        answer, number = self.call(method, lambda: self._asked(method, seen), shown)
        if not nodes:
            return None
        node = nodes.get(number)
        if node is None or answer != NodeView(node):
            raise self.wrong(
                f"{method}({shown})", f"answered {_shown(answer)}; allowed: one of the nodes"
            )
        kept = "pages" if method == "leaf" else "state"
        if not getattr(node, kept, True):  # evicting it would free nothing, again and again
            raise self.wrong(f"{method}({shown})", f"took the {kept} of a node; it may only read")
        if method == "leaf":
            children: dict[bytes, Any] = getattr(node, "children", {})
            below = [c for c in children.values() if c.id in nodes]
            if below:
                raise self.wrong(
                    f"{method}({shown})", f"answered {_shown(node)}, which has descendants"
                )
        return node

    def _asked(self, method: str, nodes: NodesView) -> tuple[Any, int]:
        """The policy's answer, and the number that it has as a node."""
        answer = getattr(self.policy, method)(nodes)
        number = getattr(answer, "id", -1)
        whole = _whole(number)
        return answer, -1 if whole is None else whole


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
    doing = "cannot be loaded"
    try:
        with redirect_stdout(sys.stderr):
            spec.loader.exec_module(module)
            doing = "cannot be made without arguments"
            made = getattr(module, name, None)
            if made is None:
                own = [n for n, v in vars(module).items() if isinstance(v, type)]
                raise KdalabError(
                    f"{path} has no class {name!r}; it has {', '.join(sorted(own)) or 'none'}"
                )
            policy = made()
            places = callable(getattr(policy, "boundaries", None))
            orders = all(callable(getattr(policy, m, None)) for m in _ORDER)
    except KeyboardInterrupt:
        raise
    except KdalabError:
        del sys.modules[spec.name]
        raise
    except BaseException as error:
        del sys.modules[spec.name]
        raise PolicyError(f"{text} {doing}: {_words(error)}") from error
    if places:
        return GuardedPlacement(policy, text), None
    if orders:
        return None, GuardedOrder(policy, text)
    raise KdalabError(
        f"{text} is no policy; a placement has boundaries(), an eviction order leaf(), state() "
        "and leaf_first()"
    )


def _protocols() -> tuple[Placement, EvictionOrder]:
    """For the type checker: the guards are what the cache expects."""
    return GuardedPlacement(None, ""), GuardedOrder(Lru(), "")


TEMPLATE = '''"""Two policies of one's own. Try them:

    kdalab lab replay TRACE --memory 256GiB --policy {file}:TailAndHalf
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
