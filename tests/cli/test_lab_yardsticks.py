"""``kdalab lab agree`` and ``kdalab lab bounds``."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kdalab.cli.lab import app
from kdalab.lab import write_synthetic


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_synthetic(tmp_path_factory.mktemp("traces") / "made_up.jsonl", 250)


def run(*words: str) -> str:
    done = CliRunner().invoke(app, words, catch_exceptions=False, env={"COLUMNS": "80"})
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.skipif(find_spec("kvcache_sim") is None, reason="kvcache-simulator is not installed")
def test_agree_finds_no_difference_and_what_kv_only_overstates(trace: Path) -> None:
    found = json.loads(run("agree", str(trace), "--json"))
    assert found["peer"].startswith("kvcache-simulator")
    assert found["difference"] < 1e-12
    assert found["ceiling"] == pytest.approx(found["their_ceiling"], abs=1e-12)
    rows = [r for r in found["rows"] if r["hybrid"] is not None]
    assert rows
    assert all(0 < r["hybrid"] < r["ours"]["lru"] == r["theirs"]["lru"] for r in rows)
    text = run("agree", str(trace))
    assert "Largest difference: 0.000 points" in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 80
    last = next(line for line in text.splitlines() if "no limit" in line)
    over = 100 * (found["ceiling"] - found["hybrid_ceiling"])
    assert last.split()[-1] == f"{over:+.1f}"


def test_agree_works_without_the_peer(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kdalab.lab.kv_only_agree.find_spec", lambda _: None)
    assert "not installed" in run("agree", str(trace))
    assert all(not r["theirs"] for r in json.loads(run("agree", str(trace), "--json"))["rows"])


def test_bounds_prints_bound_schedule_and_gap() -> None:
    words = ("bounds", "--synthetic", "200", "--budget", "8GiB", "--checkpoints", "leaf")
    found = json.loads(run(*words, "--json"))
    assert found["found"] + found["gap"] == found["bound"] <= found["known"]
    text = run(*words)
    for words_of_it in (
        "proven upper bound", "best schedule found", "gap", "leaf, LRU", "leaf, lru-path",
        f"Best found: {found['found_by']}; it holds",
    ):  # fmt: skip
        assert words_of_it in text
    assert f"{found['gap']:,}" in text


def test_wrong_input_is_named() -> None:
    for words, match in (
        (["agree"], "give a trace"),
        (["bounds", "x.jsonl", "--synthetic", "5"], "not both"),
        (["agree", "--synthetic", "9", "--backend", "rust"], "python and cpp"),
        (["bounds", "--synthetic", "9", "--budget", "1MiB"], "need"),
        (["bounds", "--synthetic", "9", "--retention", "mru"], "unknown retention 'mru'"),
    ):
        done = CliRunner().invoke(app, words, catch_exceptions=False)
        assert done.exit_code == 2
        assert match in done.output
