"""Where checkpoints are taken: small objects that the engine and the trace replay both use.

Boundaries are absolute, counted from the start of the prompt, and always on a grid that the
kernels can stop at: a multiple of lcm(kernel chunk, page). A grid relative to the restore point
would put the same prefix's checkpoints at different places for different requests.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from kdalab.errors import KdalabError


class Placement(Protocol):
    """Chooses the boundaries at which one request leaves checkpoints."""

    def boundaries(
        self, n_tokens: int, restore: int, branching: int | None, grid: int
    ) -> tuple[int, ...]:
        """Ascending multiples of ``grid`` in (restore, n_tokens].

        ``branching`` is the boundary that a second prompt has been seen to share, if any.
        """
        ...


@dataclass(frozen=True, slots=True)
class Every:
    """A checkpoint at every multiple of ``interval`` tokens."""

    interval: int

    def __str__(self) -> str:
        return f"every:{self.interval}"

    def boundaries(
        self, n_tokens: int, restore: int, branching: int | None, grid: int
    ) -> tuple[int, ...]:
        check_on_grid(self.interval, grid)
        first = (restore // self.interval + 1) * self.interval
        return tuple(range(first, n_tokens + 1, self.interval))


@dataclass(frozen=True, slots=True)
class EveryPage:
    """A checkpoint at every point of the grid: the densest that is possible."""

    def __str__(self) -> str:
        return "all"

    def boundaries(
        self, n_tokens: int, restore: int, branching: int | None, grid: int
    ) -> tuple[int, ...]:
        return tuple(range((restore // grid + 1) * grid, n_tokens + 1, grid))


@dataclass(frozen=True, slots=True)
class Leaf:
    """One checkpoint a prompt, at its last point of the grid; with ``branch`` also where a
    second prompt has been seen to part from the first (SGLang's branching point, and the
    junction of Marconi-style retention)."""

    branch: bool = False

    def __str__(self) -> str:
        return "leaf+branch" if self.branch else "leaf"

    def boundaries(
        self, n_tokens: int, restore: int, branching: int | None, grid: int
    ) -> tuple[int, ...]:
        wanted = {n_tokens // grid * grid}
        if self.branch and branching is not None:
            wanted.add(branching // grid * grid)
        return tuple(sorted(b for b in wanted if restore < b <= n_tokens))


def check_on_grid(interval: int, grid: int) -> None:
    """Refuse an interval that the kernels cannot stop at, with the arithmetic spelled out."""
    if interval <= 0 or interval % grid:
        below, above = interval // grid * grid, (interval // grid + 1) * grid
        near = f"{above:,}" if below <= 0 else f"{below:,} or {above:,}"
        raise KdalabError(
            f"checkpoint interval {interval:,} is not a positive multiple of {grid:,} tokens "
            f"(the lcm of kernel chunk and page); the nearest: {near}"
        )


def grid_of(chunk: int, page: int) -> int:
    """The absolute grid of boundaries that can hold a state: lcm(kernel chunk, page), tokens."""
    return math.lcm(chunk, page)


FORMS = "every:N, leaf, leaf+branch, all"


def parse_placement(text: str) -> Placement:
    """``every:4096`` | ``leaf`` | ``leaf+branch`` | ``all`` -> a placement."""
    text = text.strip().lower()
    if text == "all":
        return EveryPage()
    if text in ("leaf", "leaf+branch"):
        return Leaf(branch=text.endswith("branch"))
    name, _, number = text.partition(":")
    digits = number.replace(",", "").replace("_", "")
    # isdecimal, not isdigit, and no more digits than a length in tokens can have
    if name == "every" and digits.isdecimal() and len(digits) < 16 and int(digits) > 0:
        return Every(int(digits))
    shown = text if len(text) <= 40 else text[:37] + "..."
    raise KdalabError(f"unknown checkpoint placement {shown!r}; allowed: {FORMS} (N in tokens)")
