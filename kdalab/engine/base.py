"""What every engine does alike: its log, its names, its choice of ops, its loop.

``Engine`` keeps prefixes in a radix tree and ``BlockEngine`` in blocks under hashes. Both run the
same requests on the same cells and decode rows, so what does not depend on the cache is here, and
in the functions that take a ``BaseEngine``.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Protocol

from kdalab.engine import events as ev
from kdalab.engine.config import MOST
from kdalab.engine.dispatch import Choice, Work, choose
from kdalab.engine.drafters import Drafter
from kdalab.engine.request import Request
from kdalab.errors import KdalabError, shown
from kdalab.spec import StateIdentity

if TYPE_CHECKING:
    from kdalab.model import HybridModel


class BaseConfig(Protocol):
    """What every engine's configuration says."""

    @property
    def backend(self) -> str: ...
    @property
    def draft_tokens(self) -> int: ...
    @property
    def drafter(self) -> Drafter: ...
    @property
    def keep_logits(self) -> bool: ...


class BaseEngine:
    """The part of an engine that knows no cache.

    Args:
        model: takes states in and gives states out; keeps none.
        config: sizes and switches.
        identity: of every state in this engine's cache; requests that name another are refused.
    """

    config: BaseConfig

    def __init__(self, model: HybridModel, identity: StateIdentity | None = None) -> None:
        if identity is not None and not isinstance(identity, StateIdentity):
            raise KdalabError(f"identity = {shown(identity)}; give a StateIdentity, or None")
        self.model = model
        self.identity = identity
        self.events: list[ev.Event] = []
        self.choices: dict[Work, Choice] = {}
        self.requests: dict[str, Request] = {}
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []

    def step(self) -> list[ev.Event]:
        """One step; returns the new events."""
        raise NotImplementedError

    def finish(self, request: Request, reason: str) -> None:
        """End a running request; what it held goes back."""
        raise NotImplementedError

    @property
    def is_idle(self) -> bool:
        """True when no request waits or runs."""
        return not (self.waiting or self.running)

    def run(self, max_steps: int = 100_000) -> list[ev.Event]:
        """Step until nothing waits or runs. Returns the new events."""
        if type(max_steps) is not int or not 0 <= max_steps <= MOST:
            raise KdalabError(
                f"max_steps = {shown(max_steps)}; it must be a whole number of 0 to {MOST:,}"
            )
        first = len(self.events)
        for _ in range(max_steps):
            if self.is_idle:
                return self.events[first:]
            self.step()
        raise KdalabError(f"not idle after {max_steps:,} steps")

    def emit(self, event: ev.Event) -> None:
        """Append to the log."""
        self.events.append(event)

    def dispatch(self, work: Work) -> Choice:
        """The op that a forward runs; one event whenever the choice is a new one."""
        choice = choose(work, self.config.backend)
        if self.choices.get(work) != choice:
            self.choices[work] = choice
            self.emit(ev.Dispatched("", work.value, choice.op, choice.backend, choice.why))
        self.model.use_backend(choice.backend)
        return choice

    def require_identity(self, identity: StateIdentity | None) -> None:
        """Refuse a request that expects states of another identity.

        Raises:
            IdentityMismatchError: each field that differs is named.
            KdalabError: this engine has no identity to compare with.
        """
        if identity is None:
            return
        if not isinstance(identity, StateIdentity):
            raise KdalabError(f"identity = {shown(identity)}; give a StateIdentity, or None")
        if self.identity is None:
            raise KdalabError("this engine's cache has no identity; give one to Engine(...)")
        self.identity.require_equal(identity)

    def named(self, name: str) -> Request:
        """The request of that name.

        Raises:
            KdalabError: there is none; the known ones are listed.
        """
        request = self.requests.get(name) if isinstance(name, str) else None
        if request is None:
            known = list(self.requests)
            listed = ", ".join(known[:20]) + (", ..." if len(known) > 20 else "")
            raise KdalabError(f"no request {shown(name)}; known: {listed or 'none'}")
        return request

    def require_running(self, request: Request) -> None:
        """Refuse what is no running request of this engine.

        Raises:
            KdalabError: not a request, one of another engine, or one that does not run.
        """
        if not isinstance(request, Request):
            raise KdalabError(f"{shown(request)} is not a request; submit() returns one")
        if self.requests.get(request.name) is not request:
            raise KdalabError(f"request {shown(request.name)} is not of this engine")
        if not request.is_running:
            raise KdalabError(f"request {shown(request.name)} is {request.phase}, not running")

    def next_name(self) -> str:
        """The first free name of A, B, ..., Z, AA, AB, ..."""
        number = len(self.requests)
        while True:
            name, rest = "", number
            while True:
                name = chr(ord("A") + rest % 26) + name
                rest = rest // 26 - 1
                if rest < 0:
                    break
            if name not in self.requests:
                return name
            number += 1
