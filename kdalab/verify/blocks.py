"""The block engine: restored equals computed straight through, in every layout, mode and hit.

The same random prompts as in ``verify.restore``, in engines whose latent KV and states lie in one
pool of blocks, few enough that names are lost and requests preempted.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from kdalab.cache import BlockRetention, Lru, Marconi, PrefixKey
from kdalab.engine import Engine, EngineConfig, Request
from kdalab.engine import events as ev
from kdalab.engine.block import BlockEngine, BlockEngineConfig, fold
from kdalab.engine.drafters import Scripted
from kdalab.errors import InvariantError
from kdalab.model import HybridModel, tiny_model
from kdalab.verify.claim import Claim, Progress
from kdalab.verify.restore import (
    MAX_TOKENS,
    continue_alone,
    largest,
    random_prompt,
    straight_through,
)

BATCH = 8
"""Requests in one engine before it is built anew with other sizes."""

Features = Callable[[random.Random], dict[str, Any]]


@dataclass(slots=True)
class Seen:
    """The largest difference so far, and what was tried."""

    worst: float = 0.0
    restored: int = 0
    states: int = 0
    broken: str = ""
    events: Counter[str] = field(default_factory=Counter)

    def take(self, *differences: float) -> None:
        """Keep the largest."""
        self.worst = max(self.worst, *differences)


def block_claims(cases: int, seed: int, progress: Progress | None = None) -> list[Claim]:
    """Rows for both layouts, hits inside a block, retention, cache modes, equality with the radix
    engine, and speculative verification.

    Args:
        cases: restored prompts for each row.
        seed: of the random choices.
    """
    model = tiny_model()
    rows: list[tuple[str, Features]] = [
        ("padded blocks", lambda c: {"layout": "padded", **_coarse(c)}),
        ("packed blocks", lambda c: {"layout": "packed", **_coarse(c)}),
        ("hits inside a block", _fine),
        ("retention None, 0 and N, LRU and FLOP-aware", _retaining),
        ("cache mode all", lambda c: {"mode": "all", "retention": None, **_coarse(c)}),
    ]
    claims = [_exact(name, model, cases, seed, features, progress) for name, features in rows]
    claims.append(_three_engines(model, max(1, cases // 3), seed))
    claims.append(_speculation(model, max(1, cases // 3), seed))
    return claims


def _coarse(chance: random.Random) -> dict[str, Any]:
    return {"attention_block": 128, "state_block": 128, "retention": chance.choice([None, 0])}


def _fine(chance: random.Random) -> dict[str, Any]:
    block = chance.choice([128, 192, 256])
    return {
        "attention_block": block,
        "state_block": block,
        "unit": 64,
        "layout": chance.choice(["padded", "packed"]),
        "kernel_grid": chance.choice([0, 64]),
        "eagle": chance.random() < 0.25,
    }


def _retaining(chance: random.Random) -> dict[str, Any]:
    orders: list[Lru | Marconi] = [Lru(), Marconi(0.5), Marconi(2.0)]
    interval = chance.choice([None, 0, 64, 128, 192])
    return {
        "attention_block": 64,
        "state_block": 64,
        "layout": "packed",
        "retention": BlockRetention(interval, chance.choice(orders)),
    }


def _exact(
    what: str,
    model: HybridModel,
    cases: int,
    seed: int,
    features: Features,
    progress: Progress | None,
) -> Claim:
    chance, seen = random.Random(seed), Seen()
    while seen.restored < cases and not seen.broken:
        _run_batch(model, chance, min(BATCH, cases + 2), seen, features(chance))
        if progress is not None:
            progress(what, min(seen.restored, cases), cases)
    events = seen.events
    note = f"{seen.states} cached states recomputed; {events['CopyQueued']} copies"
    note += f", {events['Preempted']} preemptions, {events['NamesEvicted']} names lost"
    value = seen.worst
    if seen.broken:
        value, note = float("inf"), seen.broken
    name = f"{what}: restored = straight, states, latent KV, logits and tokens"
    return Claim(name, seen.restored, value, note=note)


def _run_batch(
    model: HybridModel, chance: random.Random, count: int, seen: Seen, features: dict[str, Any]
) -> None:
    engine = BlockEngine(
        model,
        BlockEngineConfig(
            n_blocks=chance.randint(22, 40),
            chunk_tokens=chance.choice([64, 128, 192, 320]),
            max_running=3,
            keep_logits=True,
            **features,
        ),
    )
    earlier: list[list[int]] = [[chance.randrange(256) for _ in range(MAX_TOKENS)]]
    alone: dict[str, list[int]] = {}
    try:
        while count > 0:
            wave: list[Request] = []
            for _ in range(chance.randint(1, 3)):
                tokens = random_prompt(earlier, chance)
                earlier.append(tokens)
                wave.append(engine.submit(tokens, max_new_tokens=chance.randint(2, 3)))
            count -= len(wave)
            while not engine.is_idle:
                engine.step()
                engine.check()
                for r in wave:
                    if r.phase == "decode" and r.computed == r.n_tokens and r.name not in alone:
                        alone[r.name] = _compare(engine, r, seen)
            for r in wave:
                pairs = zip(alone[r.name], r.generated, strict=True)
                seen.take(float(sum(a != b for a, b in pairs)))
        _recompute(engine, [r.tokens for r in engine.requests.values()], seen)
    except InvariantError as error:
        seen.broken = seen.broken or str(error)
        return
    seen.events.update(e.name for e in engine.events)
    if fold(engine.events, engine.empty_view()) != engine.view():
        seen.broken = seen.broken or "the folded log differs from the live objects"


def _compare(engine: BlockEngine, request: Request, seen: Seen) -> list[int]:
    """The request has just finished its prefill: what it holds, and its tokens alone."""
    logits, recurrent, conv, latent = straight_through(engine.model, request.tokens)
    mine = engine.state_of(engine.request(request.name))
    held = engine.latents_of(engine.request(request.name))
    computed = torch.stack(request.logits[: request.n_tokens - request.restore])
    seen.take(
        largest(mine[0], recurrent),
        largest(mine[1], conv),
        largest(held, latent),
        largest(computed, logits[request.restore :]),
    )
    seen.restored += request.restore > 0
    return continue_alone(engine.model, logits[-1], recurrent, conv, latent, request.max_new_tokens)


def _recompute(engine: BlockEngine, texts: list[tuple[int, ...]], seen: Seen) -> None:
    """What a cached state's name says, computed from nothing: its bytes must be just those."""
    cache, found = engine.cache, dict[bytes, tuple[int, ...]]()
    for tokens in texts:
        unit = cache.sizes.unit
        chain = cache.chain(PrefixKey.from_tokens(tokens, unit))
        found |= {chain.at(n): tokens[:n] for n in range(unit, chain.hashed + 1, unit)}
    tables = [cache.pool.tables[g] for g in cache.state_groups]
    for name in tables[0]:
        if name not in found or not all(name in table for table in tables):
            continue
        recurrent, conv, _ = engine.model.states(found[name])
        mine = engine.memory.read_state([table[name].id for table in tables])
        seen.take(largest(mine[0], recurrent), largest(mine[1], conv))
        seen.states += 1


