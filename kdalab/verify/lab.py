"""What a replay decides is what the engine decides: the same trace through both.

A trace holds ids of blocks and no text. Here each block id gets tokens of its own, made from the
id alone, so that the engine really computes prompts that share what the ids share. For each
request the token match and the restore point of both are compared: the figures of the lab are
sums of these.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
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
TREE = ("lru", "lru-path", "lru+cap:2", "marconi:0.5", "marconi:2+cap:2")
"""What is kept in a tree."""
BLOCKS = ("lru", "marconi:0.5", "marconi:2")
"""Which blocks go first."""


@dataclass(slots=True)
class Seen:
    """What a comparison has seen: how many requests, and how many were decided otherwise."""

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
    so little that it has to give things up, under the queue and under Marconi's order.

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
        chance, model, seen = random.Random(seed), tiny_model(), Seen()
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


def _batch(model: HybridModel, chance: random.Random, count: int, tight: bool, seen: Seen) -> None:
    placement, retention = chance.choice(PLACEMENTS), chance.choice(TREE)
    slots = chance.randint(2, 5) if tight else 400
    requests = generate(count, SHAPE, chance.randrange(2**31))
    compare_tree(model, placement, retention, slots, requests, seen)


def compare_tree(
    model: HybridModel,
    placement: str,
    retention: str,
    slots: int,
    requests: Iterable[TraceRequest],
    seen: Seen,
) -> None:
    """The same requests through a replay and an engine of ``slots`` checkpoints, every page kept;
    ``seen`` compares what both decide."""
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
    for request in requests:
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
    model: HybridModel, chance: random.Random, count: int, tight: bool, seen: Seen
) -> None:
    setup = Setup(
        model="tiny",
        cache="block",
        block=2 * CELL,
        unit=CELL,
        interval=chance.choice((None, 0, 4 * CELL)),
        retention=chance.choice(BLOCKS),
        layout=chance.choice(("padded", "packed")),
        chunk=512,
        memory=1,
    )
    n_blocks = chance.randint(20, 34) if tight else 4_000
    requests = generate(count, SHAPE, chance.randrange(2**31))
    compare_blocks(model, setup, n_blocks, requests, seen)


def compare_blocks(
    model: HybridModel,
    setup: Setup,
    n_blocks: int,
    requests: Iterable[TraceRequest],
    seen: Seen,
) -> None:
    """The same requests through a replay of ``setup`` and an engine, both of ``n_blocks``;
    ``seen`` compares what both decide."""
    size = n_blocks * layout_for(setup, CELL).stride
    setup = replace(setup, memory=size)
    engine = BlockEngine(
        model,
        BlockEngineConfig(
            total_bytes=size,
            n_blocks=n_blocks,
            layout=setup.layout,
            attention_block=setup.block,
            state_block=setup.block,
            unit=setup.unit,
            mode=setup.mode,
            retention=BlockRetention(setup.interval, block_order(setup.retention)),
            chunk_tokens=setup.chunk,
            max_running=1,
            cache_decoded=False,
            poison=False,
        ),
    )
    empty = Trace("", block_tokens=CELL)
    run = BlockRun(setup, empty, Account("", "", "tiny", CELL, 0, 0))
    for request in requests:
        served = run.start(request, alone=True)
        assert served is not None
        run.finish(served)
        run.check()
        asked = engine.submit(tokens_of(request), max_new_tokens=1)
        while not engine.is_idle:
            engine.step()
        assert asked.lookup is not None
        found = (asked.lookup.restore, asked.lookup.token_match)
        seen.compare(found, (served.restore, served.known), f"{setup}, request {request.line}")


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
