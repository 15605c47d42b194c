"""The Triton kernels of checkpoints, interpreted or on a GPU, against the torch path."""

import pytest
import torch
from pool_cases import POISON, same_bits, states, strided
from triton_cases import DEVICE

from kdalab_kernels import (
    CheckpointBuffers,
    QuantizedStates,
    dequantize_states,
    load_checkpoints_inplace,
    quantize_states,
    store_checkpoints_inplace,
)

SHAPE = (2, 3, 20, 12)  # layers, heads, V, K


def active(n, dtype=torch.float32, shape=SHAPE):
    S, C = (
        states(n, *shape).to(DEVICE, dtype),
        torch.randn(n, shape[0], 3, 10).bfloat16().to(DEVICE),
    )
    return S, C


def pool(n, kind, dtype=torch.float32, shape=SHAPE):
    L, HV, _, K = shape
    conv = torch.full((n, L, 3, 10), POISON, dtype=torch.bfloat16, device=DEVICE)
    if kind == "native":
        kept = torch.full((n, *shape), POISON, dtype=dtype, device=DEVICE)
        return CheckpointBuffers(kept, conv)
    q = torch.full((n, *shape), 99, dtype=torch.int8, device=DEVICE)
    scale = torch.full((n, L, HV, 1, K), POISON, dtype=kind, device=DEVICE)
    return CheckpointBuffers(QuantizedStates(q, scale), conv)


def tensors(p):
    return (*(p.states if isinstance(p.states, QuantizedStates) else (p.states,)), p.conv)


def nearly_equal_bytes(q, expected):
    """At most one step apart, and only where the quotient is half way to the last bit."""
    apart = (q.int() - expected.int()).abs()
    assert apart.max() <= 1
    assert apart.float().mean() < 1e-3


@pytest.mark.parametrize("kind", ["native", torch.float32, torch.float16, torch.bfloat16])
def test_store_and_load_equal_the_torch_path(kind):
    S, C = active(4)
    S[0], C[0] = POISON, POISON
    mine, theirs = pool(4, kind), pool(4, kind)
    slots = [3, -1, 1], [2, -1, 0]
    store_checkpoints_inplace(S, C, mine, *slots, backend="triton")
    store_checkpoints_inplace(S, C, theirs, *slots, backend="torch")
    for a, b in zip(tensors(mine), tensors(theirs), strict=True):
        assert same_bits(a[[1, 3]], b[[1, 3]])  # slots that nobody named
        if a.dtype == torch.int8:
            nearly_equal_bytes(a, b)
        else:
            assert same_bits(a, b)
    back = [(torch.full_like(S, POISON), torch.full_like(C, POISON)) for _ in range(2)]
    for (s, c), backend in zip(back, ("triton", "torch"), strict=True):
        load_checkpoints_inplace(theirs, s, c, [0, 2, -1], [2, 3, -1], backend=backend)
    for a, b in zip(*back, strict=True):
        assert same_bits(a, b)
    assert same_bits(back[0][1][[2, 3]], C[[1, 3]])


def test_pools_may_be_strided_and_rows_must_be_packed():
    S, C = active(3)
    p = pool(3, torch.float32)
    view = CheckpointBuffers(
        QuantizedStates(strided(p.states.q), strided(p.states.scale)), strided(p.conv)
    )
    store_checkpoints_inplace(strided(S), strided(C), view, [1, 2], [2, 0], backend="triton")
    store_checkpoints_inplace(S, C, p, [1, 2], [2, 0], backend="triton")
    for a, b in zip(tensors(view), tensors(p), strict=True):
        assert same_bits(a[[0, 2]], b[[0, 2]])
    turned = S.transpose(-1, -2).contiguous().transpose(-1, -2)
    with pytest.raises(ValueError, match=r"states: backend='triton' expects the axes from 2 on"):
        store_checkpoints_inplace(turned, C, p, [1], [1], backend="triton")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_quantise_and_back(dtype):
    S = states(2, 3, 33, 20).to(DEVICE, dtype)
    S[0, 0, :, 3] = 0.0
    mine, theirs = (quantize_states(S, backend=b) for b in ("triton", "torch"))
    assert same_bits(mine.scale, theirs.scale)
    nearly_equal_bytes(mine.q, theirs.q)
    assert not mine.q[0, 0, :, 3].any()
    for out in (torch.float32, torch.float16):
        a, b = (dequantize_states(theirs, out, backend=b) for b in ("triton", "torch"))
        torch.testing.assert_close(a, b, rtol=2**-9, atol=0)


def test_half_way_cases_round_to_even():
    S = torch.tensor([127.0, 0.5, 1.5, 2.5, -0.5, -1.5, 63.5], device=DEVICE)[:, None]
    q, scale = quantize_states(S, backend="triton")
    assert scale.item() == 1.0
    assert q[:, 0].tolist() == [127, 0, 2, 2, 0, -2, 64]


def test_float64_is_refused():
    with pytest.raises(ValueError, match="takes float16, bfloat16 or float32, given float64"):
        quantize_states(torch.ones(2, 2, dtype=torch.float64, device=DEVICE), backend="triton")
