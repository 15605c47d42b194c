"""Long runs: where one is, in the reader's language, and how a reader stops it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from demos._text import t

Tell = Callable[[float | None, str], None]
"""Gets the share done (0 to 1, None where the end is not known) and what is being done."""

_TELL_S = 0.1


class StoppedError(Exception):
    """The reader stopped this run, or began another one, or left."""


class Work:
    """One visitor's run under way."""

    def __init__(self, lang: str, tell: Tell | None = None) -> None:
        self.lang, self.tell, self.stopped = lang, tell, False
        self._told = 0.0

    def at(self, key: str, done: int, total: int | None) -> None:
        """As ``at`` of the module."""
        if self.stopped:
            raise StoppedError
        now = time.monotonic()
        if self.tell is not None and now - self._told > _TELL_S:
            self._told = now
            words = t(self.lang, key, done=done, total=total or 0)
            self.tell(min(1.0, done / total) if total else None, words)


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
        work.stopped = True


def at(key: str, done: int, total: int | None = None) -> None:
    """Where the run of this thread is: ``key`` of the catalogue, with {done} and {total}.

    Raises:
        StoppedError: its reader no longer wants it.
    """
    work = _now.get()
    if work is not None:
        work.at(key, done, total)
