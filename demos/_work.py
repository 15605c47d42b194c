"""Long runs: where one is, in the reader's language, and how a reader stops it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from demos._text import t
from kdalab.errors import KdalabError

Tell = Callable[[float | None, str], None]
"""Gets the share done (0 to 1, None where the end is not known) and what is being done."""

_TELL_S = 0.1


class StoppedError(Exception):
    """The reader stopped this run, or began another one, or left."""


class TimeUpError(StoppedError):
    """This run took longer than it may."""


class Work:
    """One visitor's run under way; ``seconds`` is the most that it may take, None for no limit."""

    def __init__(self, lang: str, tell: Tell | None = None, seconds: float | None = None) -> None:
        self.lang, self.tell, self.stopped = lang, tell, False
        self.by_reader = False  # stopped by its button, not by a newer run
        self._told = 0.0
        self._until = None if seconds is None else time.monotonic() + seconds

    def at(self, key: str, done: int, total: int | None) -> None:
        """As ``at`` of the module."""
        if self.stopped:
            raise StoppedError
        now = time.monotonic()
        if self._until is not None and now > self._until:
            raise TimeUpError
        if self.tell is not None and now - self._told > _TELL_S:
            self._told = now
            words = t(self.lang, key, done=done, total=total or 0)
            self.tell(min(1.0, done / total) if total else None, words)


class Line:
    """Runs one after the other: one at work, ``waiting`` more that may wait, the rest refused."""

    def __init__(self, waiting: int) -> None:
        self._places, self._turn = threading.Semaphore(1 + waiting), threading.Lock()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Wait for the turn, and have it.

        Raises:
            KdalabError: too many wait already.
        """
        if not self._places.acquire(blocking=False):
            raise KdalabError("the server is busy with other files; try again in a minute")
        try:
            with self._turn:
                yield
        finally:
            self._places.release()


_now: ContextVar[Work | None] = ContextVar("work", default=None)
_running: dict[str, Work] = {}
_lock = threading.Lock()


@contextmanager
def working(visit: str, work: Work) -> Iterator[None]:
    """``work`` is what this thread does for a visitor; an older run of that visitor stops."""
    with _lock:
        older, _running[visit] = _running.get(visit), work
    if older is not None:
        older.stopped = True
    token = _now.set(work)
    try:
        yield
    finally:
        _now.reset(token)
        with _lock:
            if _running.get(visit) is work:
                del _running[visit]


def stop(visit: str) -> None:
    """Stop what runs for a visitor, at its next ``at``."""
    with _lock:
        work = _running.get(visit)
    if work is not None:
        work.stopped = work.by_reader = True


def at(key: str, done: int, total: int | None = None) -> None:
    """Where the run of this thread is: ``key`` of the catalogue, with {done} and {total}.

    Raises:
        StoppedError: its reader no longer wants it.
        TimeUpError: it took longer than it may.
    """
    work = _now.get()
    if work is not None:
        work.at(key, done, total)
