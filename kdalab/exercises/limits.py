"""Limits of an answer, where the platform can give them: time, memory, processes."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

MEMORY_GIB = 4
"""GiB that an answer in a process of its own may take (Linux)."""

_limited = False


def limit_memory(gib: float = MEMORY_GIB) -> None:
    """Let this process hold ``gib`` GiB of data at most; more raises MemoryError.

    On Linux only: elsewhere the limit is not kept, or not there. Data, not addresses: libraries
    reserve far more of these than they use.
    """
    global _limited
    if not sys.platform.startswith("linux"):
        return
    import resource

    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = int(gib * 2**30)
    if most == resource.RLIM_INFINITY or wanted <= most:
        resource.setrlimit(resource.RLIMIT_DATA, (wanted, most))
        _limited = True


def memory_words() -> str:
    """What a MemoryError of an answer means here."""
    return f"more memory than {MEMORY_GIB} GiB" if _limited else "more memory than there is"


def forbid_forks() -> None:
    """Make ``os.fork`` raise in this process: two checks would go on where one began."""

    def heard(event: str, arguments: tuple[object, ...]) -> None:
        if event in ("os.fork", "os.forkpty"):
            raise RuntimeError("an answer runs in one process: os.fork is not allowed in a check")

    sys.addaudithook(heard)


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
