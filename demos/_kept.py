"""Finished runs, kept for every visitor: what several ask for at once is made once."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from threading import Lock
from typing import Generic, TypeVar

from demos._work import StoppedError

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Kept(Generic[K, V]):
    """``make`` with the results of the last ``limit`` arguments kept.

    Unlike ``lru_cache``, a second thread that asks for what a first is still making waits for it
    instead of making it again. What raises is not kept; all who waited get the same exception, but
    where the first one's visitor stopped it, the next who waited makes it.
    """

    def __init__(self, make: Callable[[K], V], limit: int = 32) -> None:
        self._make, self._limit = make, limit
        self._made: OrderedDict[K, Future[V]] = OrderedDict()
        self._lock = Lock()

    def __call__(self, key: K) -> V:
        while True:
            mine, found = self._found(key)
            try:
                return found.result()
            except StoppedError:
                if mine:
                    raise

    def _found(self, key: K) -> tuple[bool, Future[V]]:
        """The result to come, and whether it was made here."""
        with self._lock:
            found = self._made.get(key)
            mine = found is None
            if found is None:
                found = self._made[key] = Future()
            self._made.move_to_end(key)
            while len(self._made) > self._limit:
                self._made.popitem(last=False)  # those who wait for it hold it themselves
        if mine:
            try:
                found.set_result(self._make(key))
            except BaseException as error:
                with self._lock:
                    if self._made.get(key) is found:
                        del self._made[key]
                found.set_exception(error)
        return mine, found

    def forget(self, unwanted: Callable[[K], bool]) -> None:
        """Let go of the results of all arguments that are ``unwanted``."""
        with self._lock:
            for key in [key for key in self._made if unwanted(key)]:
                del self._made[key]

    def has(self, key: K) -> bool:
        """Whether the result is there without waiting."""
        with self._lock:
            found = self._made.get(key)
        return found is not None and found.done()
