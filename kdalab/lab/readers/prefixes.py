"""Do the ids of a trace keep their word, that each stands for one whole prefix?

An id that stands for a prefix always comes after the same id. Ids are gathered and looked at many
at a time, by one sort, so that reading a trace takes a tenth longer and no id becomes an object.
"""

from __future__ import annotations

from array import array
from typing import Any

from kdalab.lab.request import TraceRequest

#: Ids gathered before they are looked at, at least.
BATCH = 1 << 13
SHOWN = 3


class PrefixCheck:
    """Counts ids that come after another id than the first time.

    Holds 16 bytes for each different id, and as many ids again before they are looked at.
    ``count`` and ``first`` are complete after ``finish``.
    """

    def __init__(self) -> None:
        self.count = 0
        self.first: list[str] = []
        self._requests: list[TraceRequest] = []
        self._gathered, self._most = 0, BATCH
        self._known: Any = array("q")  # ids, ascending, and the id before each; arrays of numpy
        self._before: Any = array("q")

    def add(self, request: TraceRequest) -> None:
        """One prompt."""
        self._requests.append(request)
        self._gathered += len(request.blocks)
        if self._gathered >= self._most:
            self._look()

    def finish(self) -> None:
        """Look at what is left."""
        if self._gathered:
            self._look()
        self._requests, self._known, self._before = [], array("q"), array("q")

    @property
    def notes(self) -> tuple[str, ...]:
        """One line for people if there is something to say, as ``Report`` takes it."""
        if not self.count:
            return ()
        many = (
            f"{self.count:,} block ids contradict" if self.count > 1 else "1 block id contradicts"
        )
        return (
            f"{many} an earlier prefix: an id stands for all blocks up to its own here, and comes "
            "after another block than the first time. Such blocks count as different text; the "
            f"first: {'; '.join(self.first)}",
        )

    def _look(self) -> None:
        import numpy as np

        new = np.frombuffer(b"".join([r.blocks for r in self._requests]), np.int64)
        lengths = np.array([len(r.blocks) for r in self._requests], np.int64)
        starts = np.cumsum(lengths) - lengths
        above = np.empty_like(new)  # the id before each, -1 at a prompt's beginning
        above[1:] = new[:-1]
        above[starts[lengths > 0]] = -1
        old, ids, before = len(self._known), new, above
        if old:
            ids = np.concatenate([self._known, new])
            before = np.concatenate([self._before, above])
        # Stable: of equal ids the earliest comes first. Real ids come in runs, quick to sort.
        order = np.argsort(ids, kind="stable")
        ids, before = ids[order], before[order]
        first = np.append(True, ids[1:] != ids[:-1])
        if (before[1:] != before[:-1])[~first[1:]].any():
            wrong = before != before[np.maximum.accumulate(np.where(first, np.arange(len(ids)), 0))]
            self.count += int(wrong.sum())
            expected = dict(zip(ids[first].tolist(), before[first].tolist(), strict=True))
            for place in np.sort(order[wrong])[: SHOWN - len(self.first)].tolist():
                i = place - old
                line = self._requests[int(np.searchsorted(starts, i, "right")) - 1].line
                name = int(new[i])
                now, then = _after(int(above[i])), _after(expected[name])
                self.first.append(f"line {line:,}: id {name} {now}, the first time {then}")
        self._known, self._before = ids[first], before[first]
        self._requests, self._gathered, self._most = [], 0, max(BATCH, len(self._known))


def _after(above: int) -> str:
    return "at the beginning" if above < 0 else f"after {above}"
