"""``kdalab demo``: it opens the pages, or says in one line why not."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request

import pytest

from kdalab.cli import demo
from kdalab.errors import KdalabError


def kdalab(*arguments):
    command = [sys.executable, "-m", "kdalab.cli.main", "demo", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_a_port_in_use_is_one_line_that_says_what_to_do():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = kdalab("--port", str(port))
    assert done.returncode == 2
    assert f"port {port} on 127.0.0.1 is in use" in done.stderr
    assert "--port" in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_an_unknown_page_lists_the_known_ones():
    done = kdalab("nope", "--port", str(free_port()))
    assert done.returncode == 2
    assert "unknown page 'nope'; pages: " in done.stderr
    assert "restore" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("host", "port", "says"),
    [("127.0.0.1", 0, "use 1 to 65535"), ("no.such.host.invalid", 7860, "--host 127.0.0.1")],
)
def test_a_place_that_cannot_be_listened_on_is_explained(host, port, says):
    done = kdalab("--host", host, "--port", str(port))
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_page_names_forgive_case_and_underscores():
    assert demo.find_page("Restore", ["restore", "pd-epd"]) == "restore"
    assert demo.find_page("pd_epd/", ["restore", "pd-epd"]) == "pd-epd"
    with pytest.raises(KdalabError, match="restore, pd-epd"):
        demo.find_page("x", ["restore", "pd-epd"])


def test_the_command_opens_the_page_and_prints_its_address():
    port = free_port()
    command = [sys.executable, "-m", "kdalab.cli.main", "demo", "restore", "--port", str(port)]
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    running = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        line = running.stdout.readline()
        assert f"http://127.0.0.1:{port}/restore" in line
        deadline = time.monotonic() + 60
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/restore", timeout=5) as page:
                    assert page.status == 200
                break
            except OSError:
                assert time.monotonic() < deadline
                time.sleep(0.2)
    finally:
        # Not SIGINT: a process started in the background of a shell has it ignored.
        running.terminate()
        running.wait(timeout=60)
