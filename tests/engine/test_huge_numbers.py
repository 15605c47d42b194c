"""What cannot be is named in one line, however many digits it has: Python prints 4,300 at most."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
from block_engine_cases import SMALL, block_engine

from kdalab.engine import Engine, EngineConfig
from kdalab.engine.block import BlockEngineConfig
from kdalab.errors import KdalabError, shown

HUGE = 10**5000


def test_a_wrong_value_is_shown_short() -> None:
    assert shown(7) == "7"
    assert shown("a") == "'a'"
    assert shown(HUGE) == f"a number of {HUGE.bit_length():,} bits"
    assert shown([HUGE]) == "a list that cannot be printed"
    assert shown("x" * 100) == repr("x" * 100)[:57] + "..."
    assert shown("\ud800").encode() == rb"'\ud800'"


@pytest.mark.parametrize("name", [f.name for f in fields(BlockEngineConfig)])
@pytest.mark.parametrize("sign", [1, -1])
def test_every_setting_of_the_block_engine_refuses_a_number_without_end(
    name: str, sign: int
) -> None:
    with pytest.raises(KdalabError) as error:
        BlockEngineConfig(**{name: sign * HUGE})  # type: ignore[arg-type]
    assert len(str(error.value)) < 300


@pytest.mark.parametrize("kind", ["radix", "block"])
def test_every_call_refuses_a_number_without_end(kind: str) -> None:
    engine: Any = Engine(SMALL, EngineConfig()) if kind == "radix" else block_engine()
    settle = engine.settle if kind == "radix" else engine.abort
    hold = engine.hold_moves if kind == "radix" else engine.abort
    calls = [
        lambda: engine.submit([1], max_new_tokens=HUGE),
        lambda: engine.submit([1], max_new_tokens=-HUGE),
        lambda: engine.submit([HUGE]),
        lambda: engine.submit([1], name=HUGE),
        lambda: engine.submit([1], identity=HUGE),
        lambda: engine.abort(HUGE),
        lambda: engine.state_of(HUGE),
        lambda: settle(HUGE),
        lambda: hold(HUGE),
        lambda: engine.run(HUGE),
        lambda: engine.run("x"),
        lambda: type(engine)(SMALL, HUGE),
    ]
    if kind == "block":
        calls.append(lambda: engine.submit([1], salt=HUGE))
        calls.append(lambda: engine.latents_of(HUGE))
    for call in calls:
        with pytest.raises(KdalabError) as error:
            call()
        assert len(str(error.value)) < 300
    assert not engine.requests
    assert not engine.events
