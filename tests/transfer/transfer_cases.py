"""Small bundles with sizes that differ on every axis, and engines to move state between."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from kdalab.engine import Engine, EngineConfig, fold
from kdalab.model import HybridModel, tiny_model
from kdalab.spec import ParallelLayout, StateIdentity
from kdalab.transfer import Bundle, PrefixHash, identity_of

TINY = tiny_model()
PROMPT = [(5 * i) % 251 for i in range(200)]
IDENTITY = identity_of(TINY, name="tiny", model_version="seed-0", tokenizer="bytes")

LAYERS, HEADS, V, K, WIDTH, DIM, PAGE, AT = 2, 4, 6, 5, 3, 7, 4, 10
CHANNELS = (HEADS * K, HEADS * K, HEADS * V)


def small_identity(**changes: Any) -> StateIdentity:
    plain = StateIdentity("m", "v1", "tok", "fp32", "bf16", "fp16", "v_first", "time_first")
    return replace(plain, **changes)


def small_bundle(seed: int = 0, **changes: Any) -> Bundle:
    """V != K and three dtypes, so that no two axes or kinds can be mistaken for one another."""
    random = torch.Generator().manual_seed(seed)

    def values(*shape: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.randn(shape, generator=random).to(dtype)

    fields: dict[str, Any] = {
        "identity": small_identity(),
        "prefix": PrefixHash.of(list(range(AT))),
        "latent": values(-(-AT // PAGE), 3, PAGE, DIM, dtype=torch.float16),
        "recurrent": values(LAYERS, HEADS, V, K, dtype=torch.float32),
        "conv": values(LAYERS, WIDTH, sum(CHANNELS), dtype=torch.bfloat16),
        "channels": CHANNELS,
    }
    return Bundle(**{**fields, **changes})


def rank(size: int, number: int) -> ParallelLayout:
    return ParallelLayout(size, number)


def same(a: Bundle, b: Bundle) -> bool:
    """Equal identity, prefix and bits."""
    plain = (a.identity, a.prefix, a.channels, a.checkpoint_dtype, a.writable)
    other = (b.identity, b.prefix, b.channels, b.checkpoint_dtype, b.writable)
    mine, theirs = a.tensors, b.tensors
    return (
        plain == other
        and mine.keys() == theirs.keys()
        and all(x.dtype == theirs[n].dtype and torch.equal(x, theirs[n]) for n, x in mine.items())
    )


def engine(
    model: HybridModel = TINY, identity: StateIdentity | None = IDENTITY, **changes: Any
) -> Engine:
    sizes: dict[str, Any] = {"n_pages": 64, "n_active": 3, "n_checkpoints": 8, "keep_logits": True}
    return Engine(model, EngineConfig(check_every_step=True, **{**sizes, **changes}), identity)


def prefilled(tokens: list[int], new: int = 6, **changes: Any) -> Engine:
    """An engine whose request "P" has just finished its prefill."""
    e = engine(**changes)
    e.submit(tokens, new, name="P")
    while e.requests["P"].phase != "decode":
        e.step()
    return e


def assert_sound(e: Engine) -> None:
    """Every rule holds, nothing leaks when idle, and the log folds to the live objects."""
    e.say_moves()
    e.check()
    assert fold(e.events, e.empty_view()) == e.view()
    if e.is_idle:
        assert not e.cache.leases
        assert set(e.latents.slots.counts()) <= {None, "cache"}
