"""Checkpoints: INT8 against float64 arithmetic, native copies bit for bit, neighbours untouched."""

import numpy as np
import pytest
import torch
from kernel_cases import rel_rms
from pool_cases import BACKENDS, POISON, same_bits, states, strided

from kdalab_kernels import (
    CheckpointBuffers,
    QuantizedStates,
    dequantize_states,
    load_checkpoints_inplace,
    quantize_states,
    store_checkpoints_inplace,
)

SHAPE = (2, 3, 20, 12)  # layers, heads, V, K


def conv(n, L=2, W=4, D=10, dtype=torch.bfloat16):
    return torch.randn(n, L, W - 1, D).to(dtype)


def empty_pool(n, kind, shape=SHAPE, dtype=torch.float32, conv_dtype=torch.bfloat16):
    L, HV, _, K = shape
    kept = torch.full((n, L, 3, 10), POISON, dtype=conv_dtype)
    if kind == "native":
        return CheckpointBuffers(torch.full((n, *shape), POISON, dtype=dtype), kept)
    scale = torch.full((n, L, HV, 1, K), POISON, dtype=kind)
    return CheckpointBuffers(
        QuantizedStates(torch.full((n, *shape), 99, dtype=torch.int8), scale), kept
    )


def tensors(pool):
    flat = pool.states if isinstance(pool.states, QuantizedStates) else (pool.states,)
    return (*flat, pool.conv)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("scale_dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_quantising_follows_numpys_rounding_of_the_stored_scale(backend, scale_dtype, dtype):
    S = states(3, 2, 20, 12, dtype=dtype)
    got = quantize_states(S, scale_dtype, backend=backend)
    assert got.scale.dtype == scale_dtype
    assert got.scale.shape == (3, 2, 1, 12)
    x, scale = S.float().numpy(), got.scale.float().numpy()
    exact = np.maximum(np.abs(x.astype(np.float64)).max(-2, keepdims=True), 1e-8) / 127
    step = {torch.float32: 2.0**-23, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-10}[scale_dtype]
    assert (
        np.abs(scale - exact) <= exact * step + (2.0**-24 if scale_dtype == torch.float16 else 0)
    ).all()
    expected = np.clip(np.rint(x / scale), -127, 127)  # numpy rounds half to even as well
    assert np.array_equal(got.q.numpy(), expected.astype(np.int8))
    back = dequantize_states(got, backend=backend)
    assert torch.equal(back, got.q.float() * got.scale.float())
    assert (np.abs(back.numpy() - x) <= 0.51 * scale).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_half_way_cases_round_to_even(backend):
    S = torch.tensor([127.0, 0.5, 1.5, 2.5, -0.5, -1.5, 63.5])[:, None]
    q, scale = quantize_states(S, backend=backend)
    assert scale.item() == 1.0
    assert q[:, 0].tolist() == [127, 0, 2, 2, 0, -2, 64]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("scale_dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_zeros_read_back_as_zeros(backend, scale_dtype):
    S = torch.zeros(2, 8, 4)
    S[:, :, 1] = 3.0
    q, scale = quantize_states(S, scale_dtype, backend=backend)
    assert scale.isfinite().all()
    back = dequantize_states(QuantizedStates(q, scale), backend=backend)
    assert torch.equal(back[:, :, [0, 2, 3]], torch.zeros(2, 8, 3))


@pytest.mark.parametrize("backend", BACKENDS)
def test_tiny_channels_survive_and_a_half_scale_refuses_what_it_would_lose(backend):
    for amax in (1e-3, 1e-5, 4e-6, 1e-6, 1e-7):
        S = torch.tensor([amax, -amax / 2])[:, None]
        for scale_dtype, error in ((torch.float32, 0.005), (torch.bfloat16, 0.005)):
            back = dequantize_states(quantize_states(S, scale_dtype), backend=backend)
            assert (back - S).abs().max() <= error * amax
        half = quantize_states(S, torch.float16, backend=backend)
        assert half.q.abs().max() >= 1
        # resolution falls, but nothing is clamped: at most half of float16's smallest step is lost
        error = (dequantize_states(half) - S).abs().max()
        assert error <= max(0.51 * half.scale.float().max(), 2.0**-25)
    with pytest.raises(ValueError, match=r"below 3e-08.*given one of 1e-08; use a float32"):
        quantize_states(torch.tensor([[1e-8], [0.0]]), torch.float16, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", ["native", torch.float32, torch.float16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_store_and_load_move_the_named_slots_and_nothing_else(backend, kind, dtype):
    S, C = states(5, *SHAPE, dtype=dtype), conv(5)
    S[[0, 4]], C[[0, 4]] = POISON, POISON  # free slots
    before = S.clone(), C.clone()
    pool = empty_pool(6, kind, dtype=dtype)
    untouched = [t.clone() for t in tensors(pool)]
    store_checkpoints_inplace(S, C, pool, [3, -1, 1], [0, -1, 4], backend=backend)
    assert same_bits(S, before[0])
    assert same_bits(C, before[1])
    for now, then in zip(tensors(pool), untouched, strict=True):
        assert same_bits(now[[1, 2, 3, 5]], then[[1, 2, 3, 5]])
    assert same_bits(pool.conv[[0, 4]], C[[3, 1]])

    active, active_conv = torch.full_like(S, POISON), torch.full_like(C, POISON)
    slots = torch.tensor([4, 4, 0]), torch.tensor([2, 0, 3], dtype=torch.int32)
    load_checkpoints_inplace(pool, active, active_conv, *slots, backend=backend)
    assert same_bits(active[[1, 4]], torch.full_like(S, POISON)[[1, 4]])
    assert same_bits(active_conv[[2, 0, 3]], C[[1, 1, 3]])
    assert same_bits(active[0], active[2])
    if kind == "native":
        assert same_bits(active[[2, 0, 3]], S[[1, 1, 3]])
    else:
        error = (active[[2, 3]].float() - S[[1, 3]].float()).abs()
        largest = S[[1, 3]].float().abs().amax(-2, keepdim=True)
        assert (error <= largest * (0.51 / 127 + (2**-8 if dtype == torch.bfloat16 else 0))).all()
        assert rel_rms(active[2], S[1]) < 1e-2


def test_backends_store_the_same_bits():
    S, C = states(3, *SHAPE), conv(3)
    for kind in ("native", torch.float32, torch.float16, torch.bfloat16):
        pools = [empty_pool(2, kind) for _ in BACKENDS]
        for pool, backend in zip(pools, BACKENDS, strict=True):
            store_checkpoints_inplace(S, C, pool, [2, 0], [1, 0], backend=backend)
        for a, b in zip(*map(tensors, pools), strict=True):
            assert same_bits(a, b)


def test_a_slot_does_not_depend_on_the_others():
    S, C = states(4, 2, 5, 60, 100), conv(4)
    shape = S.shape[1:]
    together, alone = empty_pool(4, torch.float32, shape), empty_pool(4, torch.float32, shape)
    store_checkpoints_inplace(S, C, together, range(4), range(4))
    for slot in range(4):
        store_checkpoints_inplace(S, C, alone, [slot], [slot])
    for a, b in zip(tensors(together), tensors(alone), strict=True):
        assert same_bits(a, b)


def test_pools_may_be_views():
    S, C = states(3, *SHAPE), conv(3)
    pool, packed = empty_pool(3, torch.float32), empty_pool(3, torch.float32)
    view = CheckpointBuffers(
        QuantizedStates(strided(pool.states.q.float()).to(torch.int8), strided(pool.states.scale)),
        strided(pool.conv),
    )
    store_checkpoints_inplace(strided(S), strided(C), view, [1, 2], [2, 0])
    store_checkpoints_inplace(S, C, packed, [1, 2], [2, 0])
    for a, b in zip(tensors(view), tensors(packed), strict=True):
        assert same_bits(a[[0, 2]], b[[0, 2]])


BAD_SLOTS = [
    (([0, 5], [0, 1]), r"src_slots: .*0 to 2 or -1 .*given 5 in row 1"),
    (([0, -2], [0, 1]), r"src_slots: .*given -2 in row 1"),
    (([0, 1], [0, 4]), r"dst_slots: .*0 to 3 or -1 .*given 4 in row 1"),
    (
        ([0, 1], [2, 2]),
        r"dst_slots: expected every slot at most once, given slot 2 in rows 0 and 1",
    ),
    (([0, -1], [2, 3]), r"-1 in both or in neither, given -1 and 3 in row 1"),
    (([0, 1], [2]), r"dst_slots: expected shape \[N\] = \[2\], given \[1\]"),
    (([0.5], [2]), r"src_slots: expected integers \[N\], given 0.5"),
    ((torch.zeros(1), [2]), r"src_slots: expected dtype int32 or int64"),
    ((3, [2]), r"src_slots: expected integers"),
]


@pytest.mark.parametrize(("slots", "message"), BAD_SLOTS, ids=[m for _, m in BAD_SLOTS])
@pytest.mark.parametrize("backend", BACKENDS)
def test_bad_slots_are_refused_before_anything_is_written(backend, slots, message):
    S, C, pool = states(3, *SHAPE), conv(3), empty_pool(4, torch.float32)
    before = [t.clone() for t in tensors(pool)]
    with pytest.raises(ValueError, match=message):
        store_checkpoints_inplace(S, C, pool, *slots, backend=backend)
    for now, then in zip(tensors(pool), before, strict=True):
        assert same_bits(now, then)


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("kind", ["native", torch.float32])
def test_a_state_that_is_not_finite_is_refused_before_anything_is_written(which, value, kind):
    pair = [states(3, *SHAPE), conv(3)]
    pair[which][1].view(-1)[-1] = value
    pool = empty_pool(4, kind)
    before = [t.clone() for t in tensors(pool)]
    with pytest.raises(ValueError, match="expected a finite state in slot 1"):
        store_checkpoints_inplace(*pair, pool, [0, 1], [0, 1])
    for now, then in zip(tensors(pool), before, strict=True):
        assert same_bits(now, then)
    with pytest.raises(ValueError, match="states: expected finite values"):
        quantize_states(torch.tensor([[value]]))


def test_an_int8_slot_that_was_never_stored_is_not_loaded():
    S, C, pool = states(3, *SHAPE), conv(3), empty_pool(4, torch.float32)
    before = S.clone()
    with pytest.raises(ValueError, match=r"pool.states.scale: expected a finite state in slot 2"):
        load_checkpoints_inplace(pool, S, C, [2], [0])
    assert same_bits(S, before)


def test_wrong_pools_are_named():
    S, C, pool = states(3, *SHAPE), conv(3), empty_pool(4, "native")
    cases = [
        ((S[0], C, pool), r"active_states: expected shape \[S, L, HV, V, K\]"),
        ((S, C[:, :1], pool), r"active_conv: .*\[S, L, W - 1, D\] = \[3, 2, any, any\]"),
        ((S.double(), C, pool), r"pool.states: expected the dtype of active_states, torch.float64"),
        ((S, C.float(), pool), r"pool.conv: expected the dtype of active_conv, torch.float32"),
        ((S[:, :, :2], C, pool), r"pool.states: expected shape .*\[any, 2, 2, 20, 12\]"),
        (
            (S[:1].expand(3, -1, -1, -1, -1), C, pool),
            r"active_states: .*an expanded or overlapping view",
        ),
    ]
    for arguments, message in cases:
        with pytest.raises(ValueError, match=message):
            store_checkpoints_inplace(*arguments, [0], [0])
    with pytest.raises(ValueError, match=r"scale_dtype: expected dtype torch.float32"):
        quantize_states(S, torch.float64)
    with pytest.raises(ValueError, match=r"quantized: expected QuantizedStates, given Tensor"):
        dequantize_states(S)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_channel_too_large_for_its_scale_is_refused_before_anything_is_stored(dtype):
    states = torch.full((3, 2), torch.finfo(torch.float32).max / 2)
    if dtype == torch.bfloat16:  # its range is that of float32
        assert quantize_states(states, dtype).scale.isfinite().all()
        return
    with pytest.raises(ValueError, match="its scale would be infinite"):
        quantize_states(states, dtype)
