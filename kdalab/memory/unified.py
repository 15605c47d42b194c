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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch

from kdalab.errors import InvariantError, KdalabError, OutOfSlotsError
from kdalab.memory.active import StateStorage
from kdalab.memory.slots import SlotAllocator
from kdalab.units import format_bytes

ALIGNMENT = 8
"""Envelopes are whole multiples of this many bytes, so that views of any dtype line up."""

POISON_BYTE = 0xFF
"""Bytes of free memory: all of them set make a NaN in every floating-point format."""


class Move(NamedTuple):
    """Slot ``slot`` of pool ``pool`` went from row ``source`` to row ``target`` (``nbytes``)."""

    pool: str
    slot: int
    source: int
    target: int
    nbytes: int


def envelope(nbytes: int) -> int:
    """Bytes of one entry, rounded up to the alignment."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def state_bytes(
    recurrent_shape: Sequence[int], conv_shape: Sequence[int], dtype: torch.dtype
) -> int:
    """Bytes of one state: recurrent at least in fp32, conv in ``dtype``, all layers."""
    wide = torch.promote_types(dtype, torch.float32)
    return math.prod(recurrent_shape) * wide.itemsize + math.prod(conv_shape) * dtype.itemsize


class UnifiedSlots(SlotAllocator):
    """One side of a unified buffer: virtual numbers with owners, rows behind them.

    Row ``r`` lies at bytes [r * entry, (r + 1) * entry) of the buffer. The low side takes rows
    from ``first`` upwards, the high side from the last row downwards.
    """

    moves = True

    def __init__(self, buffer: UnifiedBuffer, entry_bytes: int, name: str, low: bool) -> None:
        self.buffer, self.entry_bytes, self.low = buffer, entry_bytes, low
        self.first = -(-buffer.sink_bytes // entry_bytes)
        self.rows = buffer.nbytes // entry_bytes
        if self.rows <= self.first:
            raise KdalabError(
                f"a unified buffer of {format_bytes(buffer.nbytes)} holds no {name} of "
                f"{entry_bytes:,} bytes beside the {buffer.sink_bytes:,} bytes of padding"
            )
        super().__init__(self.rows - self.first, name)
        self.span = 0  # rows from this side's end to its frontier, holes included
        self._row = [-1] * self.n  # by virtual number
        self._slot = [-1] * self.n  # by place from this side's end
        self._holes: set[int] = set()  # places

    # -- where things are --------------------------------------------------------------------

    def place(self, slot: int) -> int:
        """Row of the strided tensors where ``slot`` lies now.

        Raises:
            KdalabError: nobody owns the slot, so it lies nowhere.
        """
        self._check_number(slot)
        row = self._row[slot]
        if row < 0:
            raise KdalabError(f"{self.name}: slot {slot} is free and lies nowhere")
        return row

    def address(self, slot: int) -> int:
        """First byte of ``slot`` in the buffer: what a transfer sends from or to.

        Raises:
            KdalabError: no gate is held, so the slot could move while the address is in use.
        """
        if not self.buffer.gated:
            raise KdalabError("an address is good only while a gate is held; use buffer.gate()")
        return self.place(slot) * self.entry_bytes

    @property
    def frontier(self) -> int:
        """The byte that this side's used span ends at (low) or begins at (high)."""
        rows = self.first + self.span if self.low else self.rows - self.span
        return rows * self.entry_bytes

    @property
    def n_holes(self) -> int:
        """Free rows inside the span."""
        return len(self._holes)

    @property
    def n_free(self) -> int:
        """Slots that could be had now: holes, and what fits the gap once the peer has compacted."""
        gap = self.buffer.gap + self.buffer.peer(self).reclaimable_bytes
        return min(len(self._free), len(self._holes) + gap // self.entry_bytes)

    @property
    def reclaimable_bytes(self) -> int:
        """Bytes that compacting this side would add to the gap; 0 while a gate is held."""
        return 0 if self.buffer.gated else len(self._holes) * self.entry_bytes

    # -- taking and giving back --------------------------------------------------------------

    def allocate(self, owner: str, count: int = 1) -> tuple[int, ...]:
        """As ``SlotAllocator.allocate``: holes first, then the gap, then the peer's holes."""
        if count > self.n_free:
            raise OutOfSlotsError(
                f"{count:,} {self.name} wanted, {self.n_free:,} fit: {self.n_holes:,} holes and "
                f"a gap of {self.buffer.gap:,} bytes to the other side"
            )
        fresh = max(0, count - len(self._holes))
        self.buffer.peer(self).draw_back(fresh * self.entry_bytes - self.buffer.gap)
        taken = super().allocate(owner, count)
        for slot in taken:
            if self._holes:
                place = min(self._holes)
                self._holes.remove(place)
            else:
                place = self.span
                self.span += 1
            self._put(slot, place)
        return taken

    def free(self, slots: Sequence[int], owner: str) -> None:
        """Give slots back; in an eager buffer the holes are filled at once."""
        super().free(slots, owner)
        for slot in slots:
            place = self._place_of_row(self._row[slot])
            self.buffer.poison_row(self, self._row[slot])
            self._row[slot] = -1
            self._slot[place] = -1
            self._holes.add(place)
        self._trim()
        if not self.buffer.lazy:
            self.compact()

    def draw_back(self, nbytes: int) -> None:
        """Compact until the frontier has drawn back by ``nbytes``, or no hole is left."""
        if nbytes > 0:
            self.compact(-(-nbytes // self.entry_bytes))

    def compact(self, max_moves: int | None = None) -> int:
        """Fill holes with the slots at the frontier; returns how many were moved.

        Nothing is moved while a gate is held.
        """
        if self.buffer.gated:
            return 0
        moved = 0
        while self._holes and (max_moves is None or moved < max_moves):
            self._move(self.span - 1, min(self._holes))
            moved += 1
            self._trim()
        return moved

    def _move(self, source: int, target: int) -> None:
        if self.buffer.gated:
            raise InvariantError("nothing moves while a gate is held")
        slot, old = self._slot[source], self._row_of_place(source)
        self._holes.remove(target)
        self._put(slot, target)
        self._slot[source] = -1
        self._holes.add(source)
        self.buffer.copy_row(self, old, self._row[slot])
        self.buffer.moved.append(Move(self.name, slot, old, self._row[slot], self.entry_bytes))

    def _put(self, slot: int, place: int) -> None:
        self._slot[place] = slot
        self._row[slot] = self._row_of_place(place)

    def _trim(self) -> None:
        while self.span and (self.span - 1) in self._holes:
            self.span -= 1
            self._holes.remove(self.span)

    def _row_of_place(self, place: int) -> int:
        return self.first + place if self.low else self.rows - 1 - place

    def _place_of_row(self, row: int) -> int:
        return row - self.first if self.low else self.rows - 1 - row

    def check(self) -> None:
        """Conservation; both tables are each other's inverse; holes and only holes are unowned."""
        super().check()
        for slot, owner in enumerate(self.owners()):
            if (owner is None) != (self._row[slot] < 0):
                raise InvariantError(
                    f"{self.name}: slot {slot} of {owner} lies in row {self._row[slot]}"
                )
        for place, slot in enumerate(self._slot):
            used = place < self.span and place not in self._holes
            if used != (slot >= 0) or (used and self._row[slot] != self._row_of_place(place)):
                raise InvariantError(f"{self.name}: the two tables disagree at place {place}")
        if not self.buffer.lazy and not self.buffer.gated and self._holes:
            raise InvariantError(f"{self.name}: holes {sorted(self._holes)} were left")


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
        self._gates = 0
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
        """True while a transfer holds addresses."""
        return self._gates > 0

    @contextmanager
    def gate(self) -> Iterator[UnifiedBuffer]:
        """Hold everything where it is; an eager buffer catches up when the last gate opens."""
        self._gates += 1
        try:
            yield self
        finally:
            self._gates -= 1
            if not self._gates and not self.lazy:
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
