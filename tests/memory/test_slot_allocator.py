"""Random life of a slot allocator against a dictionary; every refused call changes nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kdalab.errors import InvariantError, KdalabError, OutOfSlotsError
from kdalab.memory import CACHE, SlotAllocator

N = 6
owners = st.sampled_from(["A", "B", CACHE])
numbers = st.integers(-2, N + 1)  # wrong ones too: -1 would wrap round to the last slot


class AllocatorMachine(RuleBasedStateMachine):
    """``model`` maps each slot in use to its owner."""

    def __init__(self) -> None:
        super().__init__()
        self.slots = SlotAllocator(N, "things")
        self.model: dict[int, str] = {}
        self.freed: list[int] = []  # last freed, at the end

    def belongs(self, slots: list[int], owner: str) -> bool:
        return len(set(slots)) == len(slots) and all(self.model.get(s) == owner for s in slots)

    def refused(self, call: Callable[[], object], error: type[Exception] = KdalabError) -> None:
        before = (self.slots.owners(), self.slots.n_free, self.slots.counts())
        with pytest.raises(error):
            call()
        assert (self.slots.owners(), self.slots.n_free, self.slots.counts()) == before

    @rule(owner=owners, count=st.integers(-1, N + 1))
    def allocate(self, owner: str, count: int) -> None:
        if count < 0:
            self.refused(lambda: self.slots.allocate(owner, count))
            return
        if count > N - len(self.model):
            self.refused(lambda: self.slots.allocate(owner, count), OutOfSlotsError)
            return
        taken = self.slots.allocate(owner, count)
        assert len(set(taken)) == len(taken) == count
        assert not set(taken) & self.model.keys()
        for slot in taken:  # what was freed last is used first
            if self.freed:
                assert slot == self.freed.pop()
        self.model |= dict.fromkeys(taken, owner)

    @rule(slots=st.lists(numbers, max_size=4), owner=owners)
    def free(self, slots: list[int], owner: str) -> None:
        if not self.belongs(slots, owner):
            self.refused(lambda: self.slots.free(slots, owner))
            return
        self.slots.free(slots, owner)
        for slot in slots:
            del self.model[slot]
            self.freed.append(slot)

    @rule(owner=owners, count=st.integers(0, 3))
    def free_own(self, owner: str, count: int) -> None:
        own = self.slots.owned_by(owner)[:count]
        self.free(own, owner)
        if own:  # a second time
            self.refused(lambda: self.slots.free(own, owner))

    @rule(slots=st.lists(numbers, max_size=4), owner=owners, to=owners)
    def transfer(self, slots: list[int], owner: str, to: str) -> None:
        if not self.belongs(slots, owner):
            self.refused(lambda: self.slots.transfer(slots, owner, to))
            return
        self.slots.transfer(slots, owner, to)
        self.model |= dict.fromkeys(slots, to)

    @rule(owner=owners, to=owners, count=st.integers(0, 3))
    def donate(self, owner: str, to: str, count: int) -> None:
        own = self.slots.owned_by(owner)[:count]
        self.transfer(own, owner, to)
        if own and to != owner:  # the giver has nothing left to free
            self.refused(lambda: self.slots.free(own, owner))

    @rule(slot=numbers)
    def ask(self, slot: int) -> None:
        if 0 <= slot < N:
            assert self.slots.owner(slot) == self.model.get(slot)
        else:
            self.refused(lambda: self.slots.owner(slot))

    @invariant()
    def allocator_equals_the_dictionary(self) -> None:
        self.slots.check()
        assert self.slots.owners() == tuple(self.model.get(i) for i in range(N))
        assert self.slots.n_free == N - len(self.model)
        assert sum(self.slots.counts().values()) == N
        for owner in ("A", "B", CACHE):
            own = [i for i in sorted(self.model) if self.model[i] == owner]
            assert self.slots.owned_by(owner) == own
            assert self.slots.counts()[owner] == len(own)


TestAllocatorMachine = AllocatorMachine.TestCase
TestAllocatorMachine.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)


@pytest.mark.parametrize("n", [0, -1])
def test_a_pool_without_slots_is_refused(n: int) -> None:
    with pytest.raises(KdalabError, match=f"a pool of {n} things; it needs at least 1"):
        SlotAllocator(n, "things")


def test_every_refusal_names_the_pool_the_slot_and_the_owner() -> None:
    slots = SlotAllocator(3, "latent pages")
    (a,) = slots.allocate("A")
    for call, message in (
        (lambda: slots.allocate("B", 3), "3 latent pages wanted, 2 of 3 are free"),
        (lambda: slots.free([a], "B"), "latent pages: slot 0 belongs to A, not to B"),
        (lambda: slots.free([1], "A"), "latent pages: slot 1 belongs to nobody, not to A"),
        (lambda: slots.free([a, a], "A"), r"latent pages: a slot is named twice in \[0, 0\]"),
        (lambda: slots.transfer([a, 1], "A", "B"), "slot 1 belongs to nobody"),
        (lambda: slots.owner(3), r"latent pages: slot 3 is out of range 0\.\.2"),
        (lambda: slots.owner(-1), r"slot -1 is out of range"),
    ):
        with pytest.raises(KdalabError, match=message):
            call()
    assert slots.owners() == ("A", None, None)


def test_check_sees_a_slot_that_is_free_twice_owned_while_free_or_lost() -> None:
    def broken(change: Callable[[SlotAllocator], object]) -> SlotAllocator:
        slots = SlotAllocator(3, "things")
        slots.allocate("A")
        change(slots)
        return slots

    for change, message in (
        (lambda s: s._free.append(2), "in the free list twice"),
        (lambda s: s._free.append(0), "free slot 0 has an owner"),
        (lambda s: s._free.pop(), "1 free . 1 owned != 3"),
    ):
        with pytest.raises(InvariantError, match=message):
            broken(change).check()
