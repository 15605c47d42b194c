"""``kdalab demo``: it opens the pages, or says in one line why not."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer
from typer.testing import CliRunner

from kdalab.cli import demo
from kdalab.errors import KdalabError


def kdalab(*arguments):
    command = [sys.executable, "-m", "kdalab.cli.main", "demo", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


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


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--lang", "de"], "language 'de'; use one of en, zh, ko"),
        (["--share"], "add --yes"),
    ],
)
def test_what_it_does_not_do_unasked_is_one_line(options, says):
    done = kdalab(*options, "--port", str(free_port()))
    assert done.returncode == 2
    assert says in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_sharing_is_asked_for_on_a_terminal(monkeypatch):
    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr(demo.typer, "confirm", lambda *_, **__: False)
    with pytest.raises(KdalabError, match="nothing was shared"):
        demo.allow_sharing(yes=False)
    demo.allow_sharing(yes=True)
    monkeypatch.setattr(demo.typer, "confirm", lambda *_, **__: True)
    demo.allow_sharing(yes=False)


class FakeHub:
    """Stands for ``demos.app``: what the command would open, and how."""

    share_url = None

    def __init__(self):
        self.said = []

    def pages(self):
        return [SimpleNamespace(slug="tree")]

    def launch_options(self):
        return {"share": False}

    def build_app(self):
        return self

    def end_in_order(self):
        self.said.append("in order")

    def draw_pages(self, app, first):
        self.said.append(("first", first))

    def speak_first(self, lang):
        self.said.append(("lang", lang))

    def launch(self, **options):
        self.said.append(("share", options["share"], options["server_name"]))

    def close(self, verbose):
        self.said.append("closed")

    def block_thread(self):
        self.said.append("blocked")


def opened(monkeypatch, *arguments):
    hub = FakeHub()
    monkeypatch.setattr(demo, "load_demos", lambda: hub)
    monkeypatch.setattr(demo, "check_free", lambda host, port: None)
    app = typer.Typer()
    app.command()(demo.command)
    return hub, CliRunner().invoke(app, list(arguments))


def test_another_address_than_this_machine_s_prints_one_warning(monkeypatch):
    hub, done = opened(monkeypatch, "tree", "--host", "0.0.0.0", "--lang", "ko")
    assert done.stderr.splitlines() == [
        "kdalab: warning: 0.0.0.0 is more than this machine; who reaches it can open these pages, "
        "without a password"
    ]
    opened_at = ("share", False, "0.0.0.0")
    assert hub.said == [("lang", "ko"), "in order", opened_at, ("first", "tree"), "blocked"]
    for host in ("127.0.0.1", "localhost", "::1", "127.8.9.1"):
        assert opened(monkeypatch, "--host", host)[1].stderr == ""


def test_a_share_that_gradio_did_not_get_ends_the_hub(monkeypatch):
    hub, done = opened(monkeypatch, "--share", "--yes")
    assert done.exit_code == 2
    assert "no public address" in done.stderr
    assert hub.said == ["in order", ("share", True, "127.0.0.1"), "closed"]


def test_the_language_of_the_command_comes_before_the_browser_s_and_after_the_link_s():
    from demos._text import language_of, speak_first

    def visit(**query):
        return SimpleNamespace(query_params=query, headers={"accept-language": "zh-CN"})

    try:
        assert language_of(visit()) == "zh"
        speak_first("ko")
        assert language_of(visit()) == "ko"
        assert language_of(visit(lang="en")) == "en"
    finally:
        speak_first(None)
    assert language_of(visit()) == "zh"


def test_page_names_forgive_case_and_underscores():
    assert demo.find_page("Restore", ["restore", "pd-epd"]) == "restore"
    assert demo.find_page("pd_epd/", ["restore", "pd-epd"]) == "pd-epd"
    with pytest.raises(KdalabError, match="restore, pd-epd"):
        demo.find_page("x", ["restore", "pd-epd"])


def test_the_command_opens_the_page_and_prints_its_address():
    port = free_port()
    command = [sys.executable, "-m", "kdalab.cli.main", "demo", "restore", "--port", str(port)]
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    environment.pop("GRADIO_TEMP_DIR", None)
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
        unread = [upload(port), upload(port)]
        assert unread[0] != unread[1]
        assert all(path.exists() for path in unread)
    finally:
        # Not SIGINT: a process started in the background of a shell has it ignored.
        running.terminate()
        running.wait(timeout=60)
    assert not unread[0].parent.parent.exists()


def upload(port):
    """Send a file that nothing will read; where the server put it."""
    head = 'Content-Disposition: form-data; name="files"; filename="a.jsonl"'
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/gradio_api/upload",
        f"--x\r\n{head}\r\n\r\nthe same\r\n--x--\r\n".encode(),
        {"Content-Type": "multipart/form-data; boundary=x"},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return Path(json.load(answer)[0])
