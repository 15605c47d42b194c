"""Requests in the order of arrival, out of a file that has them in another one."""

from __future__ import annotations

from heapq import heappop, heappush

from kdalab.lab.request import TraceRequest


class Earliest:
    """The earliest requests of those that were added; of equal arrivals, those added first.

    Args:
        limit: requests to keep; None for all.
        max_blocks: block ids to keep, 8 bytes each; the first request is kept whatever it has.
    """

    def __init__(self, limit: int | None = None, max_blocks: int | None = None) -> None:
        self._limit, self._max_blocks = limit, max_blocks
        self._latest: list[tuple[float, int, TraceRequest]] = []  # a heap, the latest on top
        self._added = self._blocks = 0
        self._end: tuple[float, int] | None = None  # nothing from here on is kept

    def add(self, request: TraceRequest) -> None:
        """One more, in the order of the file."""
        self._added += 1
        place = (-request.timestamp_ms, -self._added)
        if self._end is not None and place <= self._end:
            return
        heappush(self._latest, (*place, request))
        self._blocks += _blocks(request)
        while self._too_many():
            time, number, gone = heappop(self._latest)
            self._end = (time, number)
            self._blocks -= _blocks(gone)

    def _too_many(self) -> bool:
        if self._limit is not None and len(self._latest) > self._limit:
            return True
        over = self._max_blocks is not None and self._blocks > self._max_blocks
        return over and len(self._latest) > 1

    def requests(self) -> list[TraceRequest]:
        """By arrival."""
        return [request for _, _, request in sorted(self._latest, key=lambda x: x[:2])[::-1]]


def _blocks(request: TraceRequest) -> int:
    return len(request.blocks) + len(request.decoded)
