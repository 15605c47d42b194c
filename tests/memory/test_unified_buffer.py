"""One buffer, two ends: nothing overlaps, nothing is lost when slots move, nothing moves while a
transfer looks on."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kdalab.errors import InvariantError, KdalabError, OutOfSlotsError
from kdalab.memory import ActivePool, LatentPool, UnifiedBuffer
from kdalab.memory.unified import envelope, state_bytes

RECURRENT, CONV = (2, 1, 4, 5), (2, 2, 3)
STATE = state_bytes(RECURRENT, CONV, torch.float32)
LATENT = (2, 4, 6)  # MLA layers, tokens a page, channels
PAGE = 2 * 4 * 6 * 4


def pools(
    n_pages: int = 12, n_states: int = 4, **options: Any
) -> tuple[UnifiedBuffer, ActivePool, LatentPool]:
    nbytes = UnifiedBuffer.bytes_for(n_pages, PAGE, n_states, STATE)
    buffer = UnifiedBuffer(nbytes, PAGE, STATE, **options)
    storage = buffer.state_storage(RECURRENT, CONV, torch.float32)
    active = ActivePool(0, RECURRENT, CONV, storage=storage)
    latents = LatentPool(0, *LATENT, torch.float32, buffer)
    return buffer, active, latents


def filled(active: ActivePool, owner: str, value: float) -> int:
    slot = active.allocate(owner)
    active.write(slot, torch.full(RECURRENT, value), torch.full(CONV, -value), owner)
    return slot


def held(active: ActivePool, slot: int) -> float:
    recurrent, conv = active.read(slot)
    assert bool((recurrent == -conv.flatten()[0]).all())
    return float(recurrent.flatten()[0])


def test_both_sides_are_views_of_the_same_bytes() -> None:
    buffer, active, latents = pools()
    start = buffer.data.data_ptr()
    for tensor in (active.recurrent, active.conv, latents.data):
        assert start <= tensor.data_ptr() < start + buffer.nbytes
    filled(active, "A", 1.5)
    with buffer.gate():
        at = buffer.states.address(0)
    raw = buffer.data[at : at + 4 * 40].view(torch.float32)
    assert bool((raw == 1.5).all())


def test_pages_grow_up_and_states_grow_down_until_they_meet() -> None:
    buffer, active, latents = pools(n_pages=12, n_states=4)
    (first, second) = latents.slots.allocate("A", 2)
    a, b = active.allocate("A"), active.allocate("A")
    assert latents.slots.place(second) == latents.slots.place(first) + 1
    assert active.slots.place(b) == active.slots.place(a) - 1
    latents.slots.allocate("A", latents.slots.n_free)
    assert active.slots.n_free == 0 or buffer.gap >= STATE
    with pytest.raises(OutOfSlotsError, match="a gap of"):
        latents.slots.allocate("A", 1)
    buffer.check()


def test_one_side_takes_what_the_other_leaves() -> None:
    _, active, latents = pools(n_pages=12, n_states=4)
    most = latents.slots.n_free
    assert most > 12
    slots = [active.allocate("A") for _ in range(4)]
    assert latents.slots.n_free < most
    for slot in slots:
        active.free(slot, "A")
    assert latents.slots.n_free == most


def test_row_0_of_either_side_lies_in_the_padding() -> None:
    buffer, active, latents = pools()
    pages = latents.slots.allocate("A", latents.slots.n_free)
    assert min(latents.slots.place(p) for p in pages) * PAGE >= buffer.sink_bytes
    latents.data[0] = 7.0  # a padded write to "slot 0"
    active.conv[0] = 7.0
    assert buffer.sink_bytes >= max(PAGE, STATE)
    buffer.data[: buffer.sink_bytes] = 0xFF
    buffer.check()


def test_freeing_in_the_middle_moves_the_frontier_slot_into_the_hole() -> None:
    buffer, active, _ = pools()
    slots = [filled(active, "A", i + 1.0) for i in range(4)]
    rows = [active.slots.place(s) for s in slots]
    gap = buffer.gap
    active.free(slots[1], "A")
    assert buffer.gap == gap + STATE
    assert active.slots.place(slots[3]) == rows[1]
    assert [held(active, s) for s in (slots[0], slots[2], slots[3])] == [1.0, 3.0, 4.0]
    (move,) = buffer.drain_moves()
    assert move == ("states", slots[3], rows[3], rows[1], STATE)
    assert buffer.drain_moves() == []
    buffer.check()


def test_lazy_holes_are_reused_first_and_moves_are_capped() -> None:
    buffer, active, _ = pools(n_states=6, lazy=True)
    slots = [filled(active, "A", i + 1.0) for i in range(6)]
    row = active.slots.place(slots[1])
    active.free(slots[1], "A")
    active.free(slots[3], "A")
    assert buffer.states.n_holes == 2
    assert not buffer.moved
    assert active.slots.place(filled(active, "B", 9.0)) == row
    active.free(slots[0], "A")
    assert buffer.compact(1) == 1
    assert buffer.states.n_holes == 1
    assert buffer.compact(5) == 1
    assert [held(active, s) for s in (slots[2], slots[4], slots[5])] == [3.0, 5.0, 6.0]
    buffer.check()


def test_a_side_that_needs_the_gap_compacts_the_other() -> None:
    buffer, active, latents = pools(n_pages=4, n_states=3, lazy=True)
    slots = [filled(active, "A", i + 1.0) for i in range(3)]
    latents.slots.allocate("A", latents.slots.n_free)
    active.free(slots[0], "A")
    assert latents.slots.n_free >= STATE // PAGE > 0
    latents.slots.allocate("B", STATE // PAGE)
    assert [held(active, s) for s in slots[1:]] == [2.0, 3.0]
    buffer.check()


def test_nothing_moves_while_a_gate_is_held() -> None:
    buffer, active, latents = pools()
    slots = [filled(active, "A", i + 1.0) for i in range(4)]
    with buffer.gate(), buffer.gate():
        at = [buffer.states.address(s) for s in slots]
        active.free(slots[0], "A")
        assert buffer.compact() == 0
        assert [buffer.states.address(s) for s in slots[1:]] == at[1:]
        with pytest.raises(InvariantError, match="nothing moves while a gate is held"):
            buffer.states._move(3, 0)
        free = latents.slots.n_free
        assert buffer.states.reclaimable_bytes == 0
        buffer.check()
    assert latents.slots.n_free > free  # the last gate is open: the hole has been filled
    assert held(active, slots[3]) == 4.0
    assert len(buffer.drain_moves()) == 1


def test_an_address_needs_a_gate_and_a_free_slot_has_none() -> None:
    buffer, active, _ = pools()
    slot = active.allocate("A")
    with pytest.raises(KdalabError, match="only while a gate is held"):
        buffer.states.address(slot)
    active.free(slot, "A")
    with buffer.gate(), pytest.raises(KdalabError, match="lies nowhere"):
        buffer.states.address(slot)


def test_minus_one_is_never_freed() -> None:
    buffer, active, latents = pools()
    filled(active, "A", 1.0)
    latents.slots.allocate("A", 2)
    for pool in (active.slots, latents.slots):
        with pytest.raises(KdalabError, match="slot -1 is out of range"):
            pool.free([-1], "A")
        with pytest.raises(KdalabError, match="slot -1 is out of range"):
            pool.place(-1)
    buffer.check()


def test_a_stray_write_into_free_bytes_is_seen() -> None:
    buffer, _, _ = pools()
    buffer.data[buffer.nbytes // 2] = 0
    with pytest.raises(InvariantError, match="free memory stays poisoned"):
        buffer.check()


def test_a_buffer_too_small_for_one_of_each_is_refused() -> None:
    with pytest.raises(KdalabError, match=r"does not hold one page|holds no"):
        UnifiedBuffer(PAGE + STATE, PAGE, STATE)


def test_envelopes_are_aligned() -> None:
    assert [envelope(n) for n in (1, 8, 9)] == [8, 8, 16]
    buffer = UnifiedBuffer(4096, 12, 20)
    assert buffer.pages.entry_bytes == 16
    assert buffer.view(buffer.pages, (3,), torch.float32).stride() == (4, 1)
    with pytest.raises(KdalabError, match="does not fit an entry"):
        buffer.view(buffer.pages, (5,), torch.float32)


class BufferMachine(RuleBasedStateMachine):
    """Whatever is taken, given back, moved and gated: every owner reads what it wrote."""

    @initialize(lazy=st.booleans(), n_pages=st.integers(2, 20), n_states=st.integers(1, 6))
    def start(self, lazy: bool, n_pages: int, n_states: int) -> None:
        self.buffer, self.active, self.latents = pools(n_pages, n_states, lazy=lazy)
        self.states: dict[int, float] = {}
        self.pages: dict[int, float] = {}
        self.value = 0.0
        self.gate: Any = None

    @rule()
    def take_state(self) -> None:
        self.value += 1
        could = self.active.slots.n_free
        try:
            self.states[filled(self.active, "A", self.value)] = self.value
            assert could > 0
        except OutOfSlotsError:
            assert could == 0

    @rule(count=st.integers(1, 4))
    def take_pages(self, count: int) -> None:
        could = self.latents.slots.n_free
        try:
            taken = self.latents.slots.allocate("A", count)
            assert could >= count
        except OutOfSlotsError:
            assert could < count
            return
        for page in taken:
            self.value += 1
            self.latents.write([page], 0, torch.full((2, 4, 6), self.value), "A")
            self.pages[page] = self.value

    @precondition(lambda self: self.states)
    @rule(data=st.data())
    def free_state(self, data: st.DataObject) -> None:
        slot = data.draw(st.sampled_from(sorted(self.states)))
        self.active.free(slot, "A")
        del self.states[slot]

    @precondition(lambda self: self.pages)
    @rule(data=st.data())
    def free_pages(self, data: st.DataObject) -> None:
        some = data.draw(st.lists(st.sampled_from(sorted(self.pages)), unique=True, min_size=1))
        self.latents.free(some, "A")
        for page in some:
            del self.pages[page]

    @rule(moves=st.integers(0, 3))
    def compact(self, moves: int) -> None:
        assert self.buffer.compact(moves) <= moves

    @rule()
    def open_or_close_the_gate(self) -> None:
        if self.gate is None:
            self.gate = self.buffer.gate()
            self.gate.__enter__()
        else:
            self.gate.__exit__(None, None, None)
            self.gate = None

    @invariant()
    def everyone_reads_what_they_wrote(self) -> None:
        if not hasattr(self, "buffer"):
            return
        self.buffer.check()
        for slot, value in self.states.items():
            assert held(self.active, slot) == value
        for page, value in self.pages.items():
            assert bool((self.latents.gather([page], 4) == value).all())
        used = len(self.states) * STATE + len(self.pages) * PAGE
        holes = self.buffer.states.n_holes * STATE + self.buffer.pages.n_holes * PAGE
        edge = self.buffer.pages.first * PAGE
        top = self.buffer.states.rows * STATE
        assert edge + used + holes + self.buffer.gap == top  # conservation, in bytes


BufferMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestBufferMachine = BufferMachine.TestCase
