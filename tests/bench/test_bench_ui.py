"""``kdalab bench ui``: every part runs and is printed; what is missing is said."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from kdalab.bench import chromium as found
from kdalab.bench import ui
from kdalab.cli.bench import app
from kdalab.errors import KdalabError

SMALL = ["--pages", "groups,tour", "--steps-per-page", "3", "--sessions", "2", "--steps", "5"]


def run(*arguments):
    """The command in a thread of its own: in this one another test's browser may have its loop."""
    with ThreadPoolExecutor(1) as apart:
        call = CliRunner().invoke
        return apart.submit(call, app, ["ui", *arguments], catch_exceptions=False).result()


@pytest.fixture
def open_hub(monkeypatch, hub):
    """The hub of the other tests instead of one more process."""

    @contextmanager
    def opened():
        yield hub, SimpleNamespace(pid=os.getpid()), 1.5

    monkeypatch.setattr(ui, "hub", opened)


@pytest.mark.browser
def test_all_of_it_in_small_prints_every_part(chromium, open_hub):
    rows = {r["what"]: r for r in json.loads(run(*SMALL, "--json").output)["rows"]}
    assert rows["start of the hub to its first answer"]["value"] == 1.5
    assert {"first paint", "a step, groups", "page change, median"} <= set(rows)
    after = rows["memory after 6 steps more"]  # two sessions with three each
    assert after["value"] > 50 << 20
    assert all(r["value"] > 0 for r in rows.values())
    busy = [
        rows[f"a step with 2 sessions, {x}"] for x in ("median", "95 of 100", "largest (groups)")
    ]
    assert busy == sorted(busy, key=lambda row: row["value"])
    assert rows["a step, groups"]["met"] == (rows["a step, groups"]["value"] <= ui.STEP_S)


@pytest.mark.browser
def test_an_unknown_page_lists_the_known_ones(chromium, open_hub):
    done = run("--pages", "nope")
    assert done.exit_code == 2
    assert "unknown page 'nope'; pages: " in done.output
    assert "restore" in done.output


def test_without_chromium_it_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(found, "chromium_path", lambda: None)
    done = run()
    assert done.exit_code == 2
    assert "apt install chromium" in done.output
    assert "Traceback" not in done.output


def test_a_hub_that_does_not_start_says_why(monkeypatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        monkeypatch.setattr(ui, "_free_port", lambda: taken.getsockname()[1])
        with pytest.raises(KdalabError, match=r"the hub did not start: .* is in use"), ui.hub():
            pass


def test_memory_is_that_of_the_process_asked_for():
    """Bare processes 64 MiB apart: one that ran other tests may use what it still holds."""
    hold = "import sys; b = bytearray(b'x') * int(sys.argv[1]); print(len(b), flush=True); input()"

    def resident(n: int) -> int:
        with subprocess.Popen(
            [sys.executable, "-I", "-c", hold, str(n)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == f"{n}\n"
            size = ui.resident_bytes(child.pid)
            child.communicate("\n")
        assert child.returncode == 0
        return size

    small, large = resident(1), resident(64 << 20)
    assert 1 << 20 < small < 64 << 20
    assert 63 << 20 < large - small < 66 << 20
