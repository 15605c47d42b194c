"""The claims about blocks hold as the code is, and fail when it is broken."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kdalab.engine.block.memory import BlockMemory
from kdalab.model import tiny_model
from kdalab.verify import blocks


@pytest.mark.slow
def test_every_claim_about_blocks_holds() -> None:
    claims = blocks.block_claims(4, seed=1)
    assert not [c.name for c in claims if not c.passed]
    assert all(c.limit == 0 for c in claims)


def test_a_few_cases_hold() -> None:
    model = tiny_model()
    claims = [fine_claim(), blocks._three_engines(model, 1, 0), blocks._speculation(model, 1, 0)]
    assert all(c.passed and c.limit == 0 for c in claims)


def fine_claim(seed: int = 0) -> blocks.Claim:
    return blocks._exact("hits", tiny_model(), 2, seed, blocks._fine, None)


def test_a_copy_that_is_not_made_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BlockMemory, "copy", lambda self, copies: None)
    assert fine_claim().failed


def test_a_state_read_without_its_conv_part_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = BlockMemory.read_states

    def forgetful(self: BlockMemory, *args: Any) -> tuple[torch.Tensor, torch.Tensor]:
        recurrent, conv = honest(self, *args)
        return recurrent, torch.zeros_like(conv)

    monkeypatch.setattr(BlockMemory, "read_states", forgetful)
    assert fine_claim().failed
