"""Snapshots inside a prefill equal the states of prefills that stop at the boundary."""

import pytest
import torch
from kernel_cases import inputs, rel_rms, state
from pool_cases import BACKENDS, POISON, same_bits, strided

from kdalab_kernels import causal_conv1d, chunk_kda, snapshot_states_inplace

HV, K, V, D, W, C = 2, 12, 20, 10, 4, 16


def prefill(offsets, W=W):
    """What a packed prefill leaves behind: h, final states, raw conv inputs, initial windows."""
    T, N = offsets[-1], len(offsets) - 1
    x = inputs(1, T, 1, HV, K, V, dtype=torch.float32)
    S = state(N, HV, V, K, torch.float32)
    raw, before = torch.randn(1, T, D), torch.randn(N, W - 1, D)
    cu = torch.tensor(offsets)
    kw = {"state_v_first": True, "chunk_size": C, "output_final_state": True}
    _, end, h = chunk_kda(*x, initial_state=S, cu_seqlens=cu, return_intermediate_states=True, **kw)
    return x, S, raw, before, cu, end, h, kw


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("view", [strided, torch.clone])
def test_a_snapshot_equals_the_end_of_a_shorter_prefill(backend, view):
    offsets = [0, 37, 37, 69, 71]
    x, S, raw, before, cu, end, h, kw = prefill(offsets)
    wanted = [(0, 16), (0, 32), (0, 37), (0, 0), (1, 0), (2, 16), (2, 32), (3, 2), (3, 0)]
    slots = [10, 3, 4, 7, 0, -1, 8, 2, 9]
    pool = view(torch.full((11, HV, V, K), POISON))
    conv = view(torch.full((11, W - 1, D), POISON))
    sequences, boundaries = zip(*wanted, strict=True)
    snapshot_states_inplace(
        pool, conv, h, end, raw, before, sequences, boundaries, slots, cu, C, backend=backend
    )
    for (n, b), slot in zip(wanted, slots, strict=True):
        if slot < 0:
            continue
        a = offsets[n]
        part = [t[:, a : a + b] for t in x]
        expected = chunk_kda(*part, initial_state=S[n : n + 1], **kw)[1]
        assert rel_rms(pool[slot], expected[0]) < 1e-6, (n, b)
        window = causal_conv1d(
            raw[:, a : a + b], torch.ones(D, W), None, None, before[n : n + 1], True
        )[1]
        assert same_bits(conv[slot], window[0]), (n, b)
    for free in (1, 5, 6):
        assert pool[free].isnan().all()
        assert conv[free].isnan().all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_rows_of_a_batch_and_windows_of_width_one(backend):
    x = inputs(2, 40, 1, HV, K, V, dtype=torch.float32)
    kw = {"state_v_first": True, "chunk_size": C, "output_final_state": True}
    _, end, h = chunk_kda(*x, return_intermediate_states=True, **kw)
    raw = torch.randn(2, 40, D)
    for width in (1, 3):
        pool, conv = torch.full((3, HV, V, K), POISON), torch.full((3, width - 1, D), POISON)
        snapshot_states_inplace(
            pool, conv, h, end, raw, None, [1, 0], [16, 40], [2, 0], None, C, backend=backend
        )
        assert same_bits(pool[2], h[1, 1])
        assert same_bits(pool[0], end[0])
        assert same_bits(conv[2], raw[1, 16 - width + 1 : 16])
        assert pool[1].isnan().all()


BAD = [
    ({"boundaries": [15]}, r"boundaries: expected multiples of 16 up to the 37 .*given 15"),
    ({"boundaries": [48]}, r"boundaries: .*37 tokens of sequence 0.*given 48"),
    ({"boundaries": [-16]}, r"boundaries: .*given -16"),
    ({"sequences": [4]}, r"sequences: expected numbers from 0 to 1, given 4"),
    ({"slots": [3]}, r"slots: expected slots from 0 to 2"),
    ({"boundaries": [16, 32], "sequences": [0, 0], "slots": [1, 1]}, r"slots: .*at most once"),
    ({"chunk_size": 32}, r"h: expected shape"),
    (
        {"conv_inputs": torch.zeros(1, 40, D, dtype=torch.bfloat16)},
        r"conv_inputs: expected the poo",
    ),
]


@pytest.mark.parametrize(("change", "message"), BAD, ids=[m for _, m in BAD])
def test_bad_arguments_are_refused_before_anything_is_written(change, message):
    _, _, raw, before, cu, end, h, _ = prefill([0, 37, 40])
    pool, conv = torch.full((3, HV, V, K), POISON), torch.full((3, W - 1, D), POISON)
    given = {
        "h": h,
        "final_state": end,
        "conv_inputs": raw,
        "conv_initial": before,
        "sequences": [0],
        "boundaries": [16],
        "slots": [0],
        "cu_seqlens": cu,
        "chunk_size": C,
    }
    with pytest.raises(ValueError, match=message):
        snapshot_states_inplace(pool, conv, **{**given, **change})
    assert pool.isnan().all()
    assert conv.isnan().all()
