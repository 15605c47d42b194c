"""The command line as a user meets it: a process, its output and its exit code."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from kdalab.cli.main import COMMANDS


def free_port() -> int:
    """A port that nobody listens on: others may have the pages open on the usual one."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def kdalab(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kdalab", *args],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_help_lists_every_command() -> None:
    done = kdalab("--help")
    assert done.returncode == 0
    for name in COMMANDS:
        assert name in done.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_its_own_help(name: str) -> None:
    done = kdalab(name, "--help")
    assert done.returncode == 0, done.stderr
    assert "Usage" in done.stdout


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["replay"], "give a trace file, or --made-up N"),
        (["replay", "/no/such/file"], "No such file"),
        (["replay", "--synthetic", "5", "--model", "gpt"], "kimi-k3, kimi-linear-48b"),
        (["replay", "--synthetic", "5", "--checkpoints", "often"], "every:N, leaf, leaf+branch"),
        (["replay", "--synthetic", "5", "--budget", "lots"], "lots"),
        (["replay", "--synthetic", "5", "--budget", "1MiB"], "The smallest budget that works"),
        (["replay", "--synthetic", "5", "--checkpoints", "every:1000"], "multiple of 512"),
        (["size", "gpt"], "kimi-k3, kimi-linear-48b"),
        (["plot", "nothing"], "state_vs_kv"),
        (["demo", "nothing", "--port", str(free_port())], "restore"),
        (["size", "kimi-k3", "--context", "9" * 400], "is not a number of tokens"),
        (["size", "a" * 300], "kimi-k3, kimi-linear-48b"),
        (["replay", "--synthetic", "5", "--budget", "9" * 400], "is not a number of bytes"),
        (["replay", "--synthetic", "5", "--checkpoints", "every:\u00b2"], "every:N, leaf"),
        (["replay", "--synthetic", "5", "--checkpoints", "every:" + "9" * 5000], "every:N, leaf"),
        (["bench", "kernels", "--shape", "\u00b2,1,1,1,1"], "five whole numbers"),
        (["bench", "kernels", "--shape", "99999999,9999999,9,9,9"], "choose a smaller"),
        (["size", "/dev/zero"], "not a regular file"),
    ],
)
def test_bad_input_is_one_message_and_exit_code_2(args: list[str], message: str) -> None:
    done = kdalab(*args)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert message in " ".join(done.stderr.split())


def test_replay_prints_json_that_adds_up() -> None:
    done = kdalab("replay", "--synthetic", "80", "--checkpoints", "leaf", "--json")
    assert done.returncode == 0, done.stderr
    out = json.loads(done.stdout)
    assert 0 < out["token_hit_rate"] <= out["kv_only_hit_rate"] < 1
    total = out["hit_tokens"] + out["replayed_tokens"] + out["new_tokens"]
    assert total == out["input_tokens"]
    assert out["requests"] == 80


def test_replay_reports_what_it_skipped(tmp_path: Path) -> None:
    good = '{"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": [0, 1]}'
    file = tmp_path / "t.jsonl"
    file.write_text(f"{good}\n{{}}\n{good}\n")
    done = kdalab("replay", str(file))
    assert done.returncode == 0, done.stderr
    assert "1 lines skipped" in done.stdout
    assert "line 2, field timestamp: is missing" in done.stdout


def test_size_gives_the_published_bytes() -> None:
    out = json.loads(kdalab("size", "kimi-k3", "--json").stdout)
    assert out["recurrent_bytes"] == 434_110_464
    assert out["conv_bytes"] == 15_261_696
    assert out["latent_bytes_per_token"] == 27_648


def test_version() -> None:
    assert kdalab("--version").stdout.startswith("kdalab 0.")
