"""What a replay decides is what the engine decides: the same trace through both.

A trace holds ids of blocks and no text. Here each block id gets tokens of its own, made from the
id alone, so that the engine really computes prompts that share what the ids share. For each
request the token match and the restore point of both are compared: the figures of the lab are
sums of these.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from kdalab.cache import BlockRetention, parse_placement
from kdalab.engine import CELL, Engine, EngineConfig
from kdalab.engine.block import BlockEngine, BlockEngineConfig
from kdalab.engine.events import Matched
from kdalab.lab import Account, Setup, Trace, TraceRequest
from kdalab.lab.block_run import BlockRun, layout_for
from kdalab.lab.generate import Draw, Shape, generate
from kdalab.lab.policies import block_order
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

    def compare(self, engine: tuple[int, int], lab: tuple[int, int], what: str) -> None:
        """(restore point, token match) of one request in both."""
        self.requests += 1
        self.restored += lab[0] > 0
        self.replayed += lab[1] > lab[0]
        if engine != lab:
            self.wrong += 1
            self.note = self.note or (
                f"{what}: the engine restores {engine[0]} of {engine[1]}, the lab {lab[0]} of "
                f"{lab[1]}"
            )


def lab_claims(cases: int, seed: int, progress: Progress | None = None) -> list[Claim]:
    """Four rows: the tree and the blocks, each with room for all that it wants to keep, and with
    so little that it has to give things up.

    Args:
        cases: requests of each row, in engines of random placements and retentions.
        seed: of the random choices.
    """
    claims = []
    for name, batch, tight in (
        ("ample memory", _batch, False),
        ("evicted states", _batch, True),
        ("blocks, ample memory", _block_batch, False),
        ("blocks, evicted", _block_batch, True),
    ):
        chance, model, seen = random.Random(seed), tiny_model(), _Seen()
        while seen.requests < cases:
            batch(model, chance, min(BATCH, cases - seen.requests), tight, seen)
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
        what = f"{placement}, {retention}, {slots} slots, request {request.line}"
        seen.compare(found, (served.restore, served.known), what)


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


def _block_batch(
    model: HybridModel, chance: random.Random, count: int, tight: bool, seen: _Seen
) -> None:
    block = 2 * CELL
    setup = Setup(
        model="tiny",
        cache="block",
        block=block,
        unit=CELL,
        interval=chance.choice((None, 0, 4 * CELL)),
        # Marconi's ages count what is given back at once, and an engine, which has one more step at
        # a request's end, gives back in two goes what a replay gives back in one. Under that order
        # the two can choose otherwise, so this claim is about the queue.
        retention="lru",
        layout=chance.choice(("padded", "packed")),
        chunk=512,
        memory=1,
    )
    groups = layout_for(setup, CELL)
    n_blocks = chance.randint(20, 34) if tight else 4_000
    setup = replace(setup, memory=n_blocks * groups.stride)
    engine = BlockEngine(
        model,
        BlockEngineConfig(
            total_bytes=n_blocks * groups.stride,
            n_blocks=n_blocks,
            layout=setup.layout,
            attention_block=block,
            state_block=block,
            unit=CELL,
            retention=BlockRetention(setup.interval, block_order(setup.retention)),
            chunk_tokens=setup.chunk,
            max_running=1,
            cache_decoded=False,
            poison=False,
        ),
    )
    empty = Trace("", block_tokens=CELL)
    run = BlockRun(setup, empty, Account("", "", "tiny", CELL, 0, 0))
    for request in generate(count, SHAPE, chance.randrange(2**31)):
        served = run.start(request, alone=True)
        assert served is not None
        run.finish(served)
        run.check()
        asked = engine.submit(tokens_of(request), max_new_tokens=1)
        while not engine.is_idle:
            engine.step()
        assert asked.lookup is not None
        found = (asked.lookup.restore, asked.lookup.token_match)
        what = f"{setup}, request {request.line}"
        seen.compare(found, (served.restore, served.known), what)


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
