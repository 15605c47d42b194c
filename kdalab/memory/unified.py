"""One byte buffer for latent pages and states: each grows from its own end into one shared gap.

A fixed split must guess how much of either kind the prompts will want. Here the bytes that one
side does not use are the other side's to take, as in SGLang's unified memory pool. Three things
make it work:

* an *envelope* is all layers of one page or one state, contiguous, and a side is an array of
  envelopes seen through ordinary strided tensors;
* callers hold *virtual* numbers. A slot freed in the middle leaves a hole, and the slot at the
  side's frontier moves into it, so that the frontier can draw back and the gap grows;
* whoever hands out addresses (a transfer) holds a *gate*, and nothing moves meanwhile.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from kdalab.errors import InvariantError, KdalabError
from kdalab.memory.active import StateStorage
from kdalab.memory.gate import Hold, MoveGate
from kdalab.memory.unified_slots import Move, UnifiedSlots
from kdalab.units import format_bytes

__all__ = [
    "ALIGNMENT",
    "POISON_BYTE",
    "Move",
    "UnifiedBuffer",
    "UnifiedSlots",
    "envelope",
    "state_bytes",
]

ALIGNMENT = 8
"""Envelopes are whole multiples of this many bytes, so that views of any dtype line up."""

POISON_BYTE = 0xFF
"""Bytes of free memory: all of them set make a NaN in every floating-point format."""


def envelope(nbytes: int) -> int:
    """Bytes of one entry, rounded up to the alignment."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def state_bytes(
    recurrent_shape: Sequence[int], conv_shape: Sequence[int], dtype: torch.dtype
) -> int:
    """Bytes of one state: recurrent at least in fp32, conv in ``dtype``, all layers."""
    wide = torch.promote_types(dtype, torch.float32)
    return math.prod(recurrent_shape) * wide.itemsize + math.prod(conv_shape) * dtype.itemsize


