"""Slots change hands without a copy, and a request's slots are all counted before it starts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from engine_cases import (
    SHARED,
    TINY,
    assert_nothing_leaks,
    cached_states,
    engine,
    of_type,
    tail,
    tinier_model,
    worst,
)

from kdalab.engine import Faults, Phase, Request, Start, copies, room
from kdalab.engine import events as ev
from kdalab.engine.strategy import Strategy, held_slots, slots_per_request
from kdalab.errors import KdalabError

DONATING = ["extra_buffer", "extra_buffer_lazy"]


def test_a_request_needs_3_slots_4_lazily_5_with_overlap() -> None:
    assert slots_per_request(Strategy.COPY) == 3
    assert slots_per_request(Strategy.LAZY) == 4
    assert slots_per_request(Strategy.EXTRA_BUFFER) == 5
    assert slots_per_request(Strategy.EXTRA_BUFFER, overlap=False) == 4
    assert [held_slots(s) for s in Strategy] == [1, 3, 2]


@pytest.mark.parametrize("how", DONATING)
def test_a_donated_slot_becomes_the_checkpoint_where_it_is(how: str) -> None:
    e = engine(strategy=how)
    e.submit(SHARED, 1)
    e.run()
    donated = of_type(e, ev.Donated)
    assert [x.boundary for x in donated] == [64, 128, 192]
    assert not of_type(e, ev.Snapshotted)
    assert {x.boundary: x.slot for x in donated} == cached_states(e)
    for boundary, slot in cached_states(e).items():
        recurrent, conv, _ = TINY.states(SHARED[:boundary])
        assert torch.equal(e.checkpoints.read(slot)[0], recurrent)
        assert torch.equal(e.checkpoints.read(slot)[1], conv)
    b = e.submit(SHARED + tail(1), 3)
    e.run()
    assert b.restore == 192
    assert worst(b) == 0
    assert b.generated == TINY.greedy(b.tokens, 3)
    assert_nothing_leaks(e)


def test_a_donation_touches_no_byte_of_the_slot() -> None:
    e = engine(strategy="extra_buffer", poison=False, chunk_tokens=64)
    r = e.submit(SHARED, 1)
    e.step()
    slot = of_type(e, ev.Donated)[0].slot
    where = e.active.recurrent[slot].data_ptr()
    assert e.checkpoints.recurrent[slot].data_ptr() == where
    version = e.active.recurrent._version
    e.checkpoints.slots.transfer([slot], "cache", r.name)
    e.checkpoints.adopt(slot, 64, r.name)
    assert e.active.recurrent._version == version


@pytest.mark.parametrize("how", DONATING)
def test_the_forward_after_a_donation_reads_from_the_locked_checkpoint(how: str) -> None:
    e = engine(strategy=how, chunk_tokens=64, placement="every:64")
    r = e.submit(SHARED, 1)
    e.step()
    assert r.source_slot == cached_states(e)[64]
    assert r.active_slot != r.source_slot
    assert e.cache.evictable_states == 0  # nobody can take it before it has been read
    assert torch.equal(copies.read_state(e, r)[0], TINY.states(SHARED[:64])[0])
    before = e.checkpoints.read(r.source_slot)
    source = r.source_slot
    e.step()
    assert torch.equal(e.checkpoints.read(source)[0], before[0])
    assert torch.equal(e.checkpoints.read(source)[1], before[1])
    e.run()


def test_a_state_that_is_in_the_tree_already_is_not_donated_twice() -> None:
    e = engine(strategy="extra_buffer", n_active=3, n_checkpoints=12, max_running=2)
    a, b = e.submit(SHARED[:100], 2), e.submit(SHARED[:100], 2)
    e.run()
    assert len(of_type(e, ev.Donated)) == 1
    assert [x.state_existed for x in of_type(e, ev.Inserted)] == [False, True]
    assert worst(a) == worst(b) == 0
    assert_nothing_leaks(e)


def test_lazily_a_spare_is_taken_just_before_it_is_needed() -> None:
    e = engine(strategy="extra_buffer_lazy", chunk_tokens=64)
    r = e.submit(SHARED, 1)
    e.step()
    assert len(r.slots) == 1  # it went on in its spare, and has taken no other yet
    e.step()
    assert [x.name for x in e.events if x.name in ("SpareTaken", "Donated")] == [
        "Donated",
        "SpareTaken",
        "Donated",
    ]
    eager = engine(strategy="extra_buffer", chunk_tokens=64)
    r = eager.submit(SHARED, 1)
    eager.step()
    assert len(r.slots) == 3


def test_a_boundary_without_a_spare_is_skipped_and_the_next_is_not() -> None:
    e = engine(
        strategy="extra_buffer_lazy", n_active=2, n_checkpoints=2, chunk_tokens=64,
        max_running=1, check_every_step=False,  # slots and a lease are held by hand below
    )  # fmt: skip
    r = e.submit(SHARED, 1)
    e.step()
    hold = e.cache.acquire(e.cache.lookup(r.key))
    hostages = e.active.slots.allocate("somebody", e.active.slots.n_free)
    e.step()
    assert [x.boundary for x in of_type(e, ev.SnapshotSkipped)] == [128]
    for slot in hostages:
        e.active.free(slot, "somebody")
    e.give_back(e.cache.release(hold), "", "a test")
    e.run()
    assert [x.boundary for x in of_type(e, ev.Donated)] == [64, 192]
    assert worst(r) == 0
    assert_nothing_leaks(e)


@pytest.mark.parametrize("how", DONATING)
def test_a_pool_smaller_than_one_request_needs_is_refused_with_the_sum(how: str) -> None:
    least = slots_per_request(Strategy(how))
    with pytest.raises(KdalabError, match=rf"1 locked \+ 1 in flight = {least}"):
        engine(strategy=how, n_active=1, n_checkpoints=least - 2)
    e = engine(strategy=how, n_active=1, n_checkpoints=least - 1)
    r = e.submit(SHARED, 1)
    e.run()
    assert worst(r) == 0
    assert of_type(e, ev.Donated)
    assert_nothing_leaks(e)


def test_admission_counts_every_slot_of_every_request() -> None:
    """3 slots a request with unified memory (own, locked, in flight): one short of three
    requests' needs lets two in and no more."""
    total = 3 * slots_per_request(Strategy.LAZY) - 1
    e = engine(strategy="extra_buffer_lazy", n_active=4, n_checkpoints=total - 4, max_running=9)
    for seed in range(3):
        e.submit(SHARED[:64] + tail(seed, 100), 8)
    e.step()
    held = sum(len(r.slots) for r in e.running)
    owed = sum(3 - len(r.slots) for r in e.running)
    assert held + owed <= total
    assert not of_type(e, ev.SnapshotSkipped)
    e.run()
    assert not of_type(e, ev.SnapshotSkipped)
    assert_nothing_leaks(e)


