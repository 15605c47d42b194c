"""What the shipped networks recall, and the command that prints it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from kdalab.cli.main import build_app
from kdalab.errors import KdalabError
from kdalab.recall import CHANCE, NETWORKS, SIMILARITIES, Row, curves, load, memory_of, task


def kdalab(*args: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(build_app(), list(args))
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.stdout, " ".join(done.stderr.split())


@pytest.fixture(scope="module")
def accuracy() -> Callable[[str, float, int], float]:
    """Of the shipped networks, over 6 episodes for each number."""
    torch.set_num_threads(1)
    rows = curves(pairs=(8, 128), episodes=6, seed=77)
    assert len(rows) == len(NETWORKS) * len(SIMILARITIES) * 2
    table = {(r.network, r.similarity, r.pairs): r.accuracy for r in rows}
    return lambda *key: table[key]


@pytest.mark.parametrize("similarity", SIMILARITIES)
@pytest.mark.parametrize("name", ["hybrid", "mla"])
def test_with_latent_kv_nothing_is_forgotten(
    accuracy: Callable[[str, float, int], float], name: str, similarity: float
) -> None:
    assert accuracy(name, similarity, 8) > 0.98
    assert accuracy(name, similarity, 128) > 0.98


@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_a_fixed_state_alone_fails_beyond_its_capacity(
    accuracy: Callable[[str, float, int], float], similarity: float
) -> None:
    if similarity < 0.99:
        assert accuracy("kda", similarity, 8) > 0.9
    assert 2 * CHANCE < accuracy("kda", similarity, 128) < 0.6


def test_a_fixed_state_mixes_up_keys_that_are_alike(
    accuracy: Callable[[str, float, int], float],
) -> None:
    assert accuracy("kda", 0.99, 8) < accuracy("kda", 0.0, 8) - 0.15


def test_accuracy_is_counted_from_the_logits_of_the_served_network() -> None:
    (row,) = curves(["kda"], [70], [0.9], episodes=2, seed=3)
    batch = task.episodes(2, 70, 0.9, torch.Generator().manual_seed(3))
    right = 0
    for tokens, answers in zip(batch.tokens.tolist(), batch.answers.tolist(), strict=True):
        logits = load("kda").logits(tokens)
        for i, answer in enumerate(answers):
            scores = logits[70 + i].tolist()[task.ANSWER :]
            right += scores.index(max(scores)) == answer
    assert (row.correct, row.questions) == (right, 2 * 64)
    assert row.accuracy == right / 128


def test_memory_is_that_of_the_served_states() -> None:
    for name in NETWORKS:
        recurrent, conv, latent = load(name).zero_state()
        memory = memory_of(name)
        assert memory.state_bytes == 4 * (recurrent.numel() + conv.numel())
        assert memory.bytes_per_token == 4 * latent.shape[0] * latent.shape[2]


def test_rows_are_plain_data() -> None:
    row = Row("kda", 0.5, 8, 2, 16, 12, 100)
    assert row.as_dict() == {
        "network": "kda",
        "similarity": 0.5,
        "pairs": 8,
        "episodes": 2,
        "questions": 16,
        "correct": 12,
        "memory_bytes": 100,
        "accuracy": 0.75,
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"networks": []}, "at least one network"),
        ({"networks": ["gdn"]}, "use one of kda, hybrid, mla"),
        ({"pairs": [200]}, "1 to 128 pairs"),
        ({"similarities": [0.7]}, "use one of 0, 0.9, 0.99"),
        ({"episodes": 0}, "at least 1, not 0"),
        ({"seed": -1}, "the seed must be"),
    ],
)
def test_impossible_curves_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(KdalabError, match=message):
        curves(**change)  # type: ignore[arg-type]


def test_the_command_prints_a_table_for_each_similarity() -> None:
    code, stdout, stderr = kdalab("recall", "--pairs", "4,8", "--episodes", "1")
    assert code == 0, stderr
    for similarity in SIMILARITIES:
        assert f"cosine {similarity:g}" in stdout
    assert stdout.count("3 KDA : 1 MLA") == len(SIMILARITIES) + 1


def test_the_command_prints_json_with_the_history_of_the_weights() -> None:
    args = ("recall", "--pairs", "4", "--episodes", "1", "--seed", "5", "--json")
    code, stdout, stderr = kdalab(*args)
    assert code == 0, stderr
    out = json.loads(stdout)
    assert out["chance"] == CHANCE
    assert out["networks"]["hybrid"]["command"].startswith("kdalab train recall --network hybrid")
    assert out["rows"] == [r.as_dict() for r in curves(pairs=[4], episodes=1, seed=5)]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--pairs", "8,many"], "is not a list of whole numbers such as 8,64,128"),
        (["--pairs", "\u00b2"], "is not a list of whole numbers"),
        (["--pairs", "129"], "1 to 128 pairs"),
        (["--weights", "/no/such/folder"], "make them with `kdalab train recall --network kda"),
        (["--seed", "-1"], "the seed must be 0 to 2^63 - 1"),
    ],
)
def test_bad_input_is_one_message(args: list[str], message: str) -> None:
    code, _, stderr = kdalab("recall", *args)
    assert code == 2
    assert message in stderr


def test_weights_of_another_folder_are_measured(tmp_path: Path) -> None:
    from kdalab.recall import Plan, save, train

    for name in NETWORKS:
        save(train(name, Plan(steps=1, tokens=50)), tmp_path)
    code, stdout, stderr = kdalab(
        "recall", "--weights", str(tmp_path), "--pairs", "4", "--episodes", "4", "--json"
    )
    assert code == 0, stderr
    out = json.loads(stdout)
    assert {m["steps"] for m in out["networks"].values()} == {"1"}
    # Untrained networks guess.
    assert all(row["accuracy"] < 0.6 for row in out["rows"])
