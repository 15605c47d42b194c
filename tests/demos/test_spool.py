"""Uploaded files: each visitor's apart, and none left behind."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from gradio_client import Client, handle_file

from demos import _file, _spool, _work
from demos._blocks import App
from demos._controls import Choice
from demos._uploads import UPLOADS, Upload
from kdalab.errors import KdalabError

READ = [lambda file, name, heard: file.read_text()]
CONTROL = Upload("file", 1 << 20, lambda *given: READ[0](*given), str, "trace")
LESSON = SimpleNamespace(
    slug="x", row=(Choice("trace", ("a",), "a", own="own"),), forget=lambda tickets: None
)


@pytest.fixture(scope="module")
def served():
    """A page with nothing but a file's endpoint, which answers the file's text."""
    with App() as page:
        _file.add_endpoint(LESSON, CONTROL, lambda given: {"text": UPLOADS.get(given["file"])})
    _, url, _ = page.launch(server_name="127.0.0.1", prevent_thread_lock=True, quiet=True)
    yield url
    page.close(verbose=False)


def test_visitors_who_send_the_same_file_do_not_take_it_from_each_other(served, tmp_path):
    file = tmp_path / "same.txt"
    file.write_text("the same")

    def ask(client):
        return client.predict(handle_file(file), {}, api_name="/x_file")

    with ThreadPoolExecutor(8) as pool:
        clients = list(pool.map(lambda _: Client(served, verbose=False), range(8)))
        assert list(pool.map(ask, clients)) == [{"text": "the same"}] * 8
    folder = Path(os.environ["GRADIO_TEMP_DIR"])
    assert not [p for p in folder.rglob("*") if p.is_file()]


def test_the_folder_of_uploads_is_no_file(served):
    with App():
        folder = Path(os.environ["GRADIO_TEMP_DIR"])
    (folder / "a").mkdir(exist_ok=True)
    for path in (folder, folder / "a"):
        with pytest.raises(KdalabError, match="the path is a folder"):
            _file.read(CONTROL, str(path), "v")
        assert path.is_dir()
    file = folder / "loose"
    file.write_text("x")
    _spool.delete(file)
    _spool.delete(file)
    assert folder.is_dir()


def test_a_file_that_was_never_uploaded_is_a_message(served):
    files = ({"path": "/etc/passwd"}, {"path": "a\0b"}, {"path": 5}, {}, 5, [], "text", None)
    for file in files:
        if isinstance(file, dict):
            file = file | {"meta": {"_type": "gradio.FileData"}}
        call = f"{served}gradio_api/call/x_file"  # Gradio's own client would upload the path
        event = httpx.post(call, json={"data": [file, {}]}, timeout=120).json()["event_id"]
        said = httpx.get(f"{call}/{event}", timeout=120).text
        assert "event: error" in said, file
        assert "upload" in said, (file, said)


def test_uploads_that_nobody_reads_do_not_stay(monkeypatch, tmp_path):
    monkeypatch.setattr(_spool, "_own", (str(tmp_path), os.getpid()))
    monkeypatch.setattr(_spool, "UNREAD_BYTES", 250)

    def lying():
        return sorted(p.name for p in tmp_path.rglob("*") if p.is_file())

    for name, age in (("old", 700), ("a", 300), ("b", 200), ("c", 100)):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).write_bytes(bytes(100))
        os.utime(tmp_path / name / name, (10_000 - age,) * 2)
    _spool.forget_unread(now=10_000)
    assert lying() == ["b", "c"]
    _spool._ApartFile(io.BytesIO())  # as the next upload comes, long after
    assert lying() == []


def test_a_run_for_a_script_has_an_end_and_few_may_wait_for_it(served, tmp_path, monkeypatch):
    def endless(file, name, heard):
        running.set()
        assert all_asked.wait(60)
        while True:
            time.sleep(0.01)
            heard(1, 2)

    file = tmp_path / "long.txt"
    file.write_text("long")
    running, all_asked = threading.Event(), threading.Event()
    monkeypatch.setattr(_file, "ENDPOINT_SECONDS", 1.5)
    monkeypatch.setattr(_file, "_LINE", _work.Line(waiting=1))
    was = READ[0]
    READ[0] = endless

    def ask(client):
        return client.predict(handle_file(file), {}, api_name="/x_file")

    try:
        with ThreadPoolExecutor(3) as pool:
            clients = [Client(served, verbose=False) for _ in range(4)]
            first = pool.submit(ask, clients[0])
            assert running.wait(60)
            others = [pool.submit(ask, one) for one in clients[1:3]]
            assert wait(others, 60, FIRST_COMPLETED).done  # the one that is not let in
            all_asked.set()
            said = sorted(str(one.exception(60)) for one in (first, *others))
        assert "busy with other files" in said[0] + said[-1]
        assert sum("took more than 2 seconds and was stopped" in one for one in said) == 2
    finally:
        READ[0] = was
    assert ask(clients[3]) == {"text": "long"}
    with pytest.raises(Exception, match="5,000 requests; this call takes 2,500 at most"):
        clients[3].predict(handle_file(file), {"requests": "5000"}, api_name="/x_file")
    with pytest.raises(Exception, match=r"1e\+308 requests; this call takes 2,500 at most"):
        clients[3].predict(handle_file(file), {"requests": 1e308}, api_name="/x_file")
    _file._check_requests({"requests": 10**400})  # no float: left to the control, which refuses it
    folder = Path(os.environ["GRADIO_TEMP_DIR"])
    assert not list(folder.rglob("long.txt"))


SERVE = """
import os, sys, time
from demos import _spool
_spool.open_folder()
_spool.end_in_order()
folder = os.environ["GRADIO_TEMP_DIR"]
open(os.path.join(folder, "unread"), "w").close()
print(folder, flush=True)
time.sleep(0 if sys.argv[1] == "ends" else 60)
"""


@pytest.mark.parametrize(("how", "code"), [("ends", 0), ("terminated", -15)])
def test_the_folder_goes_with_the_process(how, code):
    command = [sys.executable, "-c", SERVE, how]
    plain = {k: v for k, v in os.environ.items() if k != "GRADIO_TEMP_DIR"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=plain) as running:
        folder = Path(running.stdout.readline().strip())
        if how == "terminated":
            assert (folder / "unread").exists()
            running.terminate()
        assert running.wait(timeout=120) == code
    assert folder.name.startswith("kdalab-demo-")
    assert not folder.exists()


def test_building_a_page_leaves_the_signals_of_the_process_alone():
    before = signal.getsignal(signal.SIGTERM)
    with App():
        pass
    assert signal.getsignal(signal.SIGTERM) is before is signal.SIG_DFL


def test_a_folder_that_the_user_named_stays(tmp_path):
    command = [sys.executable, "-c", SERVE, "ends"]
    own = os.environ | {"GRADIO_TEMP_DIR": str(tmp_path)}
    subprocess.run(command, env=own, check=True, timeout=120)
    assert (tmp_path / "unread").exists()
