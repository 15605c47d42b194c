"""How the ops on pools of states are drawn and called; see :mod:`kdalab.verify.ops`."""

from __future__ import annotations

from collections.abc import Iterable

import torch

import kdalab_kernels as kk
from kdalab.verify.ops import Call, Draw, OpCase, Tensors


def _slots(draw: Draw, count: int, total: int, padded: bool) -> list[int]:
    """``count`` different slots of ``total``; with ``padded`` the last is -1, a row of nobody."""
    slots: list[int] = torch.randperm(total, generator=draw.random)[:count].tolist()
    return [*slots[:-1], -1] if padded else slots


def _rows(draw: Draw, longest: int) -> tuple[Tensors, list[int]]:
    """Tokens of some rows, and a pool with slots for them and for others."""
    N, T = draw.one_of(1, 3), draw.one_of(1, 2, longest)
    H, group = draw.one_of(1, 3), draw.one_of(1, 2)
    K, V = draw.one_of((16, 16), (32, 20), (60, 32))
    if draw.small:
        H, group = 1, 2
    HV = H * group
    inputs = {
        "q": draw.normal(N, T, H, K),
        "k": torch.nn.functional.normalize(draw.normal(N, T, H, K), dim=-1),
        "v": draw.normal(N, T, HV, V),
        "g": draw.gate(N, T, HV, K),
        "beta": draw.uniform(N, T, HV),
        "states": draw.normal(N + 3, HV, V, K),
    }
    return inputs, _slots(draw, N, N + 3, padded=N > 1 and draw.one_of(True, False))


def _decode(draw: Draw) -> tuple[Tensors, Call]:
    inputs, slots = _rows(draw, 4)

    def call(x: Tensors, backend: str) -> Iterable[torch.Tensor]:
        o = kk.fused_recurrent_kda_inplace(**x, slots=slots, backend=backend)
        return o, x["states"]

    return inputs, call


def _verify(draw: Draw) -> tuple[Tensors, Call]:
    inputs, slots = _rows(draw, 8)

    def call(x: Tensors, backend: str) -> Iterable[torch.Tensor]:
        return *kk.fused_recurrent_kda_verify(**x, slots=slots, backend=backend), x["states"]

    return inputs, call


def _windows(draw: Draw) -> tuple[Tensors, list[int]]:
    N, T, D, W = draw.one_of(1, 3), draw.one_of(1, 2, 6), draw.one_of(8, 60), draw.one_of(2, 4)
    inputs = {
        "x": draw.normal(N, T, D),
        "states": draw.normal(N + 2, W - 1, D),
        "weight": draw.normal(D, W),
    }
    return inputs, _slots(draw, N, N + 2, padded=N > 1 and draw.one_of(True, False))


def _conv_decode(draw: Draw) -> tuple[Tensors, Call]:
    inputs, slots = _windows(draw)

    def call(x: Tensors, backend: str) -> Iterable[torch.Tensor]:
        y = kk.causal_conv1d_update_inplace(**x, slots=slots, backend=backend)
        return y, x["states"]

    return inputs, call


def _conv_verify(draw: Draw) -> tuple[Tensors, Call]:
    inputs, slots = _windows(draw)
    return inputs, lambda x, backend: kk.causal_conv1d_verify(**x, slots=slots, backend=backend)


def _commit(draw: Draw) -> tuple[Tensors, Call]:
    N, T, L, total = 3, draw.one_of(1, 5), draw.one_of(1, 4), 5
    inputs = {
        "states": draw.normal(total, L, 2, 20, 16),
        "conv_states": draw.normal(total, L, 3, 24),
        "intermediate": draw.normal(N, T, L, 2, 20, 16),
        "conv_windows": draw.normal(N, T, L, 3, 24),
    }
    slots = _slots(draw, N, total, padded=draw.one_of(True, False))
    accepted = [draw.one_of(0, T, 1) for _ in range(N)]

    def call(x: Tensors, backend: str) -> Iterable[torch.Tensor]:
        kk.commit_verified_inplace(**x, slots=slots, accepted=accepted, backend=backend)
        return x["states"], x["conv_states"]

    return inputs, call


def _states(draw: Draw, *shape: int) -> torch.Tensor:
    """States whose channels differ in size by orders of magnitude, some of them all zero."""
    channels = 10 ** (4 * draw.uniform(*shape[:-2], 1, shape[-1]) - 3)
    kept = draw.uniform(*shape[:-2], 1, shape[-1]) > 0.1
    return draw.normal(*shape) * channels * kept


