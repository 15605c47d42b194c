"""The claims about moving state hold, and fail when the code is broken."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kdalab.engine.arrivals import Arrival
from kdalab.model import tiny_model
from kdalab.transfer import instance, matrix, ranks
from kdalab.verify.claim import Claim
from kdalab.verify.transfer import (
    fetched_claim,
    moved_claim,
    refusal_claim,
    reslice_claim,
    transfer_claims,
)


def test_every_claim_about_moving_state_holds() -> None:
    claims = transfer_claims(6, seed=2)
    assert [c.name for c in claims if not c.passed] == []
    assert all(c.limit == 0 for c in claims)


def test_a_cut_across_q_k_and_v_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def across(parts: list[torch.Tensor], _: Any, to: int, rank: int) -> torch.Tensor:
        return torch.cat(list(parts), -1).chunk(to, -1)[rank].contiguous()

    monkeypatch.setattr(ranks, "reslice_conv", across)
    assert reslice_claim(12, 0).failed


@pytest.mark.parametrize("what", ["conv", "recurrent", "latent"])
def test_a_state_that_changes_on_the_way_is_found(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = instance.arrival

    def changed(*args: Any) -> Arrival:
        came = honest(*args)
        parts = {n: getattr(came, n).clone() for n in ("latent", "recurrent", "conv")}
        parts[what].view(-1)[0] += 1
        return Arrival(came.boundary, source=came.source, **parts)

    monkeypatch.setattr(instance, "arrival", changed)
    from kdalab.transfer import directory

    monkeypatch.setattr(directory, "arrival", changed)
    model = tiny_model()
    assert moved_claim(model, 3, 1).failed
    assert fetched_claim(model, 2, 1).failed


def test_a_check_that_looks_away_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matrix.Bundle, "require", lambda *_: None)
    claim: Claim = refusal_claim()
    assert claim.failed
    assert "another tokenizer" in claim.note
