"""The engine's own thread: the only one that touches the engine.

Others hand it functions (``call``); between two of its steps it runs them, one after another.
After each step ``after_step`` looks at what has become of the requests. The event log and ended
requests are let go: a server runs for days.
"""

from __future__ import annotations

import asyncio
import threading
import traceback
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from kdalab.engine import Engine, Phase
from kdalab.memory.slots import CACHE, IN_FLIGHT
from kdalab.serve.errors import ServeError

T = TypeVar("T")

PAUSE_S = 0.005
"""How long to wait when a step could do nothing: what it waits for comes from elsewhere."""


class EngineWorker:
    """Runs an engine in a thread of its own.

    Args:
        engine: nobody else may use it once ``start`` has been called.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.after_step: Callable[[], None] = lambda: None
        self.steps = 0  # that did something; whether the engine works can be seen by it
        self.failure = ""  # why the engine runs no more
        self.slow_s = 0.0  # between steps; tests make prefill slow with it
        self._commands: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._wake = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="kdalab-engine", daemon=True)

    def start(self) -> None:
        """Begin to step."""
        self._thread.start()

    def close(self) -> None:
        """Stop after the step that is under way; calls that wait are refused."""
        with self._wake:
            self._closed = True
            self._wake.notify()
        if self._thread.is_alive():
            self._thread.join(timeout=30)

    async def call(self, act: Callable[[], T], undo: Callable[[T], object] | None = None) -> T:
        """What ``act`` returns, run between two steps. It runs even if the caller is cancelled;
        then ``undo`` is given what it returned, on the engine's thread.

        Raises:
            ServeError: the engine has failed or was closed.
            Exception: whatever ``act`` raises.
        """
        done = self.post(act)
        try:
            return await asyncio.shield(asyncio.wrap_future(done))
        except asyncio.CancelledError:
            if undo is not None:
                self.post(lambda: undo(done.result()) if _went_well(done) else None)
            raise

    def post(self, act: Callable[[], T]) -> Future[T]:
        """As ``call``, without waiting: for those who are being cancelled."""
        done: Future[T] = Future()
        with self._wake:
            if self._closed or self.failure:
                done.set_exception(ServeError("unavailable", self.failure or "shutting down"))
            else:
                self._commands.append((act, done))
                self._wake.notify()
        return done

    # -- the thread --------------------------------------------------------------------------

    def _run(self) -> None:
        idle = False
        while True:
            with self._wake:
                if not self._commands and not self._closed:
                    self._wake.wait(None if not self._has_work() else PAUSE_S if idle else 0)
                commands = list(self._commands)
                self._commands.clear()
                closed = self._closed
            for act, done in commands:
                if closed:
                    done.set_exception(ServeError("unavailable", "shutting down"))
                    continue
                try:
                    done.set_result(act())
                except BaseException as error:
                    done.set_exception(error)
            if closed:
                return
            try:
                idle = not self._step()
            except BaseException:
                self._fail(traceback.format_exc())
                return

    def _step(self) -> bool:
        did = False
        if self._has_work():
            if self.slow_s:
                threading.Event().wait(self.slow_s)
            did = bool(self.engine.step())
            self.steps += did
        self.after_step()
        self._forget()
        return did

    def _has_work(self) -> bool:
        running = any(r.phase is not Phase.RECEIVING for r in self.engine.running)
        return running or bool(self.engine.waiting)

    def _forget(self) -> None:
        """Drop the log and the requests that have ended; nobody folds them here."""
        engine = self.engine
        engine.events.clear()
        ended = [n for n, r in engine.requests.items() if r.phase in _ENDED]
        for name in ended:
            del engine.requests[name]

    def _fail(self, text: str) -> None:
        """A rule is broken or memory has run out: nothing more is computed here."""
        import sys

        print(text, file=sys.stderr, flush=True)
        with self._wake:
            self.failure = "the engine has failed: " + text.strip().splitlines()[-1][:300]
            left, self._commands = list(self._commands), deque()
        for _, done in left:
            done.set_exception(ServeError("unavailable", self.failure))
        self.after_step()

    # -- what is where -----------------------------------------------------------------------

    def conservation(self) -> dict[str, Any]:
        """Every rule checked, and who has what: free + active + cached + in flight = total.

        Raises:
            InvariantError: a rule is broken.
        """
        engine = self.engine
        engine.check()
        pages = _counts(engine.latents.slots.owners())
        active = _counts(engine.active.slots.owners())
        checkpoints = _counts(engine.checkpoints.slots.owners())
        receiving = [r for r in engine.running if r.phase is Phase.RECEIVING]
        held = {r.name for r in receiving}
        for counts, owners in (
            (pages, engine.latents.slots.owners()),
            (active, engine.active.slots.owners()),
        ):
            moving = sum(who in held for who in owners)
            counts["active"] -= moving
            counts["in_flight"] += moving
        return {
            "checked": True,
            "latent_pages": pages,
            "active_states": active,
            "checkpoints": checkpoints,
            "requests": {
                "waiting": len(engine.waiting),
                "running": len(engine.running) - len(receiving),
                "receiving": len(receiving),
            },
            "leases": len(engine.cache.leases),
            "holds": len(engine.gate.holders),
        }


def _went_well(done: Future[Any]) -> bool:
    """Whether a call that was posted before has returned something."""
    return done.done() and not done.cancelled() and done.exception() is None


_ENDED = (Phase.FINISHED, Phase.CANCELLED)


def _counts(owners: tuple[str | None, ...]) -> dict[str, int]:
    found = {"total": len(owners), "free": 0, "active": 0, "cached": 0, "in_flight": 0}
    for who in owners:
        name = {None: "free", CACHE: "cached", IN_FLIGHT: "in_flight"}.get(who, "active")
        found[name] += 1
    return found
