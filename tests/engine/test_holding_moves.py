"""While somebody holds the gate no slot moves, whatever runs; afterwards the holes are filled."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from engine_cases import (
    SHARED,
    assert_nothing_leaks,
    engine,
    of_type,
    tail,
    tinier_model,
)

from kdalab.engine import events as ev
from kdalab.engine import fold
from kdalab.errors import KdalabError
from kdalab.memory.gate import MoveGate

UNIFIED: dict[str, Any] = {"memory": "unified", "n_active": 3, "n_checkpoints": 3, "n_pages": 30}


@pytest.mark.parametrize("lazy", [False, True])
def test_an_address_is_good_until_its_hold_is_released(lazy: bool) -> None:
    model = tinier_model()
    # Without the check after every step: a lease is held by hand below.
    e = engine(model, **UNIFIED, lazy_compaction=lazy, check_every_step=False)
    e.submit([t % 64 for t in SHARED[:130]], 0)
    e.run()
    e.say_moves()
    buffer = e.buffer
    assert buffer is not None
    lease = e.cache.acquire(e.cache.lookup(e.requests["A"].key))  # what is sent stays cached
    assert lease.state is not None
    slot = lease.state.slot
    before = e.checkpoints.read(slot)
    with e.hold_moves("a transfer to a decode process"), e.hold_moves("another"):
        assert e.gate.holders == ("a transfer to a decode process", "another")
        at = buffer.states.address(slot)
        seen = len(e.events)
        for seed in range(6):
            e.submit([t % 64 for t in tail(seed, 100 + seed)], 2)
        e.run()
        assert not of_type_since(e, seen)
        assert buffer.states.address(slot) == at
    assert not e.gate.is_held
    with pytest.raises(KdalabError, match="while a gate is held"):
        buffer.states.address(slot)
    after = e.checkpoints.read(slot)
    assert torch.equal(before[0], after[0])
    assert torch.equal(before[1], after[1])
    e.cache.release(lease)
    buffer.compact()
    assert buffer.states.n_holes == buffer.pages.n_holes == 0
    assert_nothing_leaks(e)
    assert fold(e.events, e.empty_view()) == e.view()


def of_type_since(e: Any, first: int) -> list[Any]:
    e.say_moves()
    return [x for x in e.events[first:] if isinstance(x, ev.Moved)]


def test_with_split_memory_a_hold_costs_nothing() -> None:
    e = engine()
    hold = e.hold_moves("a transfer")
    e.submit(SHARED, 2)
    e.run()
    hold.release()
    assert not of_type(e, ev.Moved)
    assert_nothing_leaks(e)


def test_a_hold_is_released_once() -> None:
    opened: list[int] = []
    gate = MoveGate(lambda: opened.append(1))
    first, second = gate.hold("a"), gate.hold("b")
    first.release()
    assert (gate.is_held, gate.holders, opened) == (True, ("b",), [])
    with pytest.raises(KdalabError, match="the hold of a was released already"):
        first.release()
    assert gate.holders == ("b",)
    second.release()
    assert (gate.is_held, opened) == (False, [1])
    with pytest.raises(KdalabError, match="needs the name"):
        gate.hold("")
