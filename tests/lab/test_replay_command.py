"""``kdalab replay`` as a command: what it prints where, and how it ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from kdalab.cli.replay import command
from kdalab.lab import write_synthetic

KEYS = {
    "retention",
    "trace",
    "model",
    "placement",
    "budget_bytes",
    "block_tokens",
    "page_bytes",
    "checkpoint_bytes",
    "requests",
    "input_tokens",
    "hit_tokens",
    "known_tokens",
    "replayed_tokens",
    "new_tokens",
    "token_hit_rate",
    "kv_only_hit_rate",
    "reads",
    "pages_written",
    "states_written",
    "states_read_at_least_once",
    "states_read_share",
    "skipped_commits",
    "evicted_pages",
    "evicted_states",
    "evicted_kv_bytes",
    "evicted_state_bytes",
    "kv_bytes",
    "state_bytes",
    "peak_bytes",
    "skipped_lines",
    "skipped_examples",
    "seconds",
    "assumptions",
}


def run(*args: object) -> Result:
    app = typer.Typer()
    app.command()(command)
    return CliRunner().invoke(app, [str(a) for a in args])


def test_json_has_stable_keys_and_nothing_else_on_stdout(tmp_path: Path) -> None:
    path = write_synthetic(tmp_path / "t.jsonl", 70)
    done = run(path, "--checkpoints", "leaf", "--budget", "10GiB", "--limit", 50, "--json")
    assert done.exit_code == 0, done.output
    out = json.loads(done.stdout)
    assert set(out) == KEYS
    assert (out["requests"], out["budget_bytes"], out["trace"]) == (50, 10 << 30, "t.jsonl")
    assert (out["model"], out["placement"]) == ("kimi-k3", "leaf")
    assert done.stderr == ""


def test_the_table_says_what_the_figures_assume_and_what_was_skipped(tmp_path: Path) -> None:
    path = write_synthetic(tmp_path / "odd [name].jsonl", 20)
    path.write_text("[]\n" + path.read_text() + "{}\n\nnull\n7\n")
    done = run(path)
    assert done.exit_code == 0, done.output
    shown = " ".join(done.stdout.split())
    assert "odd [name].jsonl: kimi-k3" in shown
    assert "hits are whole blocks of 512 tokens" in shown
    assert "output tokens have no ids in this trace" in shown
    assert "4 lines skipped" in shown
    assert "line 1: an array, not an object" in shown
    assert "line 22, field timestamp: is missing" in shown
    assert "line 24: null, not an object" in shown
    assert "line 25" not in shown  # only the first three


def test_dtypes_change_the_bytes_of_the_report() -> None:
    usual = json.loads(run("--synthetic", 5, "--json").stdout)
    small = ("--state-dtype", "bf16", "--kv-dtype", "fp8")
    other = json.loads(run("--synthetic", 5, *small, "--json").stdout)
    assert (usual["checkpoint_bytes"], usual["page_bytes"]) == (449_372_160, 512 * 27_648)
    assert other["checkpoint_bytes"] == 449_372_160 - 434_110_464 // 2
    assert other["page_bytes"] == 512 * 13_824


def test_made_up_requests_need_no_file_and_follow_their_seed() -> None:
    def hits(*args: object) -> int:
        return int(json.loads(run("--synthetic", 60, *args, "--json").stdout)["hit_tokens"])

    assert hits() == hits() == hits("--seed", 0)
    assert hits() != hits("--seed", 1)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((), "give a trace file, or --made-up N"),
        (("t.jsonl", "--synthetic", 5), "not both"),
        (("none.jsonl",), "No such file or directory"),
        (("none.jsonl", "--budget", "256GiB"), "No such file or directory"),
        (("folder",), "Is a directory"),
        (("bad.jsonl", "--strict"), "bad.jsonl: 1 unusable lines, 0 allowed. The first: line 2"),
        (("bad.jsonl", "--max-bad-lines", 0, "--json"), "1 unusable lines, 0 allowed"),
        (("empty.jsonl",), "holds no usable request; the file is empty"),
        (("binary.jsonl",), "holds no usable request; line 1: not JSON"),
        (("t.jsonl", "--budget", "400MiB"), "The smallest budget that works"),
        (("t.jsonl", "--checkpoints", "every:100"), "multiple of 512 tokens"),
        (("t.jsonl", "--state-dtype", "fp3"), "fp3"),
    ],
)
def test_an_error_is_one_line_on_stderr_and_exit_code_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, args: tuple[object, ...], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    good = write_synthetic("t.jsonl", 20).read_text()
    Path("bad.jsonl").write_text(good.replace("\n", "\n?\n", 1))
    Path("empty.jsonl").touch()
    Path("binary.jsonl").write_bytes(bytes(range(256)) * 8)
    Path("folder").mkdir()
    done = run(*args)
    assert done.exit_code == 2, done.output
    assert done.stdout == ""
    assert done.stderr.startswith("kdalab: ")
    assert done.stderr.count("\n") == 1
    assert message in done.stderr


def test_a_pipe_is_read_once_even_with_a_budget(tmp_path: Path) -> None:
    path = write_synthetic(tmp_path / "t.jsonl", 60)
    args = [sys.executable, "-m", "kdalab.cli.main", "replay", "/dev/stdin", "--json"]
    if not os.path.exists("/dev/stdin"):
        pytest.skip("this system has no /dev/stdin")
    done = subprocess.run(
        [*args, "--budget", "30GiB"], input=path.read_bytes(), capture_output=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == b""
    direct = json.loads(run(path, "--budget", "30GiB", "--json").stdout)
    piped = json.loads(done.stdout)
    assert piped["hit_tokens"] == direct["hit_tokens"]


def test_the_progress_bar_goes_to_a_terminal_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kdalab.cli.traces import Bar

    assert Bar(quiet=False).progress.disable  # pytest has no terminal
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    assert not Bar(quiet=False).progress.disable
    assert Bar(quiet=True).progress.disable
    bar = Bar(quiet=False)
    bar.expect_bytes(200)
    for position in (50, 100, 20, 100):  # two passes over 100 bytes
        bar.on_bytes(position)
    assert bar.progress.tasks[0].completed == 200
    assert bar.progress.console.stderr
