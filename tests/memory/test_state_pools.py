"""Active slots are private and writable, checkpoints shared and frozen; free bytes are poison."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from kdalab.errors import InvariantError, KdalabError, OutOfSlotsError
from kdalab.memory import CACHE, ActivePool, CheckpointPool
from kdalab.spec.checkpoint import Checkpoint

RECURRENT, CONV = (3, 2, 4, 5), (3, 2, 7)


def states(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    return torch.randn(RECURRENT, generator=random), torch.randn(CONV, generator=random)


def bits(pool: ActivePool | CheckpointPool) -> tuple[torch.Tensor, torch.Tensor]:
    """Every byte of the pool as integers, so that NaN can be compared."""
    return pool.recurrent.view(torch.int32).clone(), pool.conv.view(torch.int32).clone()


def same(a: tuple[torch.Tensor, ...], b: tuple[torch.Tensor, ...]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def is_poison(pool: ActivePool | CheckpointPool, slot: int) -> bool:
    return bool(pool.recurrent[slot].isnan().all() and pool.conv[slot].isnan().all())


@pytest.fixture
def active() -> ActivePool:
    return ActivePool(4, RECURRENT, CONV)


@pytest.fixture
def checkpoints() -> CheckpointPool:
    return CheckpointPool(3, RECURRENT, CONV)


def filled(active: ActivePool, owner: str, seed: int) -> int:
    slot = active.allocate(owner)
    active.write(slot, *states(seed), owner)
    return slot


# -- active slots ----------------------------------------------------------------------------


def test_bytes_are_those_of_the_tensors() -> None:
    for dtype, size in ((torch.float32, 4), (torch.bfloat16, 2)):
        for kind in (ActivePool, CheckpointPool):
            pool = kind(5, RECURRENT, CONV, dtype)
            assert pool.slot_bytes == 3 * 2 * 4 * 5 * 4 + 3 * 2 * 7 * size
            assert pool.nbytes == 5 * pool.slot_bytes
            assert (pool.recurrent.dtype, pool.conv.dtype) == (torch.float32, dtype)


def test_a_slot_is_poison_until_it_is_written_and_after_it_is_freed(active: ActivePool) -> None:
    assert all(is_poison(active, i) for i in range(4))
    slot = active.allocate("A")
    assert is_poison(active, slot)
    assert not active.is_finite(slot)
    active.write(slot, *states(1), "A")
    assert active.is_finite(slot)
    active.free(slot, "A")
    assert is_poison(active, slot)
    again = active.allocate("B")
    assert again == slot
    assert is_poison(active, again)


def test_clear_gives_the_state_before_the_first_token(active: ActivePool) -> None:
    slot = filled(active, "A", 1)
    active.clear(slot, "A")
    assert same(active.read(slot), (torch.zeros(RECURRENT), torch.zeros(CONV)))


def test_without_poison_freed_bytes_stay_as_they_are(active: ActivePool) -> None:
    active.fill = None
    slot = filled(active, "A", 1)
    active.free(slot, "A")
    assert same((active.recurrent[slot], active.conv[slot]), states(1))


def test_write_clear_and_free_leave_every_other_slot_bit_for_bit(active: ActivePool) -> None:
    mine, other = filled(active, "A", 1), filled(active, "B", 2)
    active.recurrent[other, 0, 0, 0, 0] = float("nan")  # poison of a neighbour counts too
    for act in (
        lambda: active.write(mine, *states(3), "A"),
        lambda: active.clear(mine, "A"),
        lambda: active.free(mine, "A"),
    ):
        before = bits(active)
        act()
        after = bits(active)
        rest = [i for i in range(4) if i != mine]
        assert same(tuple(t[rest] for t in before), tuple(t[rest] for t in after))
        assert not torch.equal(before[0][mine], after[0][mine])


def test_what_is_read_cannot_be_written_through(active: ActivePool) -> None:
    slot = filled(active, "A", 1)
    for tensor in active.read(slot):
        tensor.fill_(7)
    assert same(active.read(slot), states(1))


def test_nobody_but_the_owner_changes_a_slot(active: ActivePool) -> None:
    slot = filled(active, "A", 1)
    before = bits(active)
    for who in ("B", CACHE, ""):
        for act in (
            lambda who=who: active.write(slot, *states(2), who),
            lambda who=who: active.clear(slot, who),
            lambda who=who: active.free(slot, who),
        ):
            with pytest.raises(KdalabError, match=f"slot {slot} belongs to A"):
                act()
    assert same(bits(active), before)
    assert active.slots.owner(slot) == "A"
    free = next(i for i in range(4) if active.slots.owner(i) is None)
    with pytest.raises(KdalabError, match="belongs to nobody"):
        active.write(free, *states(2), "A")
    active.slots.transfer([slot], "A", CACHE)
    with pytest.raises(KdalabError, match="belongs to cache"):
        active.write(slot, *states(2), "A")
    assert same(bits(active), before)


@pytest.mark.parametrize("slot", [-1, 4])
def test_a_slot_number_out_of_range_is_refused_and_never_wraps(
    active: ActivePool, slot: int
) -> None:
    for i in range(4):
        filled(active, "A", i)
    before = bits(active)
    acts: tuple[Callable[[], object], ...] = (
        lambda: active.write(slot, *states(2), "A"),
        lambda: active.clear(slot, "A"),
        lambda: active.free(slot, "A"),
        lambda: active.read(slot),
    )
    for act in acts:
        with pytest.raises(KdalabError, match="out of range"):
            act()
    assert same(bits(active), before)


def test_a_state_that_does_not_fit_is_refused_and_neither_half_is_written(
    active: ActivePool,
) -> None:
    slot = filled(active, "A", 1)
    before = bits(active)
    recurrent, conv = states(2)
    for pair in (
        (recurrent[:1], conv),  # would be spread over all layers
        (recurrent, conv[:, :1]),
        (recurrent, torch.tensor(1.0)),
        (recurrent.double(), conv),  # would be rounded
        (recurrent, conv.half()),
    ):
        with pytest.raises(KdalabError, match="a slot holds"):
            active.write(slot, *pair, "A")
        assert same(bits(active), before)


# -- checkpoints -----------------------------------------------------------------------------


def test_store_and_load_copy_both_states_exactly(
    active: ActivePool, checkpoints: CheckpointPool
) -> None:
    a, b = filled(active, "A", 1), active.allocate("B")
    checkpoint = checkpoints.store(active, a, 128, "A")
    assert checkpoint.boundary == 128 == checkpoints.boundary(checkpoint.slot)
    assert checkpoints.slots.owner(checkpoint.slot) == CACHE
    checkpoints.load(checkpoint, active, b, "B")
    assert same(active.read(b), states(1))
    assert same(active.read(a), states(1))
    checkpoints.check()


def test_a_checkpoint_never_changes_whatever_happens_to_active_slots(
    active: ActivePool, checkpoints: CheckpointPool
) -> None:
    a = filled(active, "A", 1)
    checkpoint = checkpoints.store(active, a, 64, "A")
    frozen = bits(checkpoints)
    active.write(a, *states(2), "A")
    later = checkpoints.store(active, a, 128, "A")
    b = active.allocate("B")
    checkpoints.load(checkpoint, active, b, "B")
    active.write(b, *states(3), "B")
    active.clear(b, "B")
    active.free(b, "B")
    active.free(a, "A")
    for tensor in checkpoints.read(checkpoint.slot):
        tensor.fill_(7)
    assert torch.equal(bits(checkpoints)[0][checkpoint.slot], frozen[0][checkpoint.slot])
    assert torch.equal(bits(checkpoints)[1][checkpoint.slot], frozen[1][checkpoint.slot])
    assert same(checkpoints.read(later.slot), states(2))
    assert not hasattr(checkpoints, "write")


def test_a_state_of_another_boundary_is_not_loaded(
    active: ActivePool, checkpoints: CheckpointPool
) -> None:
    a, b = filled(active, "A", 1), filled(active, "B", 2)
    checkpoint = checkpoints.store(active, a, 64, "A")
    for wrong in (checkpoint._replace(boundary=128), Checkpoint(checkpoint.slot + 1, 64)):
        with pytest.raises(InvariantError, match=f"not of {wrong.boundary}"):
            checkpoints.load(wrong, active, b, "B")
    checkpoints.free([checkpoint.slot])
    with pytest.raises(InvariantError, match="holds a state of None tokens, not of 64"):
        checkpoints.load(checkpoint, active, b, "B")
    assert same(active.read(b), states(2))


@pytest.mark.parametrize("wrapped", [-1, 3])
def test_a_checkpoint_number_never_wraps_round(active: ActivePool, wrapped: int) -> None:
    checkpoints = CheckpointPool(1, RECURRENT, CONV)
    a, b = filled(active, "A", 1), filled(active, "B", 2)
    checkpoints.store(active, a, 64, "A")
    with pytest.raises(KdalabError, match="out of range"):
        checkpoints.load(Checkpoint(wrapped, 64), active, b, "B")
    assert same(active.read(b), states(2))


def test_a_checkpoint_is_loaded_only_into_ones_own_slot(
    active: ActivePool, checkpoints: CheckpointPool
) -> None:
    a, b = filled(active, "A", 1), filled(active, "B", 2)
    checkpoint = checkpoints.store(active, a, 64, "A")
    with pytest.raises(KdalabError, match="belongs to B; A must not write it"):
        checkpoints.load(checkpoint, active, b, "A")
    assert same(active.read(b), states(2))


@pytest.mark.parametrize("half", ["recurrent", "conv", "both"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_poison_is_not_frozen_and_takes_no_slot(
    active: ActivePool, checkpoints: CheckpointPool, half: str, value: float
) -> None:
    a = filled(active, "A", 1)
    if half in ("recurrent", "both"):
        active.recurrent[a, 2, 1, 3, 4] = value
    if half in ("conv", "both"):
        active.conv[a, 2, 1, 6] = value
    before = bits(checkpoints)
    with pytest.raises(KdalabError, match="holds no finite state"):
        checkpoints.store(active, a, 64, "A")
    assert checkpoints.slots.n_free == 3
    assert same(bits(checkpoints), before)


def test_only_the_owner_freezes_a_state_and_a_full_pool_says_so(
    active: ActivePool, checkpoints: CheckpointPool
) -> None:
    a = filled(active, "A", 1)
    with pytest.raises(KdalabError, match="does not belong to B"):
        checkpoints.store(active, a, 64, "B")
    assert checkpoints.slots.n_free == 3
    for i in range(3):
        checkpoints.store(active, a, 64 * i, "A")
    before = bits(checkpoints)
    with pytest.raises(OutOfSlotsError, match="1 checkpoints wanted, 0 of 3 are free"):
        checkpoints.store(active, a, 999, "A")
    assert same(bits(checkpoints), before)
    checkpoints.check()


def test_freed_checkpoints_are_poison_and_their_neighbours_untouched(
    active: ActivePool, checkpoints: CheckpointPool
) -> None:
    a = filled(active, "A", 1)
    first, second, third = (checkpoints.store(active, a, n, "A").slot for n in (64, 128, 192))
    with pytest.raises(KdalabError, match="named twice"):
        checkpoints.free([first, first])
    assert checkpoints.boundary(first) == 64
    checkpoints.free([first, third])
    assert is_poison(checkpoints, first)
    assert is_poison(checkpoints, third)
    assert same(checkpoints.read(second), states(1))
    assert [checkpoints.boundary(s) for s in (first, second, third)] == [None, 128, None]
    with pytest.raises(KdalabError, match="belongs to nobody"):
        checkpoints.free([second, third])
    assert same(checkpoints.read(second), states(1))
    assert checkpoints.boundary(second) == 128
    checkpoints.check()


def test_check_sees_a_slot_whose_boundary_and_owner_disagree(
    active: ActivePool, checkpoints: CheckpointPool
) -> None:
    slot = checkpoints.store(active, filled(active, "A", 1), 64, "A").slot
    checkpoints._boundary[slot] = None
    with pytest.raises(InvariantError, match="owner cache, but its boundary is None"):
        checkpoints.check()
