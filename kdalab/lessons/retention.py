"""Which node goes next, and why: Marconi's two terms on a small tree, and policies on a trace.

The tree is the radix cache with Marconi's order, which is watched while it chooses. Page and state
have the bytes of the other tree page, FLOPs are those of the tiny model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

from kdalab.cache import MarconiOrder, PrefillFlops, Retention
from kdalab.cache.marconi import scores
from kdalab.cache.node import Node
from kdalab.cache.protocol import Dropped, Lookup
from kdalab.cache.retention import Aged
from kdalab.errors import KdalabError
from kdalab.lab import Setup, replay_setup
from kdalab.lab.generate import changed, generated_trace
from kdalab.lab.trace import Trace
from kdalab.lessons.tree import STORIES, TREE_BYTES, Act, TreePlayer
from kdalab.spec import PRESETS

N = TypeVar("N", bound=Aged)

RETENTION_STORIES = {
    "long": {
        "A": (("book", 640),),
        "B": (("note", 64),),
        "C": (("mail", 128),),
        "D": (("list", 64),),
        "E": (("book", 640), ("question", 64)),
        "F": (("plan", 128),),
        "G": (("book", 640), ("question", 64), ("more", 64)),
    },
    "fan-out": STORIES["fan-out"],
    "turns": STORIES["turns"],
}


@dataclass(frozen=True, slots=True)
class Candidate:
    """A node that may go: tokens [start, end) of its edge, ticks since its use, FLOPs that a hit
    saves for each byte that goes, both terms normalised to 0 .. 1, and recency + alpha x
    efficiency."""

    node: int
    start: int
    end: int
    age: int
    flops_per_byte: float
    recency: float
    efficiency: float
    total: float


@dataclass(frozen=True, slots=True)
class Evicting:
    """One choice: what was asked for ("state" or "leaf"), the candidates oldest first, what goes,
    and what least recent use would take."""

    kind: str
    candidates: tuple[Candidate, ...]
    goes: int
    oldest: int


@dataclass(frozen=True, slots=True)
class RetentionRun:
    """A story with the choices made in each act; ``standing`` is what would go next after it."""

    acts: tuple[Act, ...]
    chosen: dict[int, tuple[Evicting, ...]]
    standing: tuple[Evicting | None, ...]
    texts: dict[str, tuple[str, ...]]
    owners: dict[int, str]
    hits: dict[str, int]


class _Watched(MarconiOrder):
    """Marconi's order, and what it saw when it chose."""

    def __init__(self, flops: PrefillFlops, alpha: float) -> None:
        _, page, state = TREE_BYTES
        super().__init__(flops, page, state, alpha)
        self.seen: list[Evicting] = []

    def leaf(self, nodes: Mapping[int, N]) -> N | None:
        self.kind = "leaf"
        return super().leaf(nodes)

    def state(self, nodes: Mapping[int, N]) -> N | None:
        self.kind = "state"
        return super().state(nodes)

    def _least(self, candidates: list[N], leaves: bool) -> N | None:
        goes = super()._least(candidates, leaves)
        nodes = [n for n in candidates if isinstance(n, Node)]
        if isinstance(goes, Node):
            now = 1 + max(max(n.kv_used, n.state_used) for n in nodes)
            worth = [self.worth(n, now, leaves or not n.children) for n in nodes]
            rated = scores(worth, self.alpha)
            found = tuple(
                Candidate(
                    n.id, n.start, n.end, round(1 / w.recency), w.efficiency, s.recency,
                    s.efficiency, s.total,
                )
                for n, w, s in zip(nodes, worth, rated, strict=True)
            )  # fmt: skip
            self.seen.append(Evicting(self.kind, found, goes.id, nodes[0].id))
        return goes

    def taken(self) -> tuple[Evicting, ...]:
        """What was chosen since the last call."""
        seen, self.seen = tuple(self.seen), []
        return seen


class _Watcher(TreePlayer):
    """A story's player whose order is watched."""

    def __init__(
        self, story: dict[str, tuple[tuple[str, int], ...]], placement: str, states: int,
        pages: int, alpha: float,
    ) -> None:  # fmt: skip
        self.order = _Watched(PrefillFlops.of(PRESETS["tiny"]), alpha)
        self.chosen: dict[int, tuple[Evicting, ...]] = {}
        self.standing: list[Evicting | None] = []
        super().__init__(story, placement, states, pages, Retention(self.order))

    def evicted(self, name: str, dropped: Sequence[Dropped], lookup: Lookup) -> None:
        self.chosen[len(self.acts)] = self.order.taken()
        super().evicted(name, dropped, lookup)

    def act(
        self, kind: str, name: str, values: dict[str, object], marks: tuple[str, ...] = (),
        lookup: Lookup | None = None,
    ) -> None:  # fmt: skip
        super().act(kind, name, values, marks, lookup)
        self.order.state(self.cache.state_lru)
        asked = self.order.taken()
        self.standing.append(asked[-1] if asked else None)


def play_retention(
    story: str, alpha: float, states: int, placement: str = "leaf+branch", pages: int = 120
) -> RetentionRun:
    """Run a story under Marconi's order with weight ``alpha`` and room for ``states``.

    Raises:
        KdalabError: an unknown story, a negative alpha, too little room for one prompt.
    """
    if story not in RETENTION_STORIES:
        raise KdalabError(f"story {story!r}; use one of {', '.join(RETENTION_STORIES)}")
    prompts = RETENTION_STORIES[story]
    player = _Watcher(prompts, placement, states, pages, alpha)
    for name in prompts:
        player.request(name)
    return RetentionRun(
        tuple(player.acts), player.chosen, tuple(player.standing), player.texts, player.owners,
        player.hits,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class PolicyFigures:
    """One policy on the trace, in tokens."""

    name: str
    setup: str
    hit: int
    known: int
    total: int


def policies_on_trace(memory_mib: int, interval: int, alpha: float) -> tuple[PolicyFigures, ...]:
    """Hit tokens of vLLM's three intervals (None, 0, N), of least recent use and of Marconi's
    order, on one made-up trace of 100 chat requests, each in ``memory_mib`` MiB.

    Raises:
        KdalabError: one request does not fit, or an interval off the block.
    """
    blocks = "cache=block unit=512 interval="
    names = {
        "dense": f"{blocks}dense",
        "zero": f"{blocks}0",
        "every": f"{blocks}{interval}",
        "lru": "retention=lru",
        "marconi": f"retention=marconi:{alpha:g}",
    }
    return tuple(_on_trace(name, memory_mib, text) for name, text in names.items())


@lru_cache(maxsize=256)
def _on_trace(name: str, memory_mib: int, text: str) -> PolicyFigures:
    setup = Setup.parse(f"model=kimi-linear-48b memory={memory_mib}MiB {text}")
    account = replay_setup(_trace(), setup)
    return PolicyFigures(
        name, str(setup), account.hit_tokens, account.known_tokens, account.input_tokens
    )


@lru_cache(maxsize=1)
def _trace() -> Trace:
    """A hundred requests of conversations under six system prompts."""
    shape = changed(
        "chat-like",
        {
            "sessions_a_second": 0.2, "systems": 6, "system": [3000, 0.8], "zipf": 0.8,
            "first": [4000, 1.0], "go_on": [3.0, 2.0],
        },
    )  # fmt: skip
    return generated_trace(100, shape, seed=1)