def _quantize(draw: Draw) -> tuple[Tensors, Call]:
    dtype = draw.one_of(torch.float32, torch.bfloat16)
    inputs = {"states": _states(draw, 2, 2, draw.one_of(16, 100), draw.one_of(16, 60))}

    def call(x: Tensors, backend: str) -> Iterable[torch.Tensor]:
        return kk.quantize_states(**x, scale_dtype=dtype, backend=backend)

    return inputs, call


def _dequantize(draw: Draw) -> tuple[Tensors, Call]:
    inputs, _ = _quantize(draw)
    quantized = kk.quantize_states(inputs["states"].float(), backend="reference")

    def call(x: Tensors, backend: str) -> Iterable[torch.Tensor]:
        both = kk.QuantizedStates(x["q"], x["scale"])
        return [kk.dequantize_states(both, backend=backend)]

    return {"q": quantized.q, "scale": quantized.scale}, call


def _move(draw: Draw, store: bool) -> tuple[Tensors, Call]:
    S, C, L = 4, 5, draw.one_of(1, 3)
    V, K = draw.one_of((16, 16), (20, 60))
    inputs = {
        "active": _states(draw, S, L, 2, V, K),
        "active_conv": draw.normal(S, L, 3, 24),
        "kept_conv": draw.normal(C, L, 3, 24),
    }
    kept = _states(draw, C, L, 2, V, K)
    int8 = draw.one_of(True, False)
    if int8:
        inputs["q"], inputs["scale"] = kk.quantize_states(kept.float(), backend="reference")
    else:
        inputs["kept"] = kept
    padded = draw.one_of(True, False)
    ours, theirs = _slots(draw, 3, S, padded), _slots(draw, 3, C, padded)

    def call(x: Tensors, backend: str) -> Iterable[torch.Tensor]:
        states = kk.QuantizedStates(x["q"], x["scale"]) if int8 else x["kept"]
        pool = kk.CheckpointBuffers(states, x["kept_conv"])
        active = x["active"], x["active_conv"]
        if store:
            kk.store_checkpoints_inplace(*active, pool, ours, theirs, backend=backend)
        else:
            kk.load_checkpoints_inplace(pool, *active, theirs, ours, backend=backend)
        return x.values()

    return inputs, call


def _snapshot(draw: Draw) -> tuple[Tensors, Call]:
    lengths = draw.one_of((64,), (100,), (128, 0, 70))
    H, D, W, chunk = 2, 24, draw.one_of(2, 4), 32
    wanted = [(n, b) for n, size in enumerate(lengths) for b in {size, size // chunk * chunk}]
    slots = _slots(draw, len(wanted), len(wanted) + 2, padded=len(wanted) > 1)
    chunks = sum(-(-size // chunk) for size in lengths)
    inputs = {
        "states_pool": draw.normal(len(wanted) + 2, H, 20, 16),
        "conv_pool": draw.normal(len(wanted) + 2, W - 1, D),
        "h": draw.normal(1, chunks, H, 20, 16),
        "final_state": draw.normal(len(lengths), H, 20, 16),
        "conv_inputs": draw.normal(1, sum(lengths), D),
        "conv_initial": draw.one_of(None, draw.normal(len(lengths), W - 1, D)),
    }
    offsets = torch.tensor([0, *lengths]).cumsum(0)

    def call(x: Tensors, backend: str) -> Iterable[torch.Tensor]:
        kk.snapshot_states_inplace(
            **x,
            sequences=[n for n, _ in wanted],
            boundaries=[b for _, b in wanted],
            slots=slots,
            cu_seqlens=offsets,
            chunk_size=chunk,
            backend=backend,
        )
        return x["states_pool"], x["conv_pool"]

    return inputs, call


STATE_CASES: dict[str, OpCase] = {
    "fused_recurrent_kda_inplace": OpCase(_decode),
    "fused_recurrent_kda_verify": OpCase(_verify),
    "causal_conv1d_update_inplace": OpCase(_conv_decode),
    "causal_conv1d_verify": OpCase(_conv_verify),
    "commit_verified_inplace": OpCase(_commit, exact=True),
    "snapshot_states_inplace": OpCase(_snapshot, exact=True),
    "quantize_states": OpCase(_quantize, exact=True),
    "dequantize_states": OpCase(_dequantize, exact=True),
    "store_checkpoints_inplace": OpCase(lambda draw: _move(draw, store=True), exact=True),
    "load_checkpoints_inplace": OpCase(lambda draw: _move(draw, store=False), exact=True),
}
