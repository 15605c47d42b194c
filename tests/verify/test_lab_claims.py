"""The replay and the engine decide alike, and the claim notices when they do not."""

from __future__ import annotations

import pytest

from kdalab.lab.room import Room
from kdalab.verify.lab import lab_claims


def test_the_lab_decides_as_the_engine_does() -> None:
    claims = lab_claims(16, seed=1)
    assert [c.worst for c in claims] == [0] * 4, claims
    assert all(c.cases == 16 and not c.note.startswith("0 restored") for c in claims)


def test_a_lab_that_counts_one_state_too_few_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Room.give

    def leaking(self: Room, pages: int, states: int) -> None:
        honest(self, pages, max(0, states - 1))

    monkeypatch.setattr(Room, "give", leaking)
    monkeypatch.setattr("kdalab.lab.radix_run.RadixRun.check", lambda self: None)
    ample, evicted, *_ = lab_claims(16, seed=1)
    assert ample.passed
    assert evicted.failed
    assert "the engine restores" in evicted.note
