"""A time limit for one call, where the platform can give one."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class TookTooLong(BaseException):
    """The call did not come back in time. No Exception: answers may catch those."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise :class:`TookTooLong` in the body after ``seconds``.

    Best effort: it needs a Unix alarm, so it works on the main thread of Linux and macOS, which is
    where a notebook's cells run. A call that stays inside C code, or that catches BaseException,
    is not stopped. ``kdalab check`` runs answers in a process of their own, and ends that.
    """
    if not hasattr(signal, "SIGALRM") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(number: int, frame: FrameType | None) -> None:
        raise TookTooLong

    began = time.monotonic()
    handler = signal.signal(signal.SIGALRM, ring)
    left, again = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        if left:  # somebody else's alarm was running
            rest = max(0.001, left - (time.monotonic() - began))
            signal.setitimer(signal.ITIMER_REAL, rest, again)
