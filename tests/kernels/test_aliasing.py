"""What an op writes shares no memory with its other arguments; views that lie apart are welcome."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis
import pytest
import torch
from hypothesis import strategies as st
from test_argument_types import CALLS, f32

import kdalab_kernels as kk
from kdalab_kernels.aliasing import share_memory

WRITES = {
    "causal_conv1d_update_inplace": ("states",),
    "commit_verified_inplace": ("states", "conv_states"),
    "fused_recurrent_kda_inplace": ("states",),
    "load_checkpoints_inplace": ("active_states", "active_conv"),
    "scatter_pages_inplace": ("pages",),
    "scatter_shard_inplace": ("states", "conv"),
    "snapshot_states_inplace": ("states_pool", "conv_pool"),
    "store_checkpoints_inplace": ("pool.states", "pool.conv"),
}
"""The arguments that each op writes."""


def tensors_of(call: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Every tensor of a call, those in containers as ``name.field``."""
    found = {}
    for name, x in call.items():
        fields = x._asdict() if hasattr(x, "_asdict") else {}
        inner = {f"{name}.{field}": y for field, y in fields.items()}
        found |= {n: y for n, y in {name: x, **inner}.items() if isinstance(y, torch.Tensor)}
    return found


def replaced(call: dict[str, Any], path: str, x: torch.Tensor) -> dict[str, Any]:
    name, _, field = path.partition(".")
    return {**call, name: call[name]._replace(**{field: x}) if field else x}


def in_one_buffer(a: torch.Tensor, b: torch.Tensor, shared: int) -> list[torch.Tensor]:
    """Both with their values, side by side in one buffer, with ``shared`` elements in common."""
    n, m = a.numel(), b.numel()
    buffer = torch.zeros(n + m - shared)
    views = [buffer[:n].view(a.shape), buffer[n - shared :].view(b.shape)]
    views[1].copy_(b)
    views[0].copy_(a)
    return views


def test_every_op_that_writes_is_tried_here() -> None:
    assert set(WRITES) == {op for op in CALLS if op.endswith("_inplace")}


@pytest.mark.parametrize("op", sorted(WRITES))
def test_memory_in_common_is_refused_and_names_both(op: str) -> None:
    call = CALLS[op]()
    call |= {"A_log": f32(2), "dt_bias": f32(8)} if op == "fused_recurrent_kda_inplace" else {}
    call |= {"use_gate_in_kernel": True} if "A_log" in call else {}
    pairs = 0
    for written in WRITES[op]:
        for other, x in tensors_of(call).items():
            if other == written:
                continue
            pairs += 1
            ours = tensors_of(call)[written]
            for shared in (0, 1, min(ours.numel(), x.numel())):
                a, b = in_one_buffer(ours, x, shared)
                trial = replaced(replaced(call, written, a), other, b)
                before = {n: t.clone() for n, t in tensors_of(trial).items()}
                if not shared:
                    getattr(kk, op)(**trial)
                    continue
                with pytest.raises(ValueError, match="memory apart from") as error:
                    getattr(kk, op)(**trial)
                assert written in str(error.value)
                assert other in str(error.value)
                for name, t in tensors_of(trial).items():
                    assert torch.equal(t, before[name]), name
    assert pairs >= len(WRITES[op])


def test_layers_of_one_pool_and_slots_apart_are_not_memory_in_common() -> None:
    # One block a slot, recurrent and conv state of all layers in it, as a unified buffer has it.
    block = torch.rand(6, 2 * (2 * 5 * 4 + 3 * 6))
    S = block[:, : 2 * 40].unflatten(1, (2, 2, 5, 4))
    C = block[:, 2 * 40 :].unflatten(1, (2, 3, 6))
    assert not share_memory(S, C)
    assert not share_memory(S[:, 0], S[:, 1])
    x = CALLS["store_checkpoints_inplace"]()
    x |= {"active_states": S[:3], "active_conv": C[:3]}
    x |= {"pool": kk.CheckpointBuffers(S[3:], C[3:]), "src_slots": [0, 2], "dst_slots": [1, 0]}
    expected = S[[2, 0]].clone()
    kk.store_checkpoints_inplace(**x)
    assert torch.equal(S[[3, 4]], expected)
    x["pool"] = kk.CheckpointBuffers(S[2:], C[2:])
    with pytest.raises(ValueError, match=r"active_states: .*pool.states"):
        kk.store_checkpoints_inplace(**x)
    with pytest.raises(ValueError, match=r"pool.states: .*active_states"):
        kk.load_checkpoints_inplace(**x)


def test_int8_checkpoints_share_no_memory_between_numbers_and_scales() -> None:
    x = CALLS["store_checkpoints_inplace"]()
    raw = torch.zeros(4 * 2 * 4 * 4, dtype=torch.uint8)
    scale = raw.view(torch.float32).view(4, 1, 2, 1, 4)
    q = torch.zeros(4, 1, 2, 5, 4, dtype=torch.int8)
    x["pool"] = kk.CheckpointBuffers(kk.QuantizedStates(q, scale), x["pool"].conv)
    kk.store_checkpoints_inplace(**x)
    both = torch.zeros(160 + 128, dtype=torch.uint8)
    q = both[:160].view(torch.int8).view(4, 1, 2, 5, 4)
    scale = both[128:256].view(torch.float32).view(4, 1, 2, 1, 4)
    x["pool"] = kk.CheckpointBuffers(kk.QuantizedStates(q, scale), x["pool"].conv)
    with pytest.raises(ValueError, match=r"pool.states.scale: .*pool.states.q"):
        kk.store_checkpoints_inplace(**x)


@st.composite
def views(draw: Callable[..., Any]) -> tuple[torch.Tensor, torch.Tensor]:
    buffer = torch.zeros(512, dtype=torch.uint8)

    def one() -> torch.Tensor:
        kind = draw(st.sampled_from([torch.uint8, torch.int16, torch.int32]))
        room = 512 // kind.itemsize
        axes = draw(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 24)), max_size=3))
        reach = sum((n - 1) * s for n, s in axes)
        start = draw(st.integers(0, max(0, room - 1 - reach)))
        while reach >= room:
            axes = [(n, s // 2) for n, s in axes]
            reach = sum((n - 1) * s for n, s in axes)
        start = min(start, room - 1 - reach)
        sizes, strides = [n for n, _ in axes], [s for _, s in axes]
        return buffer.view(kind).as_strided(sizes, strides, start)

    return one(), one()


@hypothesis.settings(deadline=None, max_examples=300, database=None, derandomize=True)
@hypothesis.given(views())
def test_shared_memory_is_found_exactly(pair: tuple[torch.Tensor, torch.Tensor]) -> None:
    def touched(x: torch.Tensor) -> set[int]:
        at = torch.zeros(x.shape, dtype=torch.int64)
        for axis, (n, stride) in enumerate(zip(x.shape, x.stride(), strict=True)):
            shape = [n if i == axis else 1 for i in range(x.ndim)]
            at = at + (torch.arange(n) * stride * x.element_size()).view(shape)
        first = [x.data_ptr() + int(i) for i in at.flatten()]
        return {i + byte for i in first for byte in range(x.element_size())}

    a, b = pair
    assert share_memory(a, b) == bool(touched(a) & touched(b))
    assert share_memory(b, a) == share_memory(a, b)


def test_empty_tensors_share_nothing() -> None:
    buffer = torch.zeros(4)
    assert not share_memory(buffer[:0], buffer)
    assert not share_memory(buffer, buffer[4:])
