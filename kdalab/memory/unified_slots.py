"""One side of a unified buffer: virtual numbers with owners, rows behind them, holes, moves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from kdalab.errors import InvariantError, KdalabError, OutOfSlotsError
from kdalab.memory.slots import SlotAllocator
from kdalab.units import format_bytes

if TYPE_CHECKING:
    from kdalab.memory.unified import UnifiedBuffer


class Move(NamedTuple):
    """Slot ``slot`` of pool ``pool`` went from row ``source`` to row ``target`` (``nbytes``)."""

    pool: str
    slot: int
    source: int
    target: int
    nbytes: int


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
