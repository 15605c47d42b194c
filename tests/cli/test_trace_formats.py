"""Commands that take a trace take every format of the lab, and find in each the same requests."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kdalab.cli.main import build_app
from kdalab.lab import Trace, synthetic_trace

COMMANDS = {
    "compare": ["compare", "--budget", "3GiB"],
    "replay": ["replay", "--budget", "3GiB"],
    "agree": ["lab", "agree"],
    "bounds": ["lab", "bounds", "--budget", "3GiB", "--steps", "3", "--checkpoints", "leaf"],
}
TRACE = synthetic_trace(60, 1)


def rows(trace: Trace, form: str) -> list[dict[str, Any]]:
    found = []
    for i, r in enumerate(trace):
        row = {"input_length": r.input_tokens, "hash_ids": list(r.blocks)}
        if form == "kvcache":
            row["block_size"] = trace.block_tokens
        else:
            row |= {"timestamp": r.timestamp_ms, "output_length": r.output_tokens}
        if form == "bailian":
            row |= {"chat_id": i, "parent_chat_id": -1, "type": "text", "turn": 1}
            n = 16 * len(r.blocks)
            row |= {"timestamp": r.timestamp_ms / 1000, "input_length": n}
        found.append(row)
    return found


def write(path: Path, form: str) -> Path:
    path.write_text("".join(json.dumps(r) + "\n" for r in rows(TRACE, form)))
    return path


def run(command: str, file: Path) -> dict[str, Any]:
    words = [*COMMANDS[command], str(file), "--model", "kimi-linear-48b", "--json"]
    done = CliRunner().invoke(build_app(), words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    return {k: v for k, v in found.items() if k not in ("seconds", "trace", "workload")}


@pytest.mark.parametrize("command", COMMANDS)
def test_another_format_of_the_same_requests_gives_the_same_figures(
    tmp_path: Path, command: str
) -> None:
    plain = run(command, write(tmp_path / "plain.jsonl", "mooncake"))
    assert run(command, write(tmp_path / "peer.jsonl", "kvcache")) == plain


@pytest.mark.parametrize("command", COMMANDS)
def test_blocks_of_another_size_are_read_as_such(tmp_path: Path, command: str) -> None:
    found = run(command, write(tmp_path / "small.jsonl", "bailian"))
    tokens = found.get("input_tokens")
    assert tokens in (None, sum(16 * len(r.blocks) for r in TRACE))
    assert found != run(command, write(tmp_path / "plain.jsonl", "mooncake"))


@pytest.mark.parametrize("command", COMMANDS)
def test_a_file_of_no_known_format_is_refused(tmp_path: Path, command: str) -> None:
    file = tmp_path / "rubbish.jsonl"
    file.write_text("rubbish\n" * 300)
    done = CliRunner().invoke(build_app(), [*COMMANDS[command], str(file)])
    assert done.exit_code != 0
    assert "rubbish.jsonl" in done.output + str(done.exception)


def test_a_pipe_of_another_format_is_read_like_a_file(tmp_path: Path) -> None:
    file, pipe = write(tmp_path / "peer.jsonl", "kvcache"), tmp_path / "pipe"
    os.mkfifo(pipe)
    feed = threading.Thread(target=lambda: pipe.write_bytes(file.read_bytes()))
    feed.start()
    found = run("bounds", pipe)
    feed.join()
    assert found == run("bounds", file)