def _three_engines(model: HybridModel, cases: int, seed: int) -> Claim:
    """One traffic in the radix engine and in both layouts of blocks."""
    chance, worst, n = random.Random(seed), 0.0, 0
    while n < cases:
        sizes: dict[str, Any] = {"attention_block": 192, "state_block": 192, "unit": 64}
        options: dict[str, Any] = {"keep_logits": True, "chunk_tokens": 192}
        engines: list[Engine | BlockEngine] = [Engine(model, EngineConfig(**options))]
        for layout in ("padded", "packed"):
            config = BlockEngineConfig(layout=layout, **sizes, **options)
            engines.append(BlockEngine(model, config))
        earlier = [[chance.randrange(256) for _ in range(MAX_TOKENS)]]
        for _ in range(min(6, cases - n)):
            tokens = random_prompt(earlier, chance)
            earlier.append(tokens)
            done: list[Request] = []
            for engine in engines:
                done.append(engine.submit(tokens, 3))
                engine.run()
            for other in done[1:]:
                worst = max(worst, float(other.generated != done[0].generated))
                both = min(len(other.logits), len(done[0].logits))
                pairs = zip(other.logits[-both:], done[0].logits[-both:], strict=True)
                worst = max(worst, *(largest(a, b) for a, b in pairs))
            n += 1
    return Claim("padded blocks = packed blocks = radix tree: logits and tokens", n, worst)


def _speculation(model: HybridModel, cases: int, seed: int) -> Claim:
    """Drafts of every quality, a block for every draft's state."""
    chance = random.Random(seed)
    root = [[chance.randrange(256) for _ in range(200)]]
    worst, accepted, drafted = 0.0, 0, 0
    for case in range(cases):
        prompt = random_prompt(root, chance)[: chance.randint(40, 100)]
        n = chance.randint(16, 30)
        layout = ("padded", "packed")[case % 2]
        plain = _decoded(model, prompt, n, layout)
        text = tuple(prompt) + tuple(plain.requests["A"].generated)
        drafter = Scripted((text,), miss=case % 4)
        fast = _decoded(model, prompt, n, layout, draft_tokens=1 + case % 5, drafter=drafter)
        pairs = zip(plain.requests["A"].logits, fast.requests["A"].logits, strict=True)
        worst = max(worst, *(largest(a, b) for a, b in pairs))
        verified = [e for e in fast.events if isinstance(e, ev.Verified)]
        accepted += sum(e.accepted for e in verified)
        drafted += sum(len(e.drafted) for e in verified)
    return Claim(
        "blocks: speculative verify = one token at a time",
        cases,
        worst,
        note=f"{accepted} of {drafted} drafted tokens accepted",
    )


def _decoded(
    model: HybridModel, prompt: list[int], n: int, layout: str, **features: Any
) -> BlockEngine:
    config = BlockEngineConfig(keep_logits=True, retention=None, layout=layout, **features)
    engine = BlockEngine(model, config)
    engine.submit(prompt, n)
    engine.run()
    engine.check()
    return engine