def test_with_2n_slots_and_all_prefixes_locked_none_is_left_for_a_state_on_its_way() -> None:
    """Why 3 and not 2: each of N requests owns a slot and locks the state it came from."""
    for slots, left in ((4, False), (6, True)):
        e = engine(memory="unified", n_active=3, n_checkpoints=5, check_every_step=False)
        prefixes = [tail(seed, 64) for seed in range(2)]
        for prefix in prefixes:
            e.submit(prefix, 0)
        e.run()
        requests = [e.submit(p + tail(9), 2) for p in prefixes]
        holds = [e.cache.acquire(e.cache.lookup(r.key)) for r in requests]
        own = e.active.slots.allocate("requests", 2)
        rest = e.active.slots.allocate("beyond the pool", e.active.slots.n_free - (slots - 4))
        assert e.cache.evictable_states == 0
        assert room.make(e, 0, 1, "", "a test") is left
        for owner, taken in (("requests", own), ("beyond the pool", rest)):
            for slot in taken:
                e.active.free(slot, owner)
        for hold in holds:
            e.give_back(e.cache.release(hold), "", "a test")
        e.run()
        assert_nothing_leaks(e)


@pytest.mark.parametrize("how", ["copy", *DONATING])
@pytest.mark.parametrize("memory", ["split", "unified"])
@pytest.mark.parametrize("when", range(6))
def test_whatever_ends_it_and_whenever_everything_comes_back(
    how: str, memory: str, when: int
) -> None:
    for act in ("abort", "retract"):
        e = engine(strategy=how, memory=memory, chunk_tokens=64, decode_interval=64)
        e.submit(SHARED[:126], 5)
        e.submit(SHARED[:126] + tail(2), 5)
        for _ in range(when):
            e.step()
        for r in list(e.running):
            if act == "abort":
                e.abort(r.name)
                e.abort(r.name)
            else:
                e.retract(r, "on purpose")
        e.say_moves()
        e.check()
        e.run()
        assert_nothing_leaks(e)


def test_an_int8_pool_takes_a_quantised_copy_and_the_donor_is_freed() -> None:
    e = engine(strategy="extra_buffer", checkpoint_dtype="int8", n_active=9, decode_interval=64)
    r = e.submit(SHARED[:120], 12)
    while r.phase is not Phase.DECODE or r.computed < 130:
        e.step()
    donor = r.kept_slot
    assert donor >= 0
    assert e.active.slots.owner(donor) == r.name
    e.run()
    assert e.active.slots.owner(donor) is None
    assert set(cached_states(e)) == {64, 128}
    assert not of_type(e, ev.Donated)
    assert all(0 < x.error < 0.1 for x in of_type(e, ev.Snapshotted))
    assert_nothing_leaks(e)


