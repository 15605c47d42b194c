"""INT8 checkpoints: one rounding a snapshot, the conv state untouched, the bytes as estimated."""

from __future__ import annotations

import pytest
import torch

from kdalab.errors import InvariantError, KdalabError, OutOfSlotsError
from kdalab.memory import CACHE, ActivePool, CheckpointPool, Int8CheckpointPool
from kdalab.memory.int8 import FREED, dequantise, int8_slot_bytes, quantise
from kdalab.spec.checkpoint import Checkpoint

RECURRENT, CONV = (3, 2, 4, 5), (3, 2, 7)  # V = 4, K = 5: a wrong axis has a wrong shape


def states(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    channels = torch.logspace(-4, 3, 5)  # key channels of very different magnitude
    return torch.randn(RECURRENT, generator=random) * channels, torch.randn(CONV, generator=random)


@pytest.fixture
def active() -> ActivePool:
    return ActivePool(4, RECURRENT, CONV)


@pytest.fixture
def pool() -> Int8CheckpointPool:
    return Int8CheckpointPool(3, RECURRENT, CONV)


def filled(active: ActivePool, owner: str, seed: int) -> int:
    slot = active.allocate(owner)
    active.write(slot, *states(seed), owner)
    return slot


def test_the_scale_is_the_channel_maximum_over_v() -> None:
    state, _ = states(1)
    _, scale = quantise(state)
    assert scale.shape == (3, 2, 1, 5)
    for layer in range(3):
        for head in range(2):
            for k in range(5):
                top = max(abs(float(state[layer, head, v, k])) for v in range(4))
                assert float(scale[layer, head, 0, k]) == pytest.approx(top / 127, rel=1e-6)


@pytest.mark.parametrize("scale_dtype", [torch.float32, torch.bfloat16])
def test_every_value_is_off_by_at_most_half_a_step(scale_dtype: torch.dtype) -> None:
    state, _ = states(2)
    q, scale = quantise(state, scale_dtype)
    error = (dequantise(q, scale, torch.float32) - state).abs()
    # A scale rounded down to bf16 also clips the channel's maximum, by 127 times its own error.
    clipped = 127 * state.abs().amax(-2, keepdim=True) / 127 * 2**-8
    allowed = 0.5 * scale.float() * 1.001
    if scale_dtype is torch.bfloat16:
        allowed = allowed + clipped
    assert bool((error <= allowed).all())
    assert scale.dtype == scale_dtype


def test_the_scale_is_rounded_before_it_divides() -> None:
    state = torch.zeros(4, 5)
    state[0] = 100.0  # 100 / 127 is no bf16 number
    state[1] = 50.1
    q, scale = quantise(state, torch.bfloat16)
    assert int(q[1, 0]) == round(50.1 / float(scale[0, 0]))
    assert float(scale[0, 0]) != 100 / 127


def test_ties_go_to_even_and_the_range_is_symmetric() -> None:
    state = torch.tensor([[127.0], [-127.0], [0.5], [1.5], [2.5], [-0.5]])
    q, scale = quantise(state)
    assert float(scale) == 1.0
    assert q.flatten().tolist() == [127, -127, 0, 2, 2, 0]


def test_a_state_of_zeros_reads_back_as_zeros(active: ActivePool, pool: Int8CheckpointPool) -> None:
    slot = active.allocate("A")
    active.clear(slot, "A")
    checkpoint = pool.store(active, slot, 64, "A")
    assert pool.last_error == 0.0
    assert not pool.read(checkpoint.slot)[0].any()
    assert bool(pool.scale[checkpoint.slot].isfinite().all())


def test_the_conv_state_is_untouched_and_the_error_is_reported(
    active: ActivePool, pool: Int8CheckpointPool
) -> None:
    a, b = filled(active, "A", 1), active.allocate("B")
    checkpoint = pool.store(active, a, 128, "A")
    assert pool.slots.owner(checkpoint.slot) == CACHE
    pool.load(checkpoint, active, b, "B")
    mine, original = active.read(b), states(1)
    assert torch.equal(mine[1], original[1])
    assert float((mine[0] - original[0]).abs().max()) == pool.last_error > 0
    assert torch.equal(active.read(a)[0], original[0])  # the donor is only read
    pool.check()


def test_store_and_load_again_changes_nothing_more(
    active: ActivePool, pool: Int8CheckpointPool
) -> None:
    a, b = filled(active, "A", 3), active.allocate("B")
    first = pool.store(active, a, 64, "A")
    pool.load(first, active, b, "B")
    second = pool.store(active, b, 64, "B")
    assert torch.equal(pool.q[first.slot], pool.q[second.slot])
    assert pool.last_error < 1e-4 * float(states(3)[0].abs().max())


def test_the_estimate_is_what_is_allocated_and_is_checked_first() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        one = int8_slot_bytes(RECURRENT, CONV, dtype)
        pool = Int8CheckpointPool(5, RECURRENT, CONV, dtype, limit=5 * one)
        assert pool.nbytes == 5 * one == sum(t.nbytes for t in (pool.q, pool.scale, pool.conv))
        assert pool.slot_bytes == one
        with pytest.raises(KdalabError, match=rf"are available. {(5 * one - 1) // one} would fit"):
            Int8CheckpointPool(5, RECURRENT, CONV, dtype, limit=5 * one - 1)
    native = CheckpointPool(5, (20, 32, 128, 128), (20, 3, 4)).slot_bytes
    assert native / int8_slot_bytes((20, 32, 128, 128), (20, 3, 4)) > 3.8


def test_kimi_linear_takes_the_bytes_of_the_size_page() -> None:
    shape = (20, 32, 128, 128), (20, 3, 3 * 32 * 128), torch.bfloat16
    assert int8_slot_bytes(*shape) == 12_288_000


def test_half_precision_scales_are_refused() -> None:
    with pytest.raises(KdalabError, match=r"below 3.8e-6 would read back as 0"):
        quantise(torch.ones(4, 5), torch.float16)


def test_poison_is_not_frozen_and_takes_no_slot(
    active: ActivePool, pool: Int8CheckpointPool
) -> None:
    slot = active.allocate("A")
    with pytest.raises(KdalabError, match="holds no finite state"):
        pool.store(active, slot, 64, "A")
    with pytest.raises(KdalabError, match="does not belong to B"):
        pool.store(active, filled(active, "A", 1), 64, "B")
    assert pool.slots.n_free == 3


def test_freed_slots_are_poison_and_a_stray_write_is_seen(
    active: ActivePool, pool: Int8CheckpointPool
) -> None:
    a = filled(active, "A", 1)
    slots = [pool.store(active, a, 64 * n, "A").slot for n in (1, 2, 3)]
    with pytest.raises(OutOfSlotsError, match="0 of 3 are free"):
        pool.store(active, a, 256, "A")
    pool.free(slots[:2])
    assert pool.free_is_poisoned()
    assert bool((pool.q[slots[0]] == FREED).all())
    assert pool.boundary(slots[2]) == 192
    for tensor, value in ((pool.q, 0), (pool.scale, 1.0), (pool.conv, 1.0)):
        before = tensor[slots[1]].clone()
        tensor[slots[1]].fill_(value)
        assert not pool.free_is_poisoned()
        tensor[slots[1]] = before
    with pytest.raises(InvariantError, match="holds a state of None tokens"):
        pool.load(Checkpoint(slots[0], 64), active, a, "A")
    assert torch.equal(active.read(a)[0], states(1)[0])


def test_a_donor_is_not_taken_over_as_it_stands(
    active: ActivePool, pool: Int8CheckpointPool
) -> None:
    with pytest.raises(KdalabError, match="store a quantised copy and free the slot"):
        pool.adopt(filled(active, "A", 1), 64, "A")
