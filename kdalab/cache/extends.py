"""One state for each extend (a prefill chunk of one request), as SGLang takes them.

An extend ends where the chunk ends, and the deepest point of the grid in it can keep its state.
When a branching point falls inside, a second state would be of use: SGLang keeps *that one
instead*, and a later identical prompt recomputes from the branch. The alternatives are here side
by side.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from kdalab.cache.grids import deepest
from kdalab.errors import KdalabError


class Fork(StrEnum):
    """Which state an extend keeps when a branching point falls inside it."""

    END = "chunk"
    """The extend's end; branching points are not looked at."""
    BRANCH_FIRST = "branch-first"
    """The branching point replaces the end."""
    TAIL_FIRST = "tail-first"
    """The prompt's end is kept if the branch lies in the prompt's second half; siblings that
    part early still get theirs."""
    BOTH = "both"
    """Both, when there is room for two."""


@dataclass(frozen=True, slots=True)
class Extends:
    """A checkpoint at the end of each extend of ``chunk`` tokens; ``fork`` says what a branching
    point changes. ``chunk`` None: the whole prompt is one extend.

    Raises:
        KdalabError: a chunk below 1.
    """

    chunk: int | None = None
    fork: Fork = Fork.BRANCH_FIRST

    def __post_init__(self) -> None:
        if self.chunk is not None and self.chunk < 1:
            raise KdalabError(f"extends of {self.chunk:,} tokens; use 1 or more")

    def __str__(self) -> str:
        return str(self.fork) if self.chunk is None else f"{self.fork}:{self.chunk}"

    def boundaries(
        self,
        n_tokens: int,
        restore: int,
        branching: int | None,
        grid: int,
        room: int | None = None,
    ) -> tuple[int, ...]:
        """As ``Placement.boundaries``. ``room`` is how many states there is room for (None: no
        limit): below one more than there are extends, ``both`` falls back to ``tail-first``."""
        branch = None if branching is None or self.fork is Fork.END else branching // grid * grid
        found: list[int] = []
        start = restore
        while start < n_tokens:
            end = n_tokens if self.chunk is None else min(start + self.chunk, n_tokens)
            tail = deepest(grid, start, end)
            if tail is not None:
                inside = branch if branch is not None and start < branch < tail else None
                left = None if room is None else room - len(found)
                found += self._kept(tail, inside, n_tokens if end == n_tokens else None, left)
            start = end
        return tuple(found if room is None else found[len(found) - min(room, len(found)) :])

    def _kept(
        self, tail: int, branch: int | None, prompt: int | None, room: int | None
    ) -> tuple[int, ...]:
        """The states of one extend; ``prompt`` is the prompt's length if it ends here."""
        if branch is None:
            return (tail,)
        if self.fork is Fork.BOTH and (room is None or room >= 2):
            return (branch, tail)
        if self.fork is Fork.BRANCH_FIRST or prompt is None or 2 * branch < prompt:
            return (branch,)
        return (tail,)
