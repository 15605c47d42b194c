"""Memory fails at every point where something is taken, moved or asked for, one point a run.

Whatever the point: nothing leaks, at most one request ends with the reason in its name, and all
others give the tokens that they give alone. Afterwards the engine serves as before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from engine_cases import assert_nothing_leaks, tinier_model

from kdalab.cache import Bytes, parse_placement
from kdalab.engine import Engine, EngineConfig, HostConfig, fold, transfers
from kdalab.engine.drafters import Scripted

MODEL = tinier_model()
TEXT = [(5 * i + i * i) % 61 for i in range(140)]
PROMPTS = (TEXT[:79], TEXT[:130], TEXT[:62])
NEW = 3
RIGHT = tuple(MODEL.greedy(p, NEW) for p in PROMPTS)
LATER = TEXT[:68]

CONFIGS: dict[str, dict[str, Any]] = {
    "copy": {"decode_interval": 64, "reserve_output": False},
    "donate": {"strategy": "extra_buffer", "decode_interval": 64},
    "lazy": {"strategy": "extra_buffer_lazy", "decode_interval": 64},
    "int8, lazy": {
        "checkpoint_dtype": "int8",
        "strategy": "extra_buffer_lazy",
        "decode_interval": 64,
    },
    "unified": {"memory": "unified", "reserve_output": False},
    "unified, lazy": {
        "memory": "unified",
        "strategy": "extra_buffer_lazy",
        "decode_interval": 64,
        "lazy_compaction": True,
    },
    "host": {"host": HostConfig(40, 4, 1), "n_checkpoints": 2},
    "drafts": {
        "draft_tokens": 3,
        "decode_interval": 64,
        "drafter": Scripted(tuple((*p, *r) for p, r in zip(PROMPTS, RIGHT, strict=True)), 3),
    },
}

POOL_CALLS = ("read", "read_many", "write", "write_many", "clear", "gather", "write_tokens")
CHECKPOINT_CALLS = ("store", "adopt", "load")
CACHE_CALLS = ("lookup", "acquire", "commit", "evict")


class InjectedError(RuntimeError):
    """As torch's own out-of-memory error is a ``RuntimeError``."""


class Breaker:
    """Counts the calls that may fail, and fails the ``at``-th (``for_good``: all from there on)."""

    def __init__(self, at: int, for_good: bool = False) -> None:
        self.at, self.for_good = at, for_good
        self.calls = 0
        self.broken = ""
        self.seen: set[str] = set()
        self.storing = False
        self.on = True

    def wrap(self, thing: Any, name: str) -> None:
        call = getattr(thing, name, None)
        if call is not None and not hasattr(call, "breaks"):
            setattr(thing, name, self.around(call, f"{type(thing).__name__}.{name}"))

    def around(self, call: Callable[..., Any], name: str) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            # Places are asked for all the time; within a store they stand for its copy.
            if self.on and (self.storing or not name.endswith("place")):
                self.calls += 1
                self.seen.add(name.partition(".")[2])
                if self.calls == self.at or (self.for_good and self.calls > self.at):
                    self.broken = self.broken or name
                    raise InjectedError(f"injected into {name}")
            outer, self.storing = self.storing, self.storing or name.endswith("store")
            try:
                return call(*args, **kwargs)
            finally:
                self.storing = outer

        run.breaks = True  # type: ignore[attr-defined]
        return run


@contextmanager
def breaking(e: Engine, breaker: Breaker) -> Iterator[None]:
    """Wrap everything in ``e`` that takes, moves or asks."""
    levels = [e.device] + ([e.host] if e.host is not None else [])
    for pool in (e.active, *(p for level in levels for p in (level.latents, level.checkpoints))):
        breaker.wrap(pool.slots, "allocate")
        breaker.wrap(pool.slots, "place")
        for name in POOL_CALLS + CHECKPOINT_CALLS:
            if not (name == "read" and pool is not e.active):
                breaker.wrap(pool, name)
    for name in CACHE_CALLS:
        breaker.wrap(e.cache, name)
    if e.cache.host is not None:
        for name in ("start_backup", "start_load", "evict"):
            breaker.wrap(e.cache.host, name)
    copy = transfers.copy_between
    transfers.copy_between = breaker.around(copy, "copy_between")
    try:
        yield
    finally:
        transfers.copy_between = copy
        breaker.on = False


def build(features: dict[str, Any]) -> Engine:
    sizes: dict[str, Any] = {
        "n_pages": 40,
        "n_active": 4,
        "n_checkpoints": 1,
        "max_running": 3,
        "chunk_tokens": 128,
        "placement": parse_placement("leaf+branch"),
    }
    return Engine(MODEL, EngineConfig(**{**sizes, **features}))


def one_run(features: dict[str, Any], breaker: Breaker) -> Engine:
    e = build(features)
    with breaking(e, breaker):
        first = e.submit(PROMPTS[0], NEW)
        e.run(200)
        breaker.on = False
        if e.host is not None:
            e.give_back(e.cache.evict(Bytes(kv=10**9)), "", "only the host has it now")
        breaker.on = True
        rest = [e.submit(p, NEW) for p in PROMPTS[1:]]
        gone = e.submit(PROMPTS[1], NEW)
        e.step()
        if rest[0].is_running:
            e.retract(rest[0], "on purpose")
        e.step()
        e.abort(gone.name)
        e.run(200)
    failed = 0
    for request, right in zip((first, *rest), RIGHT, strict=True):
        if request.finish_reason.startswith("failed: injected into "):
            failed += 1
        else:
            assert request.finish_reason == "length", breaker.broken
            assert request.generated == right, breaker.broken
    assert breaker.for_good or failed <= 1, breaker.broken
    assert_nothing_leaks(e)
    assert fold(e.events, e.empty_view()) == e.view()
    return e


def serves(e: Engine) -> None:
    later = e.submit(LATER, 2)
    e.run(50)
    assert later.finish_reason == "length"
    assert_nothing_leaks(e)


@pytest.mark.parametrize("features", CONFIGS.values(), ids=CONFIGS)
def test_a_failure_at_any_point_costs_at_most_its_own_request(features: dict[str, Any]) -> None:
    counter = Breaker(0)
    serves(one_run(features, counter))
    assert {"allocate", "gather", "write_many", "commit", "load"} <= counter.seen
    for at in range(1, counter.calls + 1):
        breaker = Breaker(at)
        serves(one_run(features, breaker))
        assert breaker.broken


def test_a_request_that_cannot_be_admitted_ends_and_takes_nothing_from_who_runs() -> None:
    e = Engine(MODEL, EngineConfig(n_active=1, max_running=2, check_every_step=True))
    runs = e.submit(PROMPTS[0], NEW)
    e.step()
    refused = e.submit(PROMPTS[2], NEW)
    breaker = Breaker(1)
    with breaking(e, breaker):
        e.step()
    assert refused.finish_reason.startswith("failed: injected into RadixStateCache.lookup")
    assert fold(e.events, e.empty_view()) == e.view()
    e.run(50)
    assert runs.generated == RIGHT[0]
    assert_nothing_leaks(e)


@pytest.mark.parametrize("features", CONFIGS.values(), ids=CONFIGS)
def test_memory_that_fails_for_good_leaks_nothing(features: dict[str, Any]) -> None:
    counter = Breaker(0)
    one_run(features, counter)
    for at in range(1, counter.calls + 1, 7):
        serves(one_run(features, Breaker(at, for_good=True)))