class UnifiedBuffer:
    """The bytes, the two sides, and the gap between them.

    The first ``sink_bytes`` belong to nobody: row 0 of either side lies there, so that a padded
    write to "slot 0" touches nobody's data.

    Args:
        nbytes: of the whole buffer; rounded down to the alignment.
        page_bytes, state_bytes: one entry of the low side and of the high side.
        lazy: leave holes where they are until somebody needs the gap, or ``compact`` is called.
        poison: fill free bytes with 0xFF.

    Raises:
        KdalabError: not even one page and one state fit.
    """

    def __init__(
        self,
        nbytes: int,
        page_bytes: int,
        state_bytes: int,
        lazy: bool = False,
        poison: bool = True,
    ) -> None:
        page_bytes, state_bytes = envelope(page_bytes), envelope(state_bytes)
        self.nbytes = nbytes // ALIGNMENT * ALIGNMENT
        self.sink_bytes = max(page_bytes, state_bytes)
        self.lazy, self.poison = lazy, poison
        self.data = torch.full((max(self.nbytes, 0),), POISON_BYTE, dtype=torch.uint8)
        self.moved: list[Move] = []
        self.heedless = False  # of a fault: compaction does not ask the gate
        self.holds = MoveGate(self._catch_up)
        self.pages = UnifiedSlots(self, page_bytes, "latent pages", low=True)
        self.states = UnifiedSlots(self, state_bytes, "states", low=False)
        if self.pages.frontier + page_bytes > self.states.frontier - state_bytes:
            raise KdalabError(
                f"a unified buffer of {format_bytes(nbytes)} does not hold one page of "
                f"{page_bytes:,} bytes and one state of {state_bytes:,} bytes"
            )

    @staticmethod
    def bytes_for(n_pages: int, page_bytes: int, n_states: int, state_bytes: int) -> int:
        """Bytes of a buffer that holds so many of both, padding included."""
        page, state = envelope(page_bytes), envelope(state_bytes)
        # Each side starts at a whole row: up to one row is lost at either end.
        sink = -(-max(page, state) // page) * page
        return sink + n_pages * page + (n_states + 1) * state

    @property
    def gap(self) -> int:
        """Free bytes between the two frontiers."""
        return self.states.frontier - self.pages.frontier

    def peer(self, side: UnifiedSlots) -> UnifiedSlots:
        """The other side."""
        return self.states if side is self.pages else self.pages

    def missing(self, pages: int, states: int) -> int:
        """Bytes that must be given back before so many more of both fit; 0 when they fit now."""
        fresh = max(0, pages - self.pages.n_holes) * self.pages.entry_bytes
        fresh += max(0, states - self.states.n_holes) * self.states.entry_bytes
        spare = 0
        for side, wanted in ((self.pages, pages), (self.states, states)):
            if not self.gated:
                spare += max(0, side.n_holes - wanted) * side.entry_bytes
        return max(0, fresh - self.gap - spare)

    def most_pages(self, states: int) -> int:
        """Pages that fit beside so many states when nothing else is held; negative: none."""
        room = self.states.rows * self.states.entry_bytes - states * self.states.entry_bytes
        return (room - self.pages.first * self.pages.entry_bytes) // self.pages.entry_bytes

    # -- the gate ----------------------------------------------------------------------------

    @property
    def gated(self) -> bool:
        """True while somebody holds addresses, and compaction heeds it."""
        return self.holds.is_held and not self.heedless

    def gate(self, who: str = "a transfer") -> Hold:
        """Hold everything where it is; an eager buffer catches up when the last hold goes."""
        return self.holds.hold(who)

    def _catch_up(self) -> None:
        if not self.lazy:
            self.compact()

    def compact(self, max_moves: int | None = None) -> int:
        """Move at most ``max_moves`` slots into holes, states first (a hole there is larger)."""
        moved = self.states.compact(max_moves)
        rest = None if max_moves is None else max_moves - moved
        return moved + self.pages.compact(rest)

    def drain_moves(self) -> list[Move]:
        """The moves since the last call."""
        moved, self.moved = self.moved, []
        return moved

    # -- bytes -------------------------------------------------------------------------------

    def view(
        self, side: UnifiedSlots, shape: Sequence[int], dtype: torch.dtype, offset: int = 0
    ) -> torch.Tensor:
        """Strided tensor [row, *shape] over a side's entries, ``offset`` bytes into each."""
        strides = [side.entry_bytes // dtype.itemsize]
        strides += [math.prod(shape[i + 1 :]) for i in range(len(shape))]
        size = offset + math.prod(shape) * dtype.itemsize
        if offset % dtype.itemsize or size > side.entry_bytes:
            raise KdalabError(
                f"{list(shape)} of {dtype} from byte {offset} does not fit an entry of "
                f"{side.entry_bytes:,} bytes"
            )
        typed = self.data.view(dtype)
        return typed.as_strided((side.rows, *shape), strides, offset // dtype.itemsize)

    def state_storage(
        self, recurrent_shape: Sequence[int], conv_shape: Sequence[int], dtype: torch.dtype
    ) -> StateStorage:
        """The high side as recurrent and conv states: all layers of both in one envelope."""
        wide = torch.promote_types(dtype, torch.float32)
        after = math.prod(recurrent_shape) * wide.itemsize
        return StateStorage(
            self.states,
            self.view(self.states, recurrent_shape, wide),
            self.view(self.states, conv_shape, dtype, after),
        )

    def poison_row(self, side: UnifiedSlots, row: int) -> None:
        """Overwrite one entry."""
        if self.poison:
            start = row * side.entry_bytes
            self.data[start : start + side.entry_bytes] = POISON_BYTE

    def copy_row(self, side: UnifiedSlots, source: int, target: int) -> None:
        """Move one entry's bytes and poison where it was."""
        size = side.entry_bytes
        a, b = source * size, target * size
        self.data[b : b + size] = self.data[a : a + size].clone()
        self.poison_row(side, source)

    def check(self) -> None:
        """Both sides hold together, do not overlap, and nobody has written into free bytes."""
        self.pages.check()
        self.states.check()
        if self.gap < 0:
            raise InvariantError(f"the two sides overlap by {-self.gap:,} bytes")
        if not self.poison:
            return
        free = torch.ones(self.nbytes, dtype=torch.bool)
        for side in (self.pages, self.states):
            for row in side._row:
                if row >= 0:
                    free[row * side.entry_bytes : (row + 1) * side.entry_bytes] = False
        if not bool((self.data[free] == POISON_BYTE).all()):
            raise InvariantError(
                "free memory stays poisoned: nobody writes where nobody owns (unified buffer)"
            )
