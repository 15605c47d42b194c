"""Training from end to end, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from kdalab.cli.main import build_app
from kdalab.errors import KdalabError
from kdalab.recall import NETWORKS, Plan, curves, train


def kdalab(*args: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(build_app(), list(args))
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.stdout, " ".join(done.stderr.split())


def test_twenty_steps_write_weights_that_can_be_measured(tmp_path: Path) -> None:
    out = tmp_path / "new" / "weights"
    args = ("train", "recall", "--network", "hybrid", "--steps", "20", "--out", str(out))
    code, stdout, stderr = kdalab(*args)
    assert code == 0, stderr
    assert f"{out / 'hybrid' / 'model.safetensors'}: 112,503 trained" in stdout.replace("\n", "")
    assert f"kdalab recall --weights {out}" in stdout.replace("\n", "")
    assert sorted(p.name for p in (out / "hybrid").iterdir()) == [
        "config.json",
        "model.safetensors",
    ]
    rows = curves(["hybrid"], [4], [0.0], 2, folder=out)
    assert [(r.questions, r.pairs) for r in rows] == [(8, 4)]

    before = (out / "hybrid" / "model.safetensors").read_bytes()
    code, _, stderr = kdalab(*args)
    assert code == 2
    assert "exists; give another folder with --out, or --force" in stderr
    assert (out / "hybrid" / "model.safetensors").read_bytes() == before
    code, _, stderr = kdalab(*args[:-4], "--steps", "1", "--out", str(out), "--force")
    assert code == 0, stderr
    assert (out / "hybrid" / "model.safetensors").read_bytes() != before


def test_the_same_seed_gives_the_same_weights_and_another_does_not() -> None:
    plan = Plan(steps=3, tokens=200)
    first, again = (train("kda", plan).weights for _ in range(2))
    other = train("kda", Plan(steps=3, tokens=200, seed=1)).weights
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)


def test_every_trained_tensor_moves_and_no_frozen_one_does() -> None:
    from kdalab.recall.training import fresh_network

    for name in NETWORKS:
        before = fresh_network(name, 0).state_dict()
        after = train(name, Plan(steps=1, tokens=200)).weights
        still = {k for k in before if torch.equal(before[k], after[k])}
        assert still == {"model.embed_tokens.weight", "lm_head.weight"}


def test_a_few_steps_lower_the_loss() -> None:
    losses: list[float] = []
    train("mla", Plan(steps=60, tokens=600), lambda _, loss, __: losses.append(loss))
    assert len(losses) == 60
    assert sum(losses[-10:]) < 0.9 * sum(losses[:10])


def test_the_limit_on_pairs_grows_to_all_keys() -> None:
    plan = Plan(steps=100)
    limits = [plan.most_pairs(step) for step in range(100)]
    assert limits == sorted(limits)
    assert (limits[0], limits[40], limits[-1]) == (8, 128, 128)
    assert plan.rate(60) > plan.rate(99) > 0


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--steps", "0"], "steps must be 1 to 1,000,000, not 0"),
        (["--steps", "1", "--seed", "-1"], "the seed must be 0 to 2^63 - 1, not -1"),
        (["--network", "gdn"], "unknown network 'gdn'; use one of kda, hybrid, mla, all"),
    ],
)
def test_bad_input_is_one_message_and_leaves_nothing(
    args: list[str], message: str, tmp_path: Path
) -> None:
    out = tmp_path / "weights"
    code, _, stderr = kdalab("train", "recall", *args, "--out", str(out))
    assert code == 2
    assert message in stderr
    assert not out.exists()


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "weights"
    file.write_text("mine")
    code, _, stderr = kdalab("train", "recall", "--steps", "1", "--out", str(file))
    assert code == 2
    assert "is a file; give a folder" in stderr
    assert file.read_text() == "mine"


def test_a_loss_that_is_not_a_number_ends_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kdalab.recall.training._step", lambda *_: (float("nan"), 0.0))
    with pytest.raises(KdalabError, match="loss of kda is nan at step 1"):
        train("kda", Plan(steps=2))


def test_the_saved_dtypes_are_fp32_but_for_the_tables_of_the_task(tmp_path: Path) -> None:
    from kdalab.recall import save

    file = save(train("kda", Plan(steps=1, tokens=100)), tmp_path)
    kinds = {name: x.dtype for name, x in load_file(file).items()}
    half = {name for name, dtype in kinds.items() if dtype == torch.float16}
    assert half == {"model.embed_tokens.weight", "lm_head.weight"}
    assert json.loads((file.parent / "config.json").read_text())["model_type"] == "kimi_linear"
