"""The real Mooncake Store, on loopback: what goes in comes out, and no process stays behind."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from transfer_cases import PROMPT, TINY, assert_sound, engine, same, small_bundle

from kdalab.engine.exchange_events import Fetched
from kdalab.errors import KdalabError
from kdalab.transfer import (
    Bundle,
    Directory,
    MooncakeMaster,
    MooncakeStore,
    StoreError,
    StoreSource,
    connect,
    mooncake,
    publish,
)
from kdalab.transfer import mooncake_master as server

MISSING = importlib.util.find_spec("mooncake") is None
MIB = 1 << 20

needs_mooncake = pytest.mark.skipif(
    MISSING and not os.environ.get("CI"), reason="the package of Mooncake is not installed"
)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def is_running(pid: int) -> bool:
    """Alive, and not only waiting for somebody to ask how it ended."""
    status = Path(f"/proc/{pid}/stat")
    try:
        return status.read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return not Path("/proc").is_dir() and is_alive(pid)


@pytest.fixture(scope="module")
def master() -> Iterator[MooncakeMaster]:
    with MooncakeMaster() as running:
        pid = running.pid
        yield running
    assert not is_alive(pid)


@pytest.fixture(scope="module")
def store(master: MooncakeMaster) -> Iterator[MooncakeStore]:
    with master.client(16 * MIB, 16 * MIB) as client:
        yield client


@needs_mooncake
def test_put_get_exists_remove(store: MooncakeStore) -> None:
    assert store.get("a") is None
    store.put("a", [b"one", memoryview(b"two")])
    assert store.get("a") == b"onetwo"
    store.put("a", [b"other"])
    assert store.get("a") == b"onetwo", "values never change"
    assert store.exists(["b", "a"]) == [False, True]
    assert store.exists([]) == []
    assert store.remove("a"), "although it was read a moment ago"
    assert not store.remove("a")
    assert store.get("a") is None


@needs_mooncake
def test_a_bundle_goes_through_it(store: MooncakeStore) -> None:
    bundle = small_bundle()
    store.put(bundle.key, bundle.parts())
    data = store.get(bundle.key)
    assert data is not None
    assert same(Bundle.from_bytes(data), bundle)


@needs_mooncake
def test_what_is_too_large_or_has_a_false_key_is_refused(store: MooncakeStore) -> None:
    with pytest.raises(StoreError, match="at most 16,777,216"):
        store.put("big", [bytes(17 * MIB)])
    with pytest.raises(StoreError, match="use up to 200"):
        store.put("a/b", [b"x"])
    for n in range(2):
        store.put(f"fill-{n}", [bytes(7 * MIB)])
    with pytest.raises(StoreError, match=r"fill-2 of 7,340,032 bytes was not put"):
        store.put("fill-2", [bytes(7 * MIB)])
    for n in range(2):
        store.remove(f"fill-{n}")  # a full store may have given it up already


@needs_mooncake
def test_one_instance_restores_what_another_published(master: MooncakeMaster) -> None:
    a, b = engine(), engine()
    a.submit(PROMPT, 1)
    a.run()
    with master.client(16 * MIB, 16 * MIB) as mine, master.client(16 * MIB, 16 * MIB) as theirs:
        publish(a, StoreSource(mine), PROMPT)
        connect(b, Directory([StoreSource(theirs)]))
        request = b.submit(PROMPT, 4)
        b.run()
    assert request.restore == 192
    assert request.generated == TINY.greedy(PROMPT, 4)
    assert [e.source for e in b.events if isinstance(e, Fetched)] == ["mooncake"]
    assert_sound(b)


@needs_mooncake
def test_a_closed_client_and_a_dead_master_say_so() -> None:
    with MooncakeMaster() as other:
        client = other.client(16 * MIB, 16 * MIB)
        pid = other.pid
        client.close()
        client.close()
        with pytest.raises(StoreError, match="is closed"):
            client.get("a")
        with pytest.raises(KdalabError, match=f"port {other.port} of 127.0.0.1 is taken"):
            MooncakeMaster(other.port, other.metadata_port)
    assert not is_alive(pid)
    other.stop()


LOST = """
import json, os, signal, sys, time
sys.path[:0] = {paths!r}
from transfer_cases import PROMPT, TINY, engine
from kdalab.transfer import Directory, MooncakeMaster, StoreError, StoreSource, connect, publish

first, second = engine(), engine()
first.submit(PROMPT, 1)
first.run()
master = MooncakeMaster()
store = master.client(16 << 20, 16 << 20)
source = StoreSource(store)
key = publish(first, source, PROMPT)
os.kill(master.pid, signal.SIGKILL)
master.stop()
started = time.monotonic()
found = []
for call in (
    lambda: store.get(key),
    lambda: store.get("absent"),
    lambda: store.exists([key]),
    lambda: store.put("b", [b"x"]),
    lambda: store.remove(key),
    lambda: publish(first, source, PROMPT),
):
    try:
        found.append(repr(call()))
    except StoreError as error:
        found.append("StoreError")
