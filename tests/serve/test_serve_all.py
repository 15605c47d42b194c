"""``kdalab serve --all``: what it prints can be typed, images included, and it ends whole."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence

import pytest
from serve.plan import Picture
from serve.serving import single

from kdalab.engine.media import Media, media_ids
from kdalab.model import tiny_model
from kdalab.serve.run import Place, listen

COMMAND = [sys.executable, "-m", "kdalab.cli.main", "serve", "--all", "--port", "0"]


def started(more: Sequence[str]) -> tuple[subprocess.Popen[str], list[str]]:
    """The command, and what it says until it serves."""
    process = subprocess.Popen([*COMMAND, *more], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line.rstrip("\n"))
        if line.startswith("Ctrl-C"):
            break
    return process, lines


def ended(process: subprocess.Popen[str], lines: list[str]) -> None:
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 0
    assert process.stdout is not None
    process.stdout.close()
    for pid in (int(x.rsplit(" ", 1)[1].rstrip(")")) for x in lines if "(process " in x):
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_taken_port_is_one_line() -> None:
    with listen(Place()) as taken:
        command = [*COMMAND[:-1], str(taken.getsockname()[1])]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert "Give another --port" in line


@pytest.mark.skipif(not shutil.which("curl") or not shutil.which("bash"), reason="needs curl")
def test_the_lines_that_it_prints_work_in_a_shell() -> None:
    process, lines = started([])
    try:
        text, image = (x.strip() for x in lines if x.startswith("  curl"))
        out = subprocess.run(["bash", "-c", text], capture_output=True, text=True, timeout=60)
        assert out.stdout.strip().endswith("data: [DONE]")
        out = subprocess.run(["bash", "-c", image], capture_output=True, text=True, timeout=60)
        answer = json.loads(out.stdout)
        assert "fallback" not in answer["kdalab"]
        span = Picture(b"\xff\0\0" * 1024, 32, 32).span(len("Look: "))
        ids = media_ids(span.digest, span.n, tiny_model().vocab_size)
        tokens = [*b"Look: ", *ids, *b" What is it?"]
        assert answer["choices"][0]["token_ids"] == single(tokens, 8, Media((span,)))
    finally:
        ended(process, lines)


def test_without_images_three_processes_are_enough() -> None:
    process, lines = started(["--no-images"])
    ended(process, lines)
    roles = [x.split()[0] for x in lines if "(process " in x]
    assert roles == ["prefill", "decode", "router"]
    assert sum(x.startswith("  curl") for x in lines) == 1
