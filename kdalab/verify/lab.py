"""What a replay decides is what the engine decides: the same trace through both.

A trace holds ids of blocks and no text. Here each block id gets tokens of its own, made from the
id alone, so that the engine really computes prompts that share what the ids share. For each
request the token match and the restore point of both are compared: the figures of the lab are
sums of these.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from kdalab.cache import parse_placement
from kdalab.engine import CELL, Engine, EngineConfig
from kdalab.engine.events import Matched
from kdalab.lab import Account, Setup, TraceRequest
from kdalab.lab.generate import Draw, Shape, generate
from kdalab.lab.radix_run import RadixRun
from kdalab.model import HybridModel, tiny_model
from kdalab.spec import preset, state_sizes
from kdalab.verify.claim import Claim, Progress

BATCH = 20
"""Requests in one engine before it is built anew with other sizes."""

SHAPE = Shape(
    block_tokens=CELL,
    systems=3,
    system=Draw(100, 0.5, most=200),
    first=Draw(70, 0.8, most=200),
    added=Draw(50, 0.8, most=150),
    output=Draw(10, 0.5, most=40),
    think=Draw(1, 1.0),
    go_on=(4.0, 1.0),
    branch=0.2,
    most=320,
)
PLACEMENTS = ("leaf", "leaf+branch", "every:128", "all", "branch-first", "tail-first")


@dataclass(slots=True)
class _Seen:
    requests: int = 0
    restored: int = 0
    replayed: int = 0
    wrong: int = 0
    note: str = ""


def lab_claims(cases: int, seed: int, progress: Progress | None = None) -> list[Claim]:
    """Two rows: with room for every checkpoint, and with so little that states are evicted.

    Args:
        cases: requests of each row, in engines of random placements and retentions.
        seed: of the random choices.
    """
    claims = []
    for name, tight in (("ample memory", False), ("evicted states", True)):
        chance, model, seen = random.Random(seed), tiny_model(), _Seen()
        while seen.requests < cases:
            _batch(model, chance, min(BATCH, cases - seen.requests), tight, seen)
            if progress is not None:
                progress("lab = engine", seen.requests, cases)
        note = f"{seen.restored} restored, {seen.replayed} replayed known text"
        claims.append(
            Claim(
                f"lab = engine: restore point and token match, {name}",
                seen.requests,
                float(seen.wrong),
                unit="requests decided otherwise",
                note=seen.note or note,
            )
        )
    return claims


def _batch(model: HybridModel, chance: random.Random, count: int, tight: bool, seen: _Seen) -> None:
    placement = chance.choice(PLACEMENTS)
    retention = chance.choice(("lru", "lru-path", "lru+cap:2"))
    slots = chance.randint(2, 5) if tight else 400
    engine = Engine(
        model,
        EngineConfig(
            page_tokens=CELL,
            n_pages=400,
            n_active=1,
            n_checkpoints=slots,
            chunk_tokens=512,
            placement=parse_placement(placement),
            retention=retention,
        ),
    )
    run = RadixRun(_setup(placement, retention, slots), CELL, Account("", "", "tiny", CELL, 0, 0))
    for request in generate(count, SHAPE, chance.randrange(2**31)):
        served = run.start(request, alone=True)
        assert served is not None
        run.finish(served)
        run.check()
        found = _matched(engine, request)
        seen.requests += 1
        seen.restored += served.restore > 0
        seen.replayed += served.known > served.restore
        if found != (served.restore, served.known):
            seen.wrong += 1
            seen.note = seen.note or (
                f"{placement}, {retention}, {slots} slots, request {request.line}: the engine "
                f"restores {found[0]} of {found[1]}, the lab {served.restore} of {served.known}"
            )


def _setup(placement: str, retention: str, slots: int) -> Setup:
    """Fixed pools with room for ``slots`` checkpoints, and for every page."""
    sizes = state_sizes(preset("tiny"))
    kv = sizes.latent_bytes(400 * CELL)
    # Half a checkpoint more: the split of a memory rounds down.
    state = slots * sizes.checkpoint_bytes + sizes.checkpoint_bytes // 2
    return Setup(
        model="tiny",
        checkpoints=placement,
        retention=retention,
        memory=kv + state,
        split=state / kv,
    )


def _matched(engine: Engine, request: TraceRequest) -> tuple[int, int]:
    """Run the request through the engine; (restore point, token match) of its lookup."""
    first = len(engine.events)
    engine.submit(tokens_of(request), max_new_tokens=1)
    while not engine.is_idle:
        engine.step()
    (found,) = [e for e in engine.events[first:] if isinstance(e, Matched)]
    return found.restore, found.token_match


def tokens_of(request: TraceRequest) -> list[int]:
    """Tokens for a prompt of blocks of one cell: each block's from its id, the rest from the
    request's line, so that no two requests share a partial block."""
    tokens: list[int] = []
    for block in request.blocks[: request.input_tokens // CELL]:
        chance = random.Random(block)
        tokens += [chance.randrange(256) for _ in range(CELL)]
    chance = random.Random(-request.line)
    return tokens + [chance.randrange(256) for _ in range(request.input_tokens - len(tokens))]
