"""Where checkpoints are taken: small objects that the caches, the engine and the replay all use.

Boundaries are absolute, counted from the start of the prompt, and always on a grid that the
kernels can stop at (see ``grids``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from kdalab.cache.extends import Extends, Fork
from kdalab.cache.grids import check_on_grid, decode_grid, deepest, grid_of, multiples
from kdalab.errors import KdalabError

__all__ = [
    "FORMS",
    "Branch",
    "DecodeEvery",
    "Every",
    "EveryPage",
    "Extends",
    "Fork",
    "Joined",
    "Leaf",
    "Placement",
    "check_on_grid",
    "grid_of",
    "parse_placement",
]


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
        return multiples(self.interval, restore, n_tokens)


@dataclass(frozen=True, slots=True)
class EveryPage:
    """A checkpoint at every point of the grid: the densest that is possible."""

    def __str__(self) -> str:
        return "all"

    def boundaries(
        self, n_tokens: int, restore: int, branching: int | None, grid: int
    ) -> tuple[int, ...]:
        return multiples(int(grid), restore, n_tokens)


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
        tail = deepest(grid, restore, n_tokens)
        wanted = {tail} if tail is not None else set()
        if self.branch:
            wanted |= set(Branch().boundaries(n_tokens, restore, branching, grid))
        return tuple(sorted(wanted))


@dataclass(frozen=True, slots=True)
class Branch:
    """A checkpoint where a second prompt has been seen to part from the first; no other."""

    def __str__(self) -> str:
        return "branch"

    def boundaries(
        self, n_tokens: int, restore: int, branching: int | None, grid: int
    ) -> tuple[int, ...]:
        at = deepest(grid, restore, min(branching, n_tokens)) if branching is not None else None
        return () if at is None else (at,)


@dataclass(frozen=True, slots=True)
class Joined:
    """Every boundary that one of ``parts`` wants."""

    parts: tuple[Placement, ...]

    def __str__(self) -> str:
        return "+".join(str(p) for p in self.parts)

    def boundaries(
        self, n_tokens: int, restore: int, branching: int | None, grid: int
    ) -> tuple[int, ...]:
        each = (p.boundaries(n_tokens, restore, branching, grid) for p in self.parts)
        return tuple(sorted({b for found in each for b in found}))


@dataclass(frozen=True, slots=True)
class DecodeEvery:
    """While decoding: a checkpoint whenever the length is a multiple of
    lcm(checkpoint grid, ``interval``)."""

    interval: int = 256

    def __str__(self) -> str:
        return f"decode:{self.interval}"

    def boundaries(self, start: int, end: int, grid: int) -> tuple[int, ...]:
        """Those that the tokens (start, end] pass, ascending. A step of several tokens, as after
        a speculative verify, may pass one in its middle."""
        return multiples(int(decode_grid(grid, self.interval)), start, end)


FORMS = (
    "every:N, leaf, leaf+branch, all, branch, chunk:N, branch-first, tail-first, both (the last "
    "three also with :N), and several joined by +"
)

_PLAIN: dict[str, Placement] = {
    "all": EveryPage(),
    "leaf": Leaf(),
    "branch": Branch(),
    **{str(f): Extends(None, f) for f in Fork},
}
_NUMBERED: dict[str, Callable[[int], Placement]] = {
    "every": Every,
    "chunk": lambda n: Extends(n, Fork.END),
    "branch-first": lambda n: Extends(n, Fork.BRANCH_FIRST),
    "tail-first": lambda n: Extends(n, Fork.TAIL_FIRST),
    "both": lambda n: Extends(n, Fork.BOTH),
}


def parse_placement(text: str) -> Placement:
    """A placement from its text form: ``every:4096``, ``leaf+branch``, ``tail-first:8192``, ...

    Raises:
        KdalabError: an unknown form; lists the known ones.
    """
    words = text.strip().lower()
    if words == "leaf+branch":
        return Leaf(branch=True)
    parts = [_part(word) for word in words.split("+")] if len(words) < 200 else [None]
    if None in parts:
        shown = words if len(words) <= 40 else words[:37] + "..."
        raise KdalabError(f"unknown checkpoint placement {shown!r}; allowed: {FORMS} (N in tokens)")
    known = tuple(p for p in parts if p is not None)
    return known[0] if len(known) == 1 else Joined(known)


def _part(word: str) -> Placement | None:
    if word in _PLAIN:
        return _PLAIN[word]
    name, _, number = word.partition(":")
    digits = number.replace(",", "").replace("_", "")
    # isdecimal, not isdigit, and no more digits than a length in tokens can have
    if name in _NUMBERED and digits.isdecimal() and len(digits) < 16 and int(digits) > 0:
        return _NUMBERED[name](int(digits))
    return None
