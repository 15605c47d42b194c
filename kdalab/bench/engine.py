"""What the engine costs beside the model that it runs: hits, restores, donations, decode steps.

Everything runs on the tiny model in one thread, and what is compared takes turns in one process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from kdalab.bench.timing import median_seconds, medians_in_turns

if TYPE_CHECKING:
    from kdalab.engine import Engine
    from kdalab.model import HybridModel

PROMPT = 1024
"""Tokens of the prompt whose first token is waited for."""

REPLAYS = (64, 256, 512)
BATCHES = (1, 4, 8, 16)
STATES: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "tiny": ((6, 4, 32, 32), (6, 3, 384)),
    "a quarter of Kimi-Linear": ((20, 8, 128, 128), (20, 3, 3072)),
    "Kimi-Linear": ((20, 32, 128, 128), (20, 3, 12288)),
}

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured number: ``value`` in ``unit``; ``limit`` is what is aimed at, if anything."""

    group: str
    name: str
    value: float
    unit: str
    limit: float | None = None
    note: str = ""

    @property
    def met(self) -> bool | None:
        """Within the limit; None where there is none."""
        return None if self.limit is None else self.value <= self.limit


def bench_engine(quick: bool = False, repeats: int | None = None) -> list[Figure]:
    """Measure all groups; ``quick`` takes shorter prompts, smaller states and fewer rounds."""
    from kdalab.model import tiny_model

    rounds = repeats or (3 if quick else 7)
    model = tiny_model(decode_rows=max(BATCHES))
    prompt = 512 if quick else PROMPT
    figures = first_tokens(model, prompt, rounds)
    names = list(STATES)[:2] if quick else list(STATES)
    for name in names:
        figures += state_costs(name, rounds)
    return figures + decode_steps(model, rounds, steps=8 if quick else 24)


def _engine(model: HybridModel, **changes: Any) -> Engine:
    from kdalab.engine import Engine, EngineConfig

    sizes: dict[str, Any] = {"n_pages": 2048, "n_active": 16, "n_checkpoints": 64, "poison": False}
    return Engine(model, EngineConfig(**{**sizes, **changes}))


def first_tokens(model: HybridModel, n: int, rounds: int) -> list[Figure]:
    """Seconds to the first token: cold, full hit, partial hits; and of the tails alone."""
    from kdalab.cache import parse_placement

    tokens = [(7 * i) % 250 for i in range(n)]

    def cold() -> None:
        _first(_engine(model), tokens)

    calls: dict[str, Callable[[], object]] = {"cold": cold}
    for replay in (0, *(r for r in REPLAYS if r < n)):
        # The text is known to its end. A state stands there too, but one token must be computed,
        # so the last that can be used is the one before: a cell or `replay` tokens more away.
        hit = n - 64 - replay
        warm = _engine(model, placement=parse_placement("leaf"))
        _first(warm, tokens[:hit])
        _first(warm, tokens)
        name = "full hit" if replay == 0 else f"partial hit, {replay} more"
        calls[name] = lambda e=warm, t=tokens: _first(e, t, keep=False)  # type: ignore[misc]
        calls[f"tail of {name}"] = _tail(model, tokens, hit)
    seconds = medians_in_turns(calls, rounds)
    group = "time to first token"
    figures = [Figure(group, "cold", seconds["cold"] * 1e3, "ms", note=f"{n} tokens")]
    for name in calls:
        if f"tail of {name}" not in seconds:
            continue
        taken, alone = seconds[name], seconds[f"tail of {name}"]
        figures.append(Figure(group, name, taken * 1e3, "ms"))
        figures.append(
            Figure(
                group,
                f"{name}, against its tail alone",
                taken / alone,
                "x",
                1.15,
                f"the tail alone takes {alone * 1e3:.3g} ms",
            )
        )
    return figures


def _first(engine: Engine, tokens: list[int], keep: bool = True) -> None:
    """One request to its first token. Without ``keep`` nothing of it stays in the cache."""
    from dataclasses import replace

    from kdalab.cache import parse_placement

    if not keep:
        engine.config = replace(engine.config, placement=parse_placement("branch"))
    engine.submit(tokens, 1)
    engine.run()


def _tail(model: HybridModel, tokens: list[int], start: int) -> Callable[[], object]:
    """The cells after ``start`` by the model alone, from states that lie ready."""
    import torch

    recurrent, conv, latent = model.states(tokens[:start])
    ids = torch.tensor(tokens)

    def run() -> None:
        r, c, past = recurrent, conv, latent
        for at in range(start, len(tokens), 64):
            out = model.prefill_cell(ids[at : at + 64], at, r, c, past, "last")
            r, c = out.recurrent, out.conv
            past = torch.cat([past, out.latent], 1)

    return run


