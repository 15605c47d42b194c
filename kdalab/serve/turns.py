"""Addresses that do the same work, asked in turn."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

REST_S = 5.0
"""How long one that did not answer is asked last."""


class Turns:
    """Each request begins with the next address; one that has just failed comes last.

    Args:
        urls: the addresses; none is allowed.
        clock: seconds, ascending.
    """

    def __init__(self, urls: Sequence[str], clock: Callable[[], float] = time.monotonic) -> None:
        self.urls, self._clock = list(urls), clock
        self._next = 0
        self._failed: dict[str, float] = {}

    def order(self) -> list[str]:
        """Every address once, in the order in which this request asks them."""
        n = len(self.urls)
        turn = [self.urls[(self._next + i) % n] for i in range(n)]
        self._next += 1
        now = self._clock()
        return sorted(turn, key=lambda url: now - self._failed.get(url, -math.inf) < REST_S)

    def failed(self, url: str) -> None:
        """It did not answer, or wrongly; others are asked first for a while."""
        self._failed[url] = self._clock()

    def worked(self, url: str) -> None:
        """It has answered."""
        self._failed.pop(url, None)
