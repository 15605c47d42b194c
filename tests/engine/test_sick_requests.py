"""A request whose numbers stop being numbers ends alone, and the others go on without it."""

from __future__ import annotations

import pytest
import torch

from kdalab.cache import parse_placement
from kdalab.engine import Engine, EngineConfig
from kdalab.errors import KdalabError
from kdalab.model import tiny_config, tiny_model
from kdalab.model.tiny import tiny_weights
from kdalab.model.weights import build

SICK = [7, 9, 11] * 20
WELL = [1, 2, 3] * 30


def poisoned_model():
    """The tiny model, with NaN where it looks up the first token that SICK generates."""
    weights = tiny_weights(0)
    first = tiny_model().greedy(SICK, 1)[0]
    assert first not in tiny_model().greedy(WELL, 6)
    weights["model.embed_tokens.weight"][first] = torch.nan
    return build(tiny_config(), weights, 8)


@pytest.mark.parametrize(
    "features",
    [
        {},
        {"poison": False},
        {"strategy": "extra_buffer"},
        {"checkpoint_dtype": "int8"},
        {"memory": "unified"},
        {"draft_tokens": 3},
        {"decode_interval": 64},
    ],
    ids=str,
)
def test_nan_in_decode_ends_its_own_request_and_no_other(features):
    engine = Engine(poisoned_model(), EngineConfig(check_every_step=True, **features))
    sick, well = engine.submit(SICK, 6), engine.submit(WELL, 6)
    engine.run()
    assert sick.finish_reason.startswith("failed: ")
    assert well.generated == tiny_model().greedy(WELL, 6)
    engine.check()


def test_an_interval_off_the_grid_is_refused_wherever_it_stands_in_a_placement():
    with pytest.raises(KdalabError, match=r"interval 100 is not a multiple of lcm\(64, 16\) = 64"):
        EngineConfig(page_tokens=16, placement=parse_placement("every:100+leaf"))
