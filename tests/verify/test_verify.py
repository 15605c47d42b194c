"""``kdalab verify`` passes on the code as it is, and fails when the code is broken."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
import torch
import typer
from typer.testing import CliRunner

from kdalab.cli.verify import _number, command
from kdalab.memory import CheckpointPool
from kdalab.memory.host import copy_between
from kdalab.model import tiny_model
from kdalab.model.kda import KDALayer
from kdalab.model.mla import MLALayer
from kdalab.verify.claim import Claim
from kdalab.verify.features import host_claim
from kdalab.verify.groups import Group
from kdalab.verify.k3 import k3_claims
from kdalab.verify.mlx_peer import mlx_missing
from kdalab.verify.network import chunk_claim, transformers_claims
from kdalab.verify.peers import transformers_missing
from kdalab.verify.restore import largest, restore_claims


def failed(claims: list[Claim]) -> list[str]:
    return [c.name for c in claims if c.failed]


def test_every_claim_about_restoring_holds() -> None:
    claims = restore_claims(12, seed=3)
    assert not failed(claims)
    assert all(c.cases >= 12 and c.limit == 0 for c in claims)
    assert "replayed known text" in claims[0].note
    assert not claims[0].note.startswith("0 of them")


def test_the_same_seed_tries_the_same_cases() -> None:
    assert restore_claims(4, seed=1) == restore_claims(4, seed=1)


def test_a_restore_that_forgets_the_conv_state_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = CheckpointPool.load

    def forgetful(
        self: CheckpointPool, checkpoint: Any, active: Any, slot: int, owner: str
    ) -> None:
        honest(self, checkpoint, active, slot, owner)
        active.conv[slot] = 0

    monkeypatch.setattr(CheckpointPool, "load", forgetful)
    names = failed(restore_claims(4, seed=1))
    assert "restored = straight: conv state" in names
    assert "restored = straight: logits" in names


def test_a_checkpoint_that_is_off_in_one_bit_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = CheckpointPool.store

    def noisy(self: CheckpointPool, *args: Any) -> Any:
        checkpoint = honest(self, *args)
        state = self.recurrent[checkpoint.slot].view(-1)
        state[0] = torch.nextafter(state[0], torch.tensor(9.0))
        return checkpoint

    monkeypatch.setattr(CheckpointPool, "store", noisy)
    assert "restored = straight: recurrent state" in failed(restore_claims(4, seed=1))


def test_a_broken_invariant_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CheckpointPool, "poison", lambda self, slots: None)
    claims = restore_claims(30, seed=1)
    assert failed(claims) == ["invariants hold, the log folds to the live objects"]
    assert "free memory stays poisoned" in claims[-1].note


def test_the_claim_about_the_host_tier_holds_and_loads_from_it() -> None:
    claim = host_claim(tiny_model(), 3, seed=2)
    assert claim.passed
    assert (claim.worst, claim.limit) == (0, 0)
    assert " loads from the host" in claim.note
    assert ", 0 loads" not in claim.note


def test_a_host_that_gives_back_another_bit_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def noisy(source: Any, target: Any, pages: Any, state: Any) -> None:
        copy_between(source, target, pages, state)
        if state is not None:
            target.checkpoints.conv[target.checkpoints.slots.place(state[1])][0, 0, 0] += 1e-6

    monkeypatch.setattr("kdalab.engine.transfers.copy_between", noisy)
    assert host_claim(tiny_model(), 3, seed=2).failed


def test_a_nan_is_the_largest_difference() -> None:
    assert largest(torch.tensor([float("nan")]), torch.zeros(1)) == float("inf")
    assert largest(torch.tensor([1.0]), torch.zeros(1)) == 1.0


def test_the_chunk_form_equals_the_recurrence() -> None:
    assert chunk_claim(20, seed=5).passed


@pytest.mark.skipif(bool(transformers_missing()), reason=transformers_missing() or "installed")
def test_a_wrong_epsilon_is_told_apart_by_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not failed(transformers_claims(0))
    honest = MLALayer.__init__

    def wrong(self: MLALayer, *args: Any) -> None:
        honest(self, *args)
        self.scale *= 1.01

    monkeypatch.setattr(MLALayer, "__init__", wrong)
    assert "model = transformers: logits" in failed(transformers_claims(0))


def test_every_claim_about_kimi_k3_holds() -> None:
    claims = k3_claims(2, seed=0)
    assert not failed(claims)
    assert [c.name for c in claims if c.skipped] == (
        ["tiny-k3 = mlx-lm: logits", "tiny-k3 = mlx-lm: states"] if mlx_missing() else []
    )
    assert [c.limit for c in claims[:2]] == [0, 1e-10]


def test_without_mlx_its_rows_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kdalab.verify.k3.mlx_missing", lambda: "mlx is not installed")
    claims = k3_claims(1, seed=0)
    assert [c.skipped for c in claims[2:]] == ["mlx is not installed"] * 2
    assert not failed(claims)


@pytest.mark.skipif(bool(mlx_missing()), reason=mlx_missing() or "installed")
def test_another_lower_bound_is_told_apart_by_mlx(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = KDALayer.__init__

    def wrong(self: KDALayer, *args: Any) -> None:
        honest(self, *args)
        self.lower_bound = -4.9

    monkeypatch.setattr(KDALayer, "__init__", wrong)
    assert failed(k3_claims(1, seed=0)) == ["tiny-k3 = mlx-lm: logits", "tiny-k3 = mlx-lm: states"]


def test_the_command_prints_json_and_exits_by_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    app = typer.Typer()
    app.command()(command)
    ok = CliRunner().invoke(app, ["--cases", "3", "--json"])
    assert ok.exit_code == 0, ok.output
    claims = json.loads(ok.stdout)["claims"]
    assert {"name", "cases", "worst", "limit", "passed"} <= set(claims[0])
    wrong = Group("always wrong", lambda cases, seed, progress: [Claim("x", 1, 1.0)])
    monkeypatch.setattr("kdalab.verify.groups.GROUPS", (wrong,))
    bad = CliRunner().invoke(app, ["--cases", "3"])
    assert bad.exit_code == 1
    assert "FAIL" in bad.stdout
    assert "always wrong ..." in bad.stderr


def test_the_tiny_model_is_left_as_it_was() -> None:
    a, b = tiny_model(), tiny_model()
    assert torch.equal(a.head, b.head)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.0, "0"),
        (1.0001, "1.0001"),
        (1.0, "1"),
        (3e-7, "3.0e-07"),
        (2e-2, "2.0e-02"),
        (12.5, "12.5"),
    ],
)
def test_numbers_near_one_keep_the_digits_that_tell_them_apart(value: float, shown: str) -> None:
    assert _number(value) == shown


def test_the_look_for_transformers_warns_of_nothing() -> None:
    code = "from kdalab.verify.peers import transformers_missing as f; f()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == ""
