"""A model small enough for thousands of requests, engines of it, and what a run leaves behind."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch

from kdalab.cache import parse_placement
from kdalab.engine import Engine, EngineConfig, Request
from kdalab.engine import events as ev
from kdalab.model import HybridModel, tiny_model
from kdalab.model.tiny import tiny_config, tiny_weights
from kdalab.model.weights import build

TINY = tiny_model()
SHARED = [(5 * i) % 251 for i in range(200)]


def tail(seed: int, n: int = 30) -> list[int]:
    return [(seed * 31 + 3 * i) % 256 for i in range(n)]


@lru_cache(maxsize=1)
def tinier_model() -> HybridModel:
    """One KDA and one MLA layer, 64 token ids: the engine's bookkeeping is what takes the time."""
    config = replace(
        tiny_config(),
        vocab_size=64,
        hidden_size=32,
        num_hidden_layers=2,
        full_attn_layers=(1,),
        dense_layers=(0, 1),
        intermediate_size=32,
        linear_num_heads=1,
        linear_head_dim=8,
        num_attention_heads=1,
        kv_lora_rank=8,
        qk_nope_head_dim=8,
        qk_rope_head_dim=8,
        v_head_dim=8,
    )
    return build(config, tiny_weights(0, config))


def engine(model: HybridModel = TINY, **changes: Any) -> Engine:
    """Small pools, every rule checked after every step."""
    if "placement" in changes:
        changes["placement"] = parse_placement(changes["placement"])
    defaults: dict[str, Any] = {
        "n_pages": 64,
        "n_active": 3,
        "n_checkpoints": 8,
        "keep_logits": True,
        "check_every_step": True,
    }
    return Engine(model, EngineConfig(**{**defaults, **changes}))


def of_type(e: Engine, kind: type[ev.Event]) -> list[Any]:
    return [x for x in e.events if isinstance(x, kind)]


def worst(request: Request, model: HybridModel = TINY) -> float:
    """max |difference| of the request's prompt logits against a run from nothing."""
    full = model.logits(request.tokens)[request.restore :]
    mine = torch.stack(request.logits[: request.n_tokens - request.restore])
    return float((mine - full).abs().max())


def cached_states(e: Engine) -> dict[int, int]:
    """Boundary -> slot of every checkpoint in the tree."""
    nodes = e.cache.nodes.values()
    return {n.state.boundary: n.state.slot for n in nodes if n.state is not None}


def assert_nothing_leaks(e: Engine) -> None:
    """The engine is idle, and everything is either free or in the tree."""
    assert e.is_idle
    e.say_moves()
    e.check()
    assert not e.cache.leases
    states = Counter(x for x in e.active.slots.owners() if x is not None)
    assert set(states) <= {"cache"}
    assert set(e.latents.slots.counts()) <= {None, "cache"}
    assert len(cached_states(e)) <= len(e.cache.nodes)
