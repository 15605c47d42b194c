"""Exactness with each feature of the engine on: donated slots, unified memory, the host tier,
speculation, INT8.

The same random prompts as in ``verify.restore``, in engines that do it another way. All but the
last change no bit; INT8 rounds once a snapshot, and its error is bounded and printed.
"""

from __future__ import annotations

import random
from typing import Any

import torch

from kdalab.cache import Bytes
from kdalab.engine import Engine, EngineConfig, HostConfig
from kdalab.engine.drafters import Scripted
from kdalab.engine.events import Snapshotted, Verified
from kdalab.model import HybridModel, tiny_model
from kdalab.verify.claim import Claim, Progress
from kdalab.verify.restore import BATCH, Worst, largest, random_prompt, run_batch

QMAX = 127


def engine_claims(cases: int, seed: int, progress: Progress | None = None) -> list[Claim]:
    """Rows for donation, unified memory, the host tier, speculative verification and INT8.

    Args:
        cases: restored prompts (or generated requests) for each feature.
        seed: of the random choices.
    """
    model = tiny_model()
    return [
        _exact("donated slots", model, cases, seed, progress, _donating),
        _exact("unified memory", model, cases, seed, progress, _unified),
        host_claim(model, cases, seed, progress),
        _speculation(model, max(1, cases // 6), seed),
        _int8(model, max(1, cases // 6), seed),
    ]


def _donating(chance: random.Random) -> dict[str, Any]:
    how = chance.choice(["extra_buffer", "extra_buffer_lazy"])
    return {"strategy": how, "overlap": chance.random() < 0.5}


def _unified(chance: random.Random) -> dict[str, Any]:
    how = chance.choice(["copy", "extra_buffer"])
    return {"memory": "unified", "strategy": how, "lazy_compaction": chance.random() < 0.5}


def host_claim(
    model: HybridModel, cases: int, seed: int, progress: Progress | None = None
) -> Claim:
    """Restored from the host's copy equals computed straight through."""
    return _exact("host tier", model, cases, seed, progress, _host_tier)


def _host_tier(chance: random.Random) -> dict[str, Any]:
    """All that is cached is copied down at once, and goes from the device after every wave: what
    is restored afterwards came from the host."""
    memory = {"memory": chance.choice(["split", "unified"])}
    how = {"strategy": chance.choice(["copy", "extra_buffer"])}
    host = HostConfig(chance.randint(40, 400), chance.randint(6, 60), write_through=1)
    return {"host": host, "between": _forget_device, **memory, **how}


def _forget_device(engine: Engine) -> None:
    everything = Bytes(kv=1 << 60, state=1 << 60)
    engine.give_back(engine.cache.evict(everything), "", "verified with the host alone")


def _exact(
    what: str,
    model: HybridModel,
    cases: int,
    seed: int,
    progress: Progress | None,
    features: Any,
) -> Claim:
    chance = random.Random(seed)
    worst = Worst()
    while worst.restored < cases and not worst.broken:
        run_batch(model, chance, min(BATCH, cases + 2), worst, **features(chance))
        if progress is not None:
            progress(what, min(worst.restored, cases), cases)
    seen = worst.events
    note = f"{seen['Donated']} donations, {seen['Moved']} moves"
    note += f", {seen['Loaded']} loads from the host" * (what == "host tier")
    value = max(worst.recurrent, worst.conv, worst.latent, worst.logits, worst.decoded)
    if worst.broken:
        value, note = float("inf"), worst.broken
    name = f"{what}: restored = straight, states, latent KV, logits and tokens"
    return Claim(name, worst.restored, value, note=note)


def _speculation(model: HybridModel, cases: int, seed: int) -> Claim:
    """Drafts of every quality, and a boundary that an accepted run crosses; all bit for bit."""
    chance = random.Random(seed)
    root = [[chance.randrange(256) for _ in range(200)]]
    worst, accepted, drafted = 0.0, 0, 0
    for case in range(cases):
        prompt = random_prompt(root, chance)[: chance.randint(40, 100)]
        n = chance.randint(20, 40)
        plain = _decoded(model, prompt, n)
        text = tuple(prompt) + tuple(plain.requests["A"].generated)
        drafter = Scripted((text,), miss=case % 4)
        fast = _decoded(model, prompt, n, draft_tokens=1 + case % 5, drafter=drafter)
        pairs = zip(plain.requests["A"].logits, fast.requests["A"].logits, strict=True)
        worst = max(worst, *(largest(a, b) for a, b in pairs))
        for end, slot in _checkpoints(plain).items():
            other = _checkpoints(fast)[end]
            for a, b in zip(
                plain.checkpoints.read(slot), fast.checkpoints.read(other), strict=True
            ):
                worst = max(worst, largest(a, b))
        verified = [e for e in fast.events if isinstance(e, Verified)]
        accepted += sum(e.accepted for e in verified)
        drafted += sum(len(e.drafted) for e in verified)
    return Claim(
        "speculative verify = one token at a time: logits and checkpoints",
        cases,
        worst,
        note=f"{accepted} of {drafted} drafted tokens accepted",
    )


def _decoded(model: HybridModel, prompt: list[int], n: int, **features: Any) -> Engine:
    engine = Engine(model, EngineConfig(keep_logits=True, decode_interval=64, **features))
    engine.submit(prompt, n)
    engine.run()
    engine.check()
    return engine


def _checkpoints(engine: Engine) -> dict[int, int]:
    """Boundary -> slot of every checkpoint in the tree."""
    states = [n.state for n in engine.cache.nodes.values() if n.state is not None]
    return {s.boundary: s.slot for s in states}


def _int8(model: HybridModel, cases: int, seed: int) -> Claim:
    """What a restore reads against the state that was stored, in half steps of its channel."""
    chance = random.Random(seed)
    worst, absolute, logits, n = 0.0, 0.0, 0.0, 0
    size = ratio = 0.0
    while n < cases:
        prompt = [chance.randrange(256) for _ in range(chance.randint(70, 300))]
        engine = Engine(model, EngineConfig(checkpoint_dtype="int8", keep_logits=True))
        engine.submit(prompt, 1)
        engine.run()
        for boundary, slot in _checkpoints(engine).items():
            state, conv, _ = model.states(prompt[:boundary])
            read = engine.checkpoints.read(slot)
            step = state.abs().amax(-2, keepdim=True).clamp_min(1e-8) / QMAX
            worst = max(worst, float(((read[0] - state).abs() / (step / 2)).max()))
            worst = max(worst, float("inf") if not torch.equal(read[1], conv) else 0.0)
            n += 1
        snapshots = [e for e in engine.events if isinstance(e, Snapshotted)]
        absolute = max(absolute, *(e.error for e in snapshots))
        again = engine.submit([*prompt, 1], 1)
        engine.run()
        full = model.logits([*prompt, 1])[-1]
        logits = max(logits, largest(again.logits[-1], full))
        size, ratio = engine.checkpoints.slot_bytes, engine.active.slot_bytes
    return Claim(
        "INT8 checkpoints: one rounding a snapshot, conv untouched",
        n,
        worst,
        # Half a step is the rounding to INT8. Quotient and product are rounded to float32 as well,
        # each by at most 127 * 2^-24 steps: 3e-5 half steps together.
        limit=1.0001,
        unit="half quantisation steps of its channel",
        note=(
            f"state off by at most {absolute:.1e}, logits after a restore by {logits:.1e}; "
            f"{ratio / size:.2f} times as many in the same bytes"
        ),
    )
