"""Under Marconi's order a replay and an engine give up the same things, one request after another.

Which blocks and nodes go rests on names, ages and sizes, never on numbers: so the model's cells are
computed once for each length and used again, and hundreds of requests take seconds.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from kdalab.lab import Setup
from kdalab.lab.generate import generate
from kdalab.model import HybridModel, tiny_model
from kdalab.verify.lab import CELL, SHAPE, Seen, compare_blocks, compare_tree

INTERVALS = (None, 0, 4 * CELL)
LAYOUTS = ("padded", "packed")


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> HybridModel:
    model, known = tiny_model(), {}
    honest = model.prefill_cell

    def once(tokens: Any, *rest: Any, logits: str, **more: Any) -> Any:
        key = (len(tokens), logits)
        if key not in known:
            known[key] = honest(tokens, *rest, logits=logits, **more)
        return known[key]

    monkeypatch.setattr(model, "prefill_cell", once)
    return model


@pytest.mark.parametrize("seed", range(2, 6))
@pytest.mark.parametrize("retention", ["lru", "marconi:0.5", "marconi:2"])
def test_a_replay_of_blocks_decides_as_the_engine_does(
    model: HybridModel, retention: str, seed: int
) -> None:
    chance, seen = random.Random(seed), Seen()
    for number, interval in enumerate(INTERVALS):
        block = chance.choice((2, 2, 4)) * CELL
        setup = Setup(
            model="tiny",
            cache="block",
            block=block,
            unit=chance.choice((CELL, block)),
            interval=interval,
            retention=retention,
            layout=LAYOUTS[(seed + number) % 2],
            chunk=chance.choice((256, 512)),
            memory=1,
        )
        n_blocks = chance.randint(20, 34) if block == 2 * CELL else chance.randint(18, 26)
        compare_blocks(model, setup, n_blocks, generate(40, SHAPE, seed), seen)
    assert (seen.requests, seen.wrong) == (120, 0), seen.note
    assert seen.restored


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("retention", ["marconi:0.5", "marconi:2", "marconi:1+cap:2"])
def test_a_replay_of_a_tree_decides_as_the_engine_does(
    model: HybridModel, retention: str, seed: int
) -> None:
    chance, seen = random.Random(seed), Seen()
    for placement in ("leaf+branch", "every:128", "all"):
        requests = generate(20, SHAPE, seed)
        compare_tree(model, placement, retention, chance.randint(2, 5), requests, seen)
    assert (seen.requests, seen.wrong) == (60, 0), seen.note
    assert seen.restored
