"""What is kept and what goes first: small objects beside the placements.

Where a checkpoint is *taken* is a placement's question. Which of those taken *goes* when room is
needed, what counts as a use, and how many one path may keep, is answered here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol, TypeVar

from kdalab.errors import KdalabError

if TYPE_CHECKING:
    from kdalab.cache.flops import PrefillFlops


class Aged(Protocol):
    """What an order compares: when a node's KV and its state were used last (ticks)."""

    kv_used: int
    state_used: int


N = TypeVar("N", bound=Aged)


class EvictionOrder(Protocol):
    """Chooses the next to go among what nobody has locked.

    Both mappings are ordered by last use, oldest first. In ``nodes`` a node follows its
    descendants. Only a node without descendants in ``nodes`` may be chosen.
    """

    def leaf(self, nodes: Mapping[int, N]) -> N | None:
        """The next whose latent KV goes; None when there is none."""
        ...

    def state(self, nodes: Mapping[int, N]) -> N | None:
        """The next whose state goes; None when there is none."""
        ...

    def leaf_first(self, leaf: Aged, state: Aged) -> bool:
        """Asked for bytes of either kind: does the leaf go, or the state?"""
        ...


@dataclass(frozen=True, slots=True)
class Lru:
    """The least recently used goes first: one step, however many there are."""

    def leaf(self, nodes: Mapping[int, N]) -> N | None:
        return next(iter(nodes.values()), None)

    def state(self, nodes: Mapping[int, N]) -> N | None:
        return next(iter(nodes.values()), None)

    def leaf_first(self, leaf: Aged, state: Aged) -> bool:
        return leaf.kv_used < state.state_used


REFRESH = ("consumed", "path")


@dataclass(frozen=True, slots=True)
class Retention:
    """How a cache keeps checkpoints.

    Args:
        order: what goes first.
        refresh: what a hit makes young again: "consumed", the one state that is copied; or
            "path", every state from the root to it. The second keeps shallow states that nobody
            consumes: SGLang's first rule, here for comparison (0.61 against 0.83 and 0.55 against
            0.80 of tokens hit in the reports that changed it).
        max_states_per_path: states that one path may keep, None for no limit. Soft: the tail, a
            fork, a state that is being read and one with a host transfer under way stay.

    Raises:
        KdalabError: an unknown refresh rule; a cap below 1.
    """

    order: EvictionOrder = field(default_factory=Lru)
    refresh: str = "consumed"
    max_states_per_path: int | None = None

    def __post_init__(self) -> None:
        if self.refresh not in REFRESH:
            raise KdalabError(f"refresh {self.refresh!r}; allowed: {', '.join(REFRESH)}")
        cap = self.max_states_per_path
        if cap is not None and (type(cap) is not int or cap < 1):
            raise KdalabError(
                f"max_states_per_path = {cap!r}; a path keeps at least its last state. Use a whole "
                "number of 1 or more, or None for no limit"
            )

    @property
    def asks_for_costs(self) -> bool:
        """Whether the order must be told what things cost (``bound``) before it can choose."""
        return hasattr(self.order, "bound")

    def bound(self, flops: PrefillFlops, page_bytes: int, state_bytes: int) -> Retention:
        """The same with an order that knows what tokens, pages and states cost; an order that
        does not ask for it stays as it is."""
        bind = getattr(self.order, "bound", None)
        if bind is None:
            return self
        return replace(self, order=bind(flops, page_bytes, state_bytes))

    def __str__(self) -> str:
        name = "lru" if isinstance(self.order, Lru) else str(self.order)
        parts = [name if self.refresh == "consumed" else f"{name}-path"]
        if self.max_states_per_path is not None:
            parts.append(f"cap:{self.max_states_per_path}")
        return "+".join(parts)


RETENTION_FORMS = (
    "lru, lru-path, either with +cap:N; marconi:ALPHA (FLOPs saved per byte against recency, "
    "ALPHA of 0 or more), also with +cap:N"
)


def parse_retention(text: str) -> Retention:
    """``lru`` | ``lru-path`` | ``lru+cap:4`` | ``marconi:0.5`` -> a retention.

    Marconi's order must still be told sizes (:meth:`Retention.bound`) before it can choose.
    """
    # Here, since that module takes the protocol of an order from this one.
    from kdalab.cache.marconi import Marconi

    shown = text if len(text) <= 40 else text[:37] + "..."
    name, *rest = text.strip().lower().split("+")
    word, _, number = rest[0].partition(":") if rest else ("cap", "", "1")
    is_cap = len(rest) <= 1 and word == "cap" and number.isdecimal() and len(number) < 10
    cap = int(number) if rest and is_cap else None
    if is_cap and name in ("lru", "lru-path"):
        return Retention(Lru(), "path" if name == "lru-path" else "consumed", cap)
    if is_cap and name.startswith("marconi:"):
        weight = name.removeprefix("marconi:")
        if weight == "auto":
            raise KdalabError(
                f"retention {shown!r}: alpha is tuned by replaying a trace, so only `kdalab "
                "replay` and `kdalab compare` take auto; give a number here"
            )
        if weight.replace(".", "", 1).isdecimal() and len(weight) < 10:
            return Retention(Marconi(float(weight)), "consumed", cap)
    raise KdalabError(f"unknown retention {shown!r}; allowed: {RETENTION_FORMS}")
