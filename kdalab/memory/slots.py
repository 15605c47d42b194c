"""Slot numbers with owners: who may write where, and that nothing is lost or given out twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from kdalab.errors import InvariantError, KdalabError, OutOfSlotsError

CACHE = "cache"
"""Owner of what is shared: slots that belong to the cache are read-only for everyone."""

IN_FLIGHT = "transfer"
"""Owner of what a copy between device and host is to fill: nobody reads it, and it is not free."""


class SlotAllocator:
    """Hands out the numbers 0 .. n-1 of one pool, each to one owner at a time.

    An owner is a request's name, or ``CACHE``. Freed numbers are reused last in, first out, so
    that a stale read meets new bytes as soon as possible.

    Args:
        n: slots in the pool.
        name: what the pool is called in messages ("active states", "latent pages").
    """

    moves = False
    """True where a slot's bytes may be moved, and are poisoned by who moves them."""

    def __init__(self, n: int, name: str) -> None:
        if n <= 0:
            raise KdalabError(f"a pool of {n} {name}; it needs at least 1")
        self.n = n
        self.name = name
        self._free = list(range(n - 1, -1, -1))
        self._owner: list[str | None] = [None] * n

    @property
    def n_free(self) -> int:
        """Slots that nobody owns."""
        return len(self._free)

    def owner(self, slot: int) -> str | None:
        """Owner of ``slot``; None when it is free."""
        self._check_number(slot)
        return self._owner[slot]

    def place(self, slot: int) -> int:
        """Row of the pool's tensors where ``slot`` lies: its own number in a fixed pool."""
        self._check_number(slot)
        return slot

    def owned_by(self, owner: str) -> list[int]:
        """All slots of ``owner``, ascending."""
        return [i for i, who in enumerate(self._owner) if who == owner]

    def owners(self) -> tuple[str | None, ...]:
        """Owner of each slot, by number."""
        return tuple(self._owner)

    def counts(self) -> Counter[str | None]:
        """Slots by owner; None counts the free ones."""
        return Counter(self._owner)

    def allocate(self, owner: str, count: int = 1) -> tuple[int, ...]:
        """Take ``count`` slots for ``owner``; all or none.

        Raises:
            OutOfSlotsError: fewer are free. Nothing was taken.
        """
        if count < 0:
            raise KdalabError(f"cannot take {count} {self.name}")
        if count > len(self._free):
            raise OutOfSlotsError(
                f"{count:,} {self.name} wanted, {len(self._free):,} of {self.n:,} are free"
            )
        taken = tuple(self._free.pop() for _ in range(count))
        for slot in taken:
            self._owner[slot] = owner
        return taken

    def free(self, slots: Sequence[int], owner: str) -> None:
        """Give slots back. All must belong to ``owner``, or nothing is freed."""
        self._check_owned(slots, owner)
        for slot in slots:
            self._owner[slot] = None
            self._free.append(slot)

    def transfer(self, slots: Sequence[int], owner: str, to: str) -> None:
        """Hand slots over without touching their bytes (a donation)."""
        self._check_owned(slots, owner)
        for slot in slots:
            self._owner[slot] = to

    def check(self) -> None:
        """Free + owned = total, each number once."""
        if len(set(self._free)) != len(self._free):
            raise InvariantError(f"{self.name}: a slot is in the free list twice")
        for slot in self._free:
            if self._owner[slot] is not None:
                raise InvariantError(f"{self.name}: free slot {slot} has an owner")
        owned = sum(who is not None for who in self._owner)
        if owned + len(self._free) != self.n:
            raise InvariantError(
                f"{self.name}: {len(self._free)} free + {owned} owned != {self.n} in total"
            )

    def _check_owned(self, slots: Sequence[int], owner: str) -> None:
        if len(set(slots)) != len(slots):
            raise KdalabError(f"{self.name}: a slot is named twice in {list(slots)}")
        for slot in slots:
            if self.owner(slot) != owner:
                raise KdalabError(
                    f"{self.name}: slot {slot} belongs to {self._owner[slot] or 'nobody'}, "
                    f"not to {owner}"
                )

    def _check_number(self, slot: int) -> None:
        # Negative numbers would wrap round to the pool's end and touch somebody else's slot.
        if not 0 <= slot < self.n:
            raise KdalabError(f"{self.name}: slot {slot} is out of range 0..{self.n - 1}")