def state_costs(name: str, rounds: int) -> list[Figure]:
    """Freeze, restore and donate one state of the shapes of ``STATES[name]``."""
    import torch

    from kdalab.memory import ActivePool, CheckpointPool, Int8CheckpointPool

    recurrent, conv = STATES[name]
    active = ActivePool(4, recurrent, conv)
    native, packed = CheckpointPool(2, recurrent, conv), Int8CheckpointPool(2, recurrent, conv)
    shared = CheckpointPool.sharing(active)
    for pool in (active, native, packed):
        pool.fill = None
    mine, other, given = (active.allocate("A") for _ in range(3))
    random = torch.Generator().manual_seed(0)
    for slot in (mine, other, given):
        active.write(
            slot, torch.randn(recurrent, generator=random), torch.randn(conv, generator=random), "A"
        )
    held, small = native.store(active, mine, 64, "A"), packed.store(active, mine, 64, "A")

    def stored(pool: Any) -> Callable[[], object]:
        return lambda: pool.free([pool.store(active, mine, 64, "A").slot])

    def donate() -> None:
        shared.adopt(given, 64, "A")
        shared.slots.transfer([given], "cache", "A")

    calls: dict[str, Callable[[], object]] = {
        "restore, native": lambda: native.load(held, active, other, "A"),
        "restore, INT8": lambda: packed.load(small, active, other, "A"),
        "freeze by copy, native": stored(native),
        "freeze by copy, INT8": stored(packed),
    }
    figures = [
        Figure(f"one state, {name}", label, s * 1e6, "us", note=f"{active.slot_bytes:,} bytes")
        for label, s in medians_in_turns(calls, rounds).items()
    ]
    many = 200

    def donate_often() -> None:
        for _ in range(many):
            donate()

    seconds = median_seconds(donate_often, rounds) / many
    figures.append(Figure(f"one state, {name}", "donate (and take back)", seconds * 1e6, "us"))
    return figures


def decode_steps(model: HybridModel, rounds: int, steps: int) -> list[Figure]:
    """Tokens a second by batch, and where the time of a step goes beside the model.

    Every request leaves a checkpoint within the measured steps, so that the tree has work to do.
    """
    figures = []
    for batch in BATCHES:
        total, parts = sorted(
            (_decode(model, batch, steps) for _ in range(rounds)), key=lambda taken: taken[0]
        )[rounds // 2]
        figures.append(Figure("decode", f"batch {batch}", batch * steps / total, "tokens/s"))
        if batch == max(BATCHES):
            share = {name: 100 * seconds / total for name, seconds in parts.items()}
            rest = 100 - sum(share.values())
            unit = "% of a step"
            figures += [
                Figure("decode", "one step of batch 16", total / steps * 1e3, "ms"),
                Figure("decode", "tree and slots (bookkeeping)", share["cache"], unit, 5.0),
                Figure("decode", "states and pages copied", share["copies"], unit),
                Figure("decode", "all else but the model", rest, unit),
            ]
    return figures


def _decode(model: HybridModel, batch: int, steps: int) -> tuple[float, dict[str, float]]:
    """Seconds of ``steps`` steps, and of those: in the model, in copies, in the cache's tree."""
    engine = _engine(model, decode_interval=64)
    for seed in range(batch):
        engine.submit([(seed * 11 + 3 * i) % 250 for i in range(60)], steps + 4)
    while engine.waiting or any(r.phase == "prefill" for r in engine.running):
        engine.step()
    clocks = {"model": 0.0, "copies": 0.0, "cache": 0.0}

    def time_calls(thing: Any, names: Sequence[str], clock: str) -> None:
        for name in names:
            setattr(thing, name, _timed(getattr(thing, name), clocks, clock))

    time_calls(model, ["decode"], "model")
    try:
        time_calls(engine.active, ["read_many", "write_many"], "copies")
        time_calls(engine.latents, ["gather", "write_tokens"], "copies")
        time_calls(engine.checkpoints, ["store"], "copies")
        time_calls(
            engine.cache,
            ["lookup", "acquire", "commit", "evict", "release", "unlock_state", "lock_state"],
            "cache",
        )
        for slots in (engine.active.slots, engine.latents.slots):
            time_calls(slots, ["allocate", "free", "transfer"], "cache")
        start = time.perf_counter()
        for _ in range(steps):
            engine.step()
        return time.perf_counter() - start, clocks
    finally:
        del model.decode  # the class's own again


def _timed(call: Callable[..., T], clocks: dict[str, float], clock: str) -> Callable[..., T]:
    def run(*args: Any, **kwargs: Any) -> T:
        start = time.perf_counter()
        try:
            return call(*args, **kwargs)
        finally:
            clocks[clock] += time.perf_counter() - start

    return run
