"""Where a prefill chunk ends in cache mode ``align``, so that states stand where they can be named.

A recurrent state exists only where a forward ends. So chunks end on blocks, and stop early at the
boundaries that a later lookup can use.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Stops:
    """What one prompt's chunks look at. All in tokens.

    Args:
        n_tokens: the prompt.
        block: the state groups' block.
        unit: the hash unit.
        tail: the last boundary that a lookup of this prompt can use, 0 for none.
        junction: the boundary that a second prompt was seen to share, floored to a block; 0 for
            none.
        last: the last block boundary whose state would stay; 0 for none.
        kv_tail: how far a lookup of this prompt can match; beyond ``tail`` where speculative
            decoding gives up the last unit. Its KV must be known that far to have it to give up.
        interval: every so many tokens a state is wanted (the retention's); 0 for none.
        kernel: the grid of states that a kernel can store in the middle of a chunk; 0 when it
            cannot.

    ``points`` are the boundaries that retention never leaves out, ``kv_points`` those to which KV
    has a name even inside a block.
    """

    n_tokens: int
    block: int
    unit: int
    tail: int = 0
    junction: int = 0
    last: int = 0
    kv_tail: int = 0
    interval: int = 0
    kernel: int = 0
    points: frozenset[int] = field(init=False, repr=False, compare=False)
    kv_points: frozenset[int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        points = frozenset([p for p in (self.tail, self.junction) if p])
        object.__setattr__(self, "points", points)
        object.__setattr__(self, "kv_points", points | {self.kv_tail})

    def chunk_end(self, start: int, budget: int) -> int:
        """Where the chunk that begins at ``start`` ends, with at most ``budget`` tokens (>= 1).

        A chunk that does not finish the prompt is floored to a block, unless not one block fits
        the budget: then it makes progress inside the block. It stops at the earliest of: the next
        block boundary when it begins inside a block; the tail; the junction; the last cacheable
        block; the next multiple of the retention's interval.
        """
        end = self._floored(start, min(start + budget, self.n_tokens))
        stops = [self.junction, self.last]
        if start % self.block:
            stops.append(self._next(start, self.block))
        if self.interval:
            stops.append(self._next(start, self.interval))
        for stop in stops:
            if start < stop < end:
                end = stop
        if start < self.tail < end and not self.stored_inside(start, end):
            end = self.tail
        return end

    def stored_inside(self, start: int, end: int) -> bool:
        """Can the kernel leave the tail's state while it computes [start, end)? The chunk must
        begin on a hash unit and reach the tail in whole steps of the kernel."""
        return bool(
            self.kernel
            and start % self.unit == 0
            and start < self.tail < end
            and (self.tail - start) % self.kernel == 0
        )

    def _floored(self, start: int, end: int) -> int:
        if end == self.n_tokens:
            return end
        for grid in (self.block, self.unit):
            floored = end // grid * grid
            if floored > start:
                return floored
        return end

    @staticmethod
    def _next(start: int, grid: int) -> int:
        return (start // grid + 1) * grid