def test_int8_restores_are_close_and_the_run_that_left_them_is_exact() -> None:
    # Without experts: a router that is nearly undecided turns any small error into a large one.
    model = tinier_model()
    shared = [t % 64 for t in SHARED]
    e = engine(model, checkpoint_dtype="int8")
    a = e.submit(shared, 1)
    e.run()
    assert worst(a, model) == 0
    b = e.submit([*shared, 1, 2, 3], 1)
    e.run()
    assert b.restore == 192
    assert 0 < worst(b, model) < 0.05
    size = e.checkpoints.slot_bytes
    assert [x.bytes for x in of_type(e, ev.CopiedOnWrite)] == [size]
    assert e.active.slot_bytes > size


def test_rounding_inside_the_recurrence_is_worse_than_once_a_snapshot() -> None:
    model = tinier_model()
    shared = [t % 64 for t in SHARED]
    once = engine(model, checkpoint_dtype="int8")
    once.submit(shared[:64], 0)
    once.run()
    b = once.submit(shared[:70], 60)
    once.run()
    inside = engine(model, faults=Faults(quantise_in_recurrence=True))
    c = inside.submit(shared[:70], 60)
    inside.run()
    exact = engine(model)
    d = exact.submit(shared[:70], 60)
    exact.run()
    pairs = zip(b.generated, c.generated, d.generated, strict=True)
    same = next((i for i, three in enumerate(pairs) if len(set(three)) > 1), 60)

    def error(r: Request) -> float:
        """Mean over the steps at which all three have read the same tokens."""
        got, want = torch.stack(r.logits[-60:]), torch.stack(d.logits[-60:])
        return float((got[: same + 1] - want[: same + 1]).abs().mean())

    assert b.restore == 64
    assert same > 5
    assert 0 < error(b) < error(c)
    assert [x.fault for x in of_type(inside, ev.FaultInjected)] == ["quantise_in_recurrence"]
    assert not cached_states(inside)  # what a fault spoils never enters the cache


def test_an_int8_pool_over_its_limit_is_refused_before_it_is_allocated() -> None:
    with pytest.raises(KdalabError, match="would fit"):
        engine(checkpoint_dtype="int8", checkpoint_limit=1000)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"strategy": "direct"}, "use one of copy, extra_buffer, extra_buffer_lazy"),
        ({"checkpoint_dtype": "fp8"}, "use one of native, int8"),
        ({"memory": "shared"}, "use one of split, unified"),
        ({"memory": "unified", "checkpoint_dtype": "int8"}, "an INT8 pool stands beside"),
        ({"decode_interval": 100}, r"interval 100 is not a multiple of lcm\(64, 16\) = 64"),
        ({"decode_interval": 0}, "decode_interval = 0; it must be a whole number of at least 1"),
        ({"draft_tokens": -1}, "it must be 0 or more, a whole number"),
        ({"max_running": 0}, "max_running = 0"),
        ({"compact_moves": 0}, "compact_moves = 0"),
        ({"memory": "unified", "memory_bytes": 10_000}, "holds no|does not hold"),
        ({"drafter": "n-gram"}, "it needs propose"),
        (
            {"strategy": "extra_buffer", "checkpoint_dtype": "int8", "n_active": 2},
            "owns 3 active slots",
        ),
    ],
)
def test_a_config_that_cannot_work_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(KdalabError, match=message):
        engine(**changes)


# -- deferred copies -------------------------------------------------------------------------


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_deferred_copies_may_be_made_in_any_order(order: tuple[int, ...]) -> None:
    e = engine(n_active=4, chunk_tokens=64)
    e.submit(SHARED, 1)
    e.run()
    late = [e.submit(SHARED[:n] + tail(n), 3) for n in (130, 150, 195)]
    e.step()  # one cell's worth of prefill: the others have not begun
    assert sum(r.start is Start.COPY for r in late) == 2
    assert [x.request for x in of_type(e, ev.CopiedOnWrite)] == ["B", "C", "D"]
    for i in order:
        e.settle(late[i].name)
        e.check()
    e.run()
    for r in late:
        assert worst(r) == 0


def test_a_checkpoint_stays_locked_until_its_copy_is_made() -> None:
    e = engine(n_active=4, n_checkpoints=1, chunk_tokens=64)
    e.submit(SHARED[:64], 0)
    e.run()
    first, second = e.submit(tail(9, 200), 0), e.submit(SHARED[:70], 1)
    e.step()
    assert second.start is Start.COPY
    assert of_type(e, ev.SnapshotSkipped)  # the first one found the only slot locked
    assert e.cache.evictable_states == 0
    e.run()
    assert worst(second) == worst(first) == 0


def test_an_abort_before_the_copy_unlocks_the_checkpoint() -> None:
    e = engine(n_active=4, chunk_tokens=64)
    e.submit(SHARED[:64], 0)
    e.run()
    e.submit(tail(9, 200), 0)
    waiting = e.submit(SHARED[:70], 1)
    e.step()
    assert waiting.start is Start.COPY
    e.abort(waiting.name)
    assert e.cache.evictable_states >= 1
    e.run()
    assert_nothing_leaks(e)
