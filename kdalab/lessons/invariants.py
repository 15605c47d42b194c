"""Every rule of the design switched off, one at a time: what then breaks, and which check says so.

Each rule is a small run of a real engine with one fault of ``engine.faults`` (or, for the identity,
with the check left out), compared token by token with the same request alone. Then the very check
that stands guard over the rule is made to fire, and its own words are kept.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

import torch

from kdalab.engine import Engine, Event
from kdalab.engine import events as ev
from kdalab.errors import KdalabError
from kdalab.lessons.cold import max_difference
from kdalab.lessons.unified import unified_model

if TYPE_CHECKING:
    from kdalab.engine.base import BaseEngine
    from kdalab.engine.media import Media

NEW_TOKENS = 5
SHOWN = (
    "Matched", "FaultInjected", "CopiedOnWrite", "Snapshotted", "Verified", "PiecesLanded",
    "StateLanded", "Received", "Installed",
)  # fmt: skip
MOST_ACTS = 8


@dataclass(frozen=True, slots=True)
class Act:
    """One event of the run: whose, its kind, and its sentence (English)."""

    request: str
    kind: str
    sentence: str


@dataclass(frozen=True, slots=True)
class Broken:
    """What one rule's absence did to the request ``victim``.

    ``state`` and ``logits`` are max |difference| to the same request alone, over everything that
    was computed from equal inputs (NaN where NaN was read). ``first_wrong`` is the place of the
    first other token in the output; ``polluter`` whose tokens are in the victim's state, "" where
    it is the victim's own. ``check`` names what stands guard, ``says`` are its words. ``ended`` is
    why the request ended early, "" if it did not.
    """

    rule: str
    victim: str
    polluter: str
    state: float
    logits: float
    generated: tuple[int, ...]
    alone: tuple[int, ...]
    first_wrong: int | None
    check: str
    says: str
    ended: str
    acts: tuple[Act, ...]


@dataclass
class Watched:
    """A run that is looked at: the engine, and the states of its requests after each step by the
    tokens that they have seen."""

    engine: BaseEngine
    states: dict[str, dict[int, tuple[torch.Tensor, torch.Tensor]]] = field(default_factory=dict)

    def run(self) -> None:
        """Step until nothing is left to do."""
        while self.engine.waiting or self.engine.running:
            self.step()

    def step(self) -> None:
        """One step, and a look at every state."""
        engine = self.engine
        engine.step()
        for request in engine.running:
            if not request.generated:
                continue
            if isinstance(engine, Engine):
                state = engine.active.read(request.active_slot)
            else:
                state = engine.state_of(request)  # type: ignore[attr-defined]
            kept = self.states.setdefault(request.name, {})
            kept[request.computed] = state[0].clone(), state[1].clone()


Truth = tuple[tuple[int, ...], list[torch.Tensor], dict[int, tuple[torch.Tensor, torch.Tensor]]]
_TRUTH: dict[tuple[int, ...], Truth] = {}


def alone(tokens: Sequence[int], media: Media | None = None) -> Truth:
    """(tokens, logits that chose them, states by tokens seen) of a request that nobody is near."""
    from kdalab.lessons.invariant_runs import config

    key = tuple(tokens)
    if key not in _TRUTH:
        watched = Watched(Engine(unified_model(), config(reuse=False)))
        request = watched.engine.submit(key, NEW_TOKENS, "A", media=media)  # type: ignore[attr-defined]
        watched.run()
        _TRUTH[key] = tuple(request.generated), request.logits[-NEW_TOKENS:], watched.states["A"]
    return _TRUTH[key]


def judged(
    rule: str,
    watched: Watched,
    victim: str,
    polluter: str = "",
    events: Sequence[Event] = (),
    media: Media | None = None,
) -> Broken:
    """The victim of a run beside itself alone; the check is not known yet."""
    request = watched.engine.requests[victim]
    truth, rows, states = alone(request.tokens, media)
    made = tuple(request.generated)
    wrong = next((i for i, (a, b) in enumerate(zip(made, truth, strict=False)) if a != b), None)
    ended = request.finish_reason if request.finish_reason.startswith("failed") else ""
    if wrong is None and ended:
        wrong = len(made)
    same = len(made) if wrong is None else wrong + 1  # choices from equal inputs
    mine = request.logits[-len(made) :][:same] if made else []
    pairs = list(zip(mine, rows[-len(truth) :][: len(mine)], strict=True))
    logits = max([max_difference(a, b) for a, b in pairs[-len(mine) :]], default=0.0)
    last = request.n_tokens + same - 1
    seen = watched.states.get(victim, {})
    both = [n for n in seen if n in states and n <= last]
    state = max(
        [max_difference(a, b) for n in both for a, b in zip(seen[n], states[n], strict=True)],
        default=0.0,
    )
    if ended:
        state = logits = float("nan")
    log = events or watched.engine.events
    telling = [
        e for e in log
        if e.name in SHOWN or (isinstance(e, ev.Moved) and "states" in e.sentence())
    ]  # fmt: skip
    acts = tuple(Act(e.request, e.name, e.sentence()) for e in telling[-MOST_ACTS:])
    return Broken(rule, victim, polluter, state, logits, made, truth, wrong, "", "", ended, acts)


def caught(act: Callable[[], object]) -> str:
    """What a check says when ``act`` breaks its rule; "" if it says nothing."""
    try:
        act()
    except (KdalabError, AssertionError) as error:
        return str(error)
    except Exception as error:  # an InvariantError is no KdalabError
        return str(error)
    return ""


_PLAYING = threading.Lock()


@lru_cache(maxsize=32)
def play_rule(rule: str) -> Broken:
    """Run one rule's fault and its check.

    Raises:
        KdalabError: no such rule.
    """
    from kdalab.lessons.invariant_runs import RUNS

    if rule not in RUNS:
        raise KdalabError(f"rule {rule!r}; use one of {', '.join(RUNS)}")
    with _PLAYING:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return RUNS[rule]()
        finally:
            torch.set_num_threads(threads)


def play_rules() -> tuple[Broken, ...]:
    """Every rule, the healthy run first."""
    return tuple(play_rule(rule) for rule in RULES)


RULES = (
    "healthy", "boundary", "pair", "cow", "copy", "lock", "clear", "int8", "draft", "image",
    "step", "whole", "gate", "identity",
)  # fmt: skip
"""Rules by name, in the order of the page. ``invariant_runs.RUNS`` has the run of each."""