directory = Directory([source])
connect(second, directory)
for tokens in (PROMPT, PROMPT[:-1]):
    request = second.submit(tokens, 4)
    second.run()
    assert request.generated == TINY.greedy(tokens, 4)
second.check()
store.close()
print(json.dumps([found, directory.skipped, time.monotonic() - started]), flush=True)
os._exit(0)  # the library itself would say good-bye for ten seconds
"""


@needs_mooncake
@pytest.mark.slow
def test_a_master_that_is_lost_is_an_error_and_no_absent_key_and_nobody_waits_for_it() -> None:
    here = Path(__file__).parent
    script = LOST.replace("{paths!r}", repr([str(here)]))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    found, skipped, seconds = json.loads(done.stdout.splitlines()[-1])
    assert found == ["StoreError"] * 6
    assert [row[:2] for row in skipped] == [["mooncake", 0]]
    assert "no Mooncake master" in skipped[0][2]
    assert seconds < 10


class Lost:
    """What the library answers when its master has just gone (measured)."""

    def get_buffer(self, _: str) -> None:
        return None

    def is_exist(self, _: str) -> int:
        return -900

    def batch_is_exist(self, keys: list[str]) -> list[int]:
        return [-900] * len(keys)

    def remove(self, _: str, __: bool) -> int:
        return -900

    def put_parts(self, _: str, *__: object) -> int:
        return -900


def test_a_call_that_the_master_does_not_answer_is_an_error(monkeypatch: Any) -> None:
    """Between the look at the master and the call it may go."""
    monkeypatch.setattr(mooncake, "_require_answer", lambda *_: None)
    store = object.__new__(MooncakeStore)
    store._store, store._master = Lost(), "tcp://127.0.0.1:9"
    store.buffer_bytes = MIB
    for call in (
        lambda: store.get("a"),
        lambda: store.exists(["a", "b"]),
        lambda: store.remove("a"),
        lambda: store.put("a", [b"x"]),
    ):
        with pytest.raises(StoreError, match="does not answer"):
            call()


@needs_mooncake
def test_a_client_starts_without_noise_and_says_what_it_cannot_reach(
    master: MooncakeMaster, capfd: pytest.CaptureFixture[str]
) -> None:
    master.client(16 * MIB, 16 * MIB).close()
    assert capfd.readouterr().err == ""
    dead = f"127.0.0.1:{server._free_port()}"
    with pytest.raises(StoreError, match=f"no Mooncake master at tcp://{dead}"):
        MooncakeStore(master.metadata_server, dead, 16 * MIB, 16 * MIB)
    with pytest.raises(StoreError, match=f"no Mooncake metadata server at http://{dead}"):
        MooncakeStore(f"http://{dead}/metadata", master.address, 16 * MIB, 16 * MIB)


@needs_mooncake
def test_two_servers_cannot_have_one_port() -> None:
    with pytest.raises(KdalabError, match=r"port 50951 for both .* choose two, or 0"):
        MooncakeMaster(50951, 50951)
    ports = {server._free_port() for _ in range(20)}
    assert server._free_port(*ports) not in ports


@needs_mooncake
@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_up_runs_until_it_is_ended_and_leaves_nothing(end: signal.Signals) -> None:
    command = [sys.executable, "-m", "kdalab.cli.main", "mooncake", "up", "--json"]
    up = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert up.stdout is not None
        line = up.stdout.readline()
        assert line, up.communicate()
        said = json.loads(line)
        assert is_alive(said["pid"])
        up.send_signal(end)
        assert up.wait(60) == (-end if end is signal.SIGKILL else 0)
        if end is signal.SIGKILL:
            if sys.platform != "linux":
                os.kill(said["pid"], signal.SIGTERM)
            by = time.monotonic() + 60
            while is_running(said["pid"]) and time.monotonic() < by:
                time.sleep(0.05)
        assert not is_running(said["pid"])
    finally:
        up.kill()
        up.communicate()


def test_without_the_package_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server.importlib.util, "find_spec", lambda _: None)
    monkeypatch.setattr(server.shutil, "which", lambda _: None)
    with pytest.raises(KdalabError, match="pip install mooncake-transfer-engine-non-cuda"):
        MooncakeMaster()
    monkeypatch.setitem(sys.modules, "mooncake", None)
    monkeypatch.setitem(sys.modules, "mooncake.store", None)
    with pytest.raises(KdalabError, match="or use FolderStore"):
        MooncakeStore("http://127.0.0.1:1/metadata", "127.0.0.1:1")
