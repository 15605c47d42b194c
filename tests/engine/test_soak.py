"""Random requests by the thousand through the real engine: at the end nothing has leaked."""

from __future__ import annotations

import random
from typing import Any

import pytest
from engine_cases import assert_nothing_leaks, tinier_model

from kdalab.cache import parse_placement
from kdalab.engine import Engine, EngineConfig, HostConfig
from kdalab.errors import KdalabError

FEATURES: list[dict[str, Any]] = [
    {},
    {"strategy": "extra_buffer", "decode_interval": 64},
    {"strategy": "extra_buffer_lazy", "decode_interval": 64, "reserve_output": False},
    {"checkpoint_dtype": "int8", "decode_interval": 64},
    {"memory": "unified", "reserve_output": False, "draft_tokens": 3},
    {"memory": "unified", "strategy": "extra_buffer", "lazy_compaction": True},
    {"host": HostConfig(60, 9, 1), "retention": "lru+cap:2", "decode_interval": 64},
    {"host": HostConfig(30, 4), "memory": "unified", "strategy": "extra_buffer"},
]


def soak(count: int, seed: int) -> int:
    """``count`` requests, spread over all features; returns how many ran to their end."""
    chance = random.Random(seed)
    ended = 0
    for number, features in enumerate(FEATURES):
        e = Engine(
            tinier_model(),
            EngineConfig(
                page_tokens=16,
                n_pages=48,
                n_active=4,
                n_checkpoints=7,
                chunk_tokens=256,
                placement=parse_placement(chance.choice(["every:64", "leaf+branch"])),
                **features,
            ),
        )
        roots = [[chance.randrange(60) for _ in range(320)] for _ in range(4)]
        waiting = count // len(FEATURES) + (number < count % len(FEATURES))
        while waiting or not e.is_idle:
            if waiting and len(e.waiting) < 4:
                root = chance.choice(roots)
                cut = chance.randint(1, 260)
                fresh = [chance.randrange(60) for _ in range(chance.randint(0, 30))]
                e.submit(root[:cut] + fresh, chance.choice([0, 1, 2, 3, 70]))
                waiting -= 1
            live = [r.name for r in (*e.running, *e.waiting)]
            fate = chance.random()
            if live and fate < 0.05:
                e.abort(chance.choice(live))
            elif e.running and fate < 0.08:
                e.retract(chance.choice(e.running), "on purpose")
            e.step()
            if len(e.requests) > 40 and e.is_idle:
                ended += forget(e)
            if chance.random() < 0.01:
                e.check()
        ended += forget(e)
        assert_nothing_leaks(e)
    return ended


def forget(e: Engine) -> int:
    """Drop the log and the ended requests, which are history and not memory."""
    reasons = [r.finish_reason for r in e.requests.values()]
    assert not [x for x in reasons if x.startswith("failed")]
    e.events.clear()
    e.requests.clear()
    return sum(x in ("length", "prefilled") for x in reasons)


def test_300_random_requests_leak_nothing() -> None:
    assert soak(300, 1) > 200


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_20000_random_requests_leak_nothing() -> None:
    assert soak(20_000, 2) > 15_000


def test_a_request_that_can_never_fit_is_refused_at_once() -> None:
    for features in FEATURES:
        e = Engine(tinier_model(), EngineConfig(n_pages=8, n_active=4, n_checkpoints=7, **features))
        with pytest.raises(KdalabError, match="latent pages of 16 tokens; the pool has"):
            e.submit([1] * 5000, 1)
        assert not e.requests
