"""Which boundaries can hold a state: absolute grids, and their arithmetic in every message.

A kernel hands out the recurrent state between its chunks, latent KV is cached by whole pages, and
a checkpoint needs both: boundaries are multiples of lcm(kernel chunk, page), counted from the
start of the prompt. A grid relative to the restore point would put the same prefix's checkpoints
at different places for different requests.
"""

from __future__ import annotations

import math

from kdalab.errors import KdalabError


class Grid(int):
    """A step in tokens that remembers what it is the least common multiple of."""

    parts: tuple[int, ...]

    def __new__(cls, *parts: int) -> Grid:
        if not parts or any(type(p) is bool or int(p) < 1 for p in parts):
            raise KdalabError(f"a grid of {parts}: give whole numbers of 1 or more, in tokens")
        grid = super().__new__(cls, math.lcm(*parts))
        grid.parts = tuple(int(p) for p in parts)
        return grid

    def __reduce__(self) -> tuple[type[Grid], tuple[int, ...]]:
        return Grid, self.parts

    @property
    def arithmetic(self) -> str:
        """``lcm(64, 16) = 64``, or the number alone."""
        if len(self.parts) == 1:
            return f"{int(self):,}"
        return f"lcm({', '.join(f'{p:,}' for p in self.parts)}) = {int(self):,}"


def grid_of(chunk: int, page: int) -> Grid:
    """The grid of boundaries that can hold a state: lcm(kernel chunk, page), tokens."""
    return Grid(chunk, page)


def decode_grid(grid: int, interval: int) -> Grid:
    """Boundaries of decoding that leave a checkpoint: lcm(checkpoint grid, interval), tokens
    (SGLang's ``mamba_track_interval``, 256 there by default)."""
    return Grid(grid, interval)


def deepest(grid: int, start: int, end: int) -> int | None:
    """The deepest multiple of ``grid`` in (start, end]; None if there is none."""
    last = end // grid * grid
    return last if last > start else None


def multiples(step: int, start: int, end: int) -> tuple[int, ...]:
    """All multiples of ``step`` in (start, end]."""
    return tuple(range((start // step + 1) * step, end + 1, step))


def check_on_grid(interval: int, grid: int) -> None:
    """Refuse an interval that no state can be kept at, with the arithmetic spelled out.

    Raises:
        KdalabError: not a positive multiple of ``grid``; names the nearest that are.
    """
    if interval > 0 and interval % grid == 0:
        return
    below = max(0, int(interval // grid * grid))
    near = f"{below:,} or {below + grid:,}" if below else f"{int(grid):,}"
    if isinstance(grid, Grid) and len(grid.parts) > 1:
        what = f"multiple of {grid.arithmetic} tokens (the kernel's chunk, the page)"
    else:
        what = f"positive multiple of {grid:,} tokens (the lcm of kernel chunk and page)"
    raise KdalabError(f"checkpoint interval {interval:,} is not a {what}; the nearest: {near}")
