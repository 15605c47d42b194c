"""Every public op, every argument, given the wrong kind of thing: refused by name, each time.

The ops are found in ``kdalab_kernels.__all__`` and their arguments in their signatures, so that a
new op, or a new argument, takes part without being listed: a call that works is all it needs.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

import kdalab_kernels as kk

NO_OPS = {"AffineSummary", "CheckpointBuffers", "QuantizedStates", "ShardPiece", "TpRank"}
PLAIN = {"has_triton"}  # takes nothing


def f32(*shape: int) -> torch.Tensor:
    return torch.rand(shape)


def tokens() -> dict[str, Any]:
    names = {"q": (2, 3, 1, 4), "k": (2, 3, 1, 4), "v": (2, 3, 2, 5), "beta": (2, 3, 2)}
    return {**{n: f32(*s) for n, s in names.items()}, "g": -f32(2, 3, 2, 4)}


def decode() -> dict[str, Any]:
    return {**tokens(), "states": f32(4, 2, 5, 4), "slots": [2, 0]}


def checkpoints() -> dict[str, Any]:
    pool = kk.CheckpointBuffers(f32(4, 1, 2, 5, 4), f32(4, 1, 3, 6))
    active = {"active_states": f32(3, 1, 2, 5, 4), "active_conv": f32(3, 1, 3, 6)}
    return {**active, "pool": pool, "src_slots": [0], "dst_slots": [1]}


def conv() -> dict[str, Any]:
    return {"x": f32(2, 3, 6), "weight": f32(6, 4), "bias": f32(6)}


def conv_slots() -> dict[str, Any]:
    return {**conv(), "states": f32(4, 3, 6), "slots": [2, 0]}


def shard() -> dict[str, Any]:
    pools = {"states": f32(3, 1, 2, 5, 4), "conv": f32(3, 1, 3, 6), "slots": [0]}
    ranks = {"source": kk.TpRank(1, 0), "target": kk.TpRank(2, 1)}
    return {**pools, **ranks, "channels": [2, 2, 2]}


def scattered() -> dict[str, Any]:
    x = shard()
    piece = kk.gather_shard(**x)
    return {**x, "piece": piece, "states": f32(3, 1, 1, 5, 4), "conv": f32(3, 1, 3, 3)}


def pages() -> dict[str, Any]:
    q = {"pages": f32(4, 2, 6), "scale": 0.5, "value_dim": 4}
    return {**q, "block_table": torch.tensor([[0, 1], [2, 3]])}


def snapshot() -> dict[str, Any]:
    pools = {"states_pool": f32(4, 2, 5, 4), "conv_pool": f32(4, 3, 6)}
    taken = {"h": f32(2, 1, 2, 5, 4), "final_state": f32(2, 2, 5, 4), "conv_inputs": f32(2, 3, 6)}
    places = {"sequences": [0], "boundaries": [3], "slots": [1]}
    return {**pools, **taken, **places, "conv_initial": f32(2, 3, 6)}


def commit() -> dict[str, Any]:
    kept = {"intermediate": f32(2, 3, 2, 5, 4), "conv_windows": f32(2, 3, 3, 6)}
    pools = {"states": f32(4, 2, 5, 4), "conv_states": f32(4, 3, 6)}
    return {**pools, **kept, "slots": [0, 1], "accepted": [1, 2]}


def gate() -> dict[str, Any]:
    return {"g": f32(2, 3, 2, 4), "A_log": f32(2)}


def summary() -> kk.AffineSummary:
    return kk.AffineSummary(f32(1, 2, 4, 4), f32(1, 2, 4, 5))


def summary_tokens() -> dict[str, Any]:
    x = tokens()
    del x["q"]
    return x


CALLS: dict[str, Callable[[], dict[str, Any]]] = {
    "apply": lambda: {"summary": summary(), "S": f32(1, 2, 4, 5)},
    "backends_of": lambda: {"op": "apply"},
    "causal_conv1d": conv,
    "causal_conv1d_update": lambda: {**conv(), "state": f32(2, 3, 6)},
    "causal_conv1d_update_inplace": conv_slots,
    "causal_conv1d_verify": conv_slots,
    "chunk_kda": tokens,
    "chunk_summary": summary_tokens,
    "commit_verified_inplace": commit,
    "compose": lambda: {"first": summary(), "second": summary()},
    "dequantize_states": lambda: {"quantized": kk.quantize_states(f32(5, 4))},
    "fused_kda_gate": gate,
    "fused_recurrent_kda": tokens,
    "fused_recurrent_kda_inplace": decode,
    "fused_recurrent_kda_verify": decode,
    "gather_pages": lambda: {"pages": f32(4, 2), "page_ids": [1]},
    "gather_shard": shard,
    "kda_gate_chunk_cumsum": gate,
    "l2norm": lambda: {"x": f32(3)},
    "load_checkpoints_inplace": checkpoints,
    "mla_decode_paged": lambda: {**pages(), "q": f32(2, 3, 6), "lengths": [3, 1]},
    "mla_prefill_paged": lambda: {
        **pages(),
        "q": f32(3, 3, 6),
        "cu_seqlens": torch.tensor([0, 2, 3]),
        "context_lengths": [3, 1],
    },
    "naive_causal_conv1d": lambda: {**conv(), "state": f32(2, 3, 6), "activation": None},
    "naive_chunk_kda": tokens,
    "naive_kda_gate": gate,
    "naive_kda_lowerbound_gate": gate,
    "naive_recurrent_kda": tokens,
    "quantize_states": lambda: {"states": f32(5, 4)},
    "reslice_conv": lambda: {"parts": [f32(3, 6)], "channels": [2, 2, 2], "to_tp": 2, "rank": 1},
    "reslice_states": lambda: {"parts": [f32(2, 5, 4)], "to_tp": 2, "rank": 1},
    "scatter_pages_inplace": lambda: {"pages": f32(4, 2), "page_ids": [1], "buffer": f32(1, 2)},
    "scatter_shard_inplace": scattered,
    "sigmoid": lambda: {"x": f32(3)},
    "silu": lambda: {"x": f32(3)},
    "snapshot_states_inplace": snapshot,
    "store_checkpoints_inplace": checkpoints,
    "tanh": lambda: {"x": f32(3)},
}
"""A call that works, for every op."""

NUMBERS = {"scale", "eps", "lower_bound"}
WHOLE = {"chunk_size", "value_dim", "num_splits", "to_tp", "rank"}
GATE_OPS = {"chunk_kda", "fused_recurrent_kda", "fused_recurrent_kda_inplace"}


class Odd:
    """No argument is one of these."""


def wrong(op: str, name: str, works: dict[str, Any]) -> list[Any]:
    """What an argument of this name must not be."""
    meta, whole = torch.zeros(1, device="meta"), torch.zeros(2, 3, dtype=torch.bool)
    bad: list[Any] = [Odd(), object, {"a": 1}, 1j, b"ab", whole, meta, {1}]
    if name not in ("backend", "op"):
        bad.append("a")
    if name not in NUMBERS | WHOLE and not name.startswith("check_"):
        bad += [2.5, float("nan")]
    if name in NUMBERS:
        bad += [float("nan"), float("inf"), True, torch.tensor(1.0), [1.0], 10**400]
    if name == "eps":
        bad += [-1e-6, None]
    if name in WHOLE:
        bad += [64.0, 1.0, True, -1, [1], 10**30]
    given = works.get(name)
    if isinstance(given, torch.Tensor):
        bad += [given.tolist(), given.to("meta"), given.to_sparse(), given.bool(), (), 3]
    if isinstance(given, tuple) and hasattr(given, "_fields"):
        bad += [tuple(given), None, given._replace(**{given._fields[0]: 2.0})]
        bad += [given._replace(**{field: None}) for field in given._fields]
    if isinstance(given, list) and name != "parts":
        bad += [None, 1, [0.5], [True], ["1"], [None], [10**30], torch.tensor([0.5])]
    if name == "parts":
        bad += [None, 1, [], [None], ["a"], [f32(3, 6).to("meta")], [f32(1)]]
    required = inspect.signature(getattr(kk, op)).parameters[name].default is inspect._empty
    optional = name in {"bias", "activation", "conv_initial"} or op == "fused_kda_gate"
    if required and not optional:
        bad.append(None)
    return bad


OPS = sorted(set(kk.__all__) - NO_OPS - PLAIN)


def test_every_op_has_a_call_here_that_works() -> None:
    assert set(CALLS) == set(OPS)
    for op in OPS:
        getattr(kk, op)(**CALLS[op]())


@pytest.mark.parametrize("op", OPS)
def test_an_argument_of_the_wrong_kind_is_named(op: str) -> None:
    missed = []
    for name in inspect.signature(getattr(kk, op)).parameters:
        for bad in wrong(op, name, CALLS[op]()):
            call = {**CALLS[op](), name: bad}
            shown = f"{op}({name}={type(bad).__name__} {str(bad)[:40]})"
            try:
                getattr(kk, op)(**call)
            except ValueError as error:
                if not re.search(rf"\b{name}\b", str(error)):
                    missed.append(f"{shown}: the message does not name it: {error}")
            except Exception as error:
                missed.append(f"{shown}: {type(error).__name__}: {error}")
            else:
                missed.append(f"{shown}: accepted")
    assert not missed, "\n".join(missed)


@pytest.mark.parametrize("op", sorted(GATE_OPS))
def test_a_lower_bound_without_a_gate_to_bound_is_refused(op: str) -> None:
    with pytest.raises(ValueError, match="lower_bound: only read with use_gate_in_kernel=True"):
        getattr(kk, op)(**CALLS[op](), lower_bound=-5.0)


def test_safe_gate_is_a_promise_that_is_looked_at() -> None:
    x = tokens()
    kk.chunk_kda(**x, safe_gate=True)
    kk.chunk_kda(**x, safe_gate=True, lower_bound=-2.0)
    with pytest.raises(ValueError, match=r"g: .*at least -5, as safe_gate=True promises, given -7"):
        kk.chunk_kda(**{**x, "g": x["g"] * 0 - 7}, safe_gate=True)
    with pytest.raises(ValueError, match=r"g: .*at least -2"):
        kk.chunk_kda(**{**x, "g": x["g"] * 0 - 3}, safe_gate=True, lower_bound=-2.0)


def test_a_rank_is_two_integers_with_the_rank_below_the_size() -> None:
    for rank in (kk.TpRank(2.0, 1), kk.TpRank(2, 1.0), kk.TpRank(2, 2), kk.TpRank(0, 0), (2, 1)):
        for name in ("source", "target"):
            with pytest.raises(ValueError, match=rf"^{name}\b"):
                kk.gather_shard(**{**shard(), name: rank})
