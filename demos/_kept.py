"""Finished runs, kept for every visitor: what several ask for at once is made once."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from threading import Lock
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Kept(Generic[K, V]):
    """``make`` with the results of the last ``limit`` arguments kept.

    Unlike ``lru_cache``, a second thread that asks for what a first is still making waits for it
    instead of making it again. What raises is not kept; all who waited get the same exception.
    """

    def __init__(self, make: Callable[[K], V], limit: int = 32) -> None:
        self._make, self._limit = make, limit
        self._made: OrderedDict[K, Future[V]] = OrderedDict()
        self._lock = Lock()

    def __call__(self, key: K) -> V:
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
        return found.result()

    def has(self, key: K) -> bool:
        """Whether the result is there without waiting."""
        with self._lock:
            found = self._made.get(key)
        return found is not None and found.done()
