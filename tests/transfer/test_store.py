"""The folder: whole values or none, from several processes at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import filelock
import pytest
from transfer_cases import same, small_bundle

from kdalab.transfer import Bundle, FolderStore, StoreError, StoreProtocol
from kdalab.transfer import store as stores


def value(store: StoreProtocol, key: str) -> bytes | None:
    data = store.get(key)
    return None if data is None else bytes(memoryview(data))


def test_put_get_exists_remove(tmp_path: Path) -> None:
    store: StoreProtocol = FolderStore(tmp_path / "new" / "folder")
    assert store.get("a") is None
    store.put("a", [b"one", b"", b"two"])
    store.put("b", [b"x"])
    store.put("empty", [])
    assert value(store, "empty") == b""
    assert value(store, "a") == b"onetwo"
    assert store.exists(["b", "c", "a"]) == [True, False, True]
    store.put("a", [b"three"])
    assert value(store, "a") == b"three"
    assert store.remove("a")
    assert not store.remove("a")
    assert store.exists(["a"]) == [False]
    bundle = small_bundle()
    store.put(bundle.key, bundle.parts())
    data = store.get(bundle.key)
    assert data is not None
    assert same(Bundle.from_bytes(data), bundle)


@pytest.mark.parametrize(
    "key", ["", "../a", "a/b", ".hidden", "x" * 201, "a\n", "a\0", None, 5, b"a", ["a"]]
)
def test_a_key_cannot_leave_the_folder(key: Any, tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    for call in (lambda: store.put(key, [b"x"]), lambda: store.get(key), lambda: store.remove(key)):
        with pytest.raises(StoreError, match="use up to 200 letters"):
            call()


def test_a_folder_under_a_values_name_is_no_value_and_stays(tmp_path: Path) -> None:
    (tmp_path / "d.safetensors").mkdir()
    os.mkfifo(tmp_path / "p.safetensors")
    store = FolderStore(tmp_path, limit_bytes=10)
    assert store.exists(["d", "p"]) == [False, False]
    for call in (
        lambda: store.get("d"),
        lambda: store.get("p"),
        lambda: store.put("d", [b"x"]),
        lambda: store.remove("d"),
    ):
        with pytest.raises(StoreError):
            call()
    store.put("a", [b"0123456789"])
    assert list(store.entries()) == ["a"]
    assert store.nbytes == 10
    assert (tmp_path / "d.safetensors").is_dir()
    assert not list(tmp_path.glob(".*.part"))


def test_a_folder_under_the_indexs_name_costs_only_the_index(tmp_path: Path) -> None:
    (tmp_path / "index.json").mkdir()
    store = FolderStore(tmp_path)
    assert store.entries() == {}
    store.put("a", [b"x"])
    assert value(store, "a") == b"x"
    assert "index.json cannot be written" in store.repaired
    assert {k: e.bytes for k, e in store.entries().items()} == {"a": 1}
    assert store.remove("a")
    assert (tmp_path / "index.json").is_dir()
    assert not list(tmp_path.glob(".*.part"))


def test_a_link_that_leads_nowhere_is_no_value_and_hinders_nothing(tmp_path: Path) -> None:
    (tmp_path / "loop.safetensors").symlink_to("loop.safetensors")
    (tmp_path / "lost.safetensors").symlink_to(tmp_path / "nothing")
    store = FolderStore(tmp_path)
    store.put("a", [b"x"])
    assert list(store.entries()) == ["a"]
    assert store.exists(["loop", "lost", "a"]) == [False, False, True]
    store.put("loop", [b"value"])
    assert value(store, "loop") == b"value"
    assert store.remove("loop")
    assert store.remove("lost")
    assert store.remove("a")
    assert store.entries() == {}


@pytest.mark.parametrize("old", [None, b"before"])
def test_a_put_that_fails_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: bytes | None
) -> None:
    monkeypatch.setattr(stores, "LOCK_SECONDS", 0.05)
    store = FolderStore(tmp_path, limit_bytes=10)
    store.put("b", [b"4444"])
    if old is not None:
        store.put("a", [old])
    with filelock.FileLock(tmp_path / ".lock"), pytest.raises(StoreError, match="held its lock"):
        store.put("a", [b"after"])
    with monkeypatch.context() as patch:  # the disk takes no new name
        patch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError(5, "I/O error")))
        with pytest.raises(StoreError, match="I/O error"):
            store.put("a", [b"after"])
    assert value(store, "a") == old
    assert value(store, "b") == b"4444"
    assert not list(tmp_path.glob(".*.part"))


def test_what_cannot_be_a_folder_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"kept")
    for path in (file, file / "below", f"{tmp_path}/a\0b", None, 7):
        with pytest.raises(StoreError, match="cannot be the folder of a store"):
            FolderStore(path)  # type: ignore[arg-type]
    assert file.read_bytes() == b"kept"
    for limit in (0, -1, 1.5, True, "9"):
        with pytest.raises(StoreError, match="limit_bytes"):
            FolderStore(tmp_path, limit_bytes=limit)  # type: ignore[arg-type]


def test_the_oldest_goes_when_the_folder_is_full(tmp_path: Path) -> None:
    store = FolderStore(tmp_path, limit_bytes=10)
    for key in "abc":
        store.put(key, [b"1234"])
        time.sleep(0.002)
    assert store.exists(["a", "b", "c"]) == [False, True, True]
    assert list(store.entries()) == ["b", "c"]
    assert store.nbytes == 8
    with pytest.raises(StoreError, match=r"11 bytes; .* holds 10"):
        store.put("d", [b"x" * 11])
    assert store.nbytes == 8


@pytest.mark.parametrize(
    "index",
    [
        "",
        "{",
        "[]",
        "[" * 100_000,
        '{"version": 9}',
        '{"version": 1, "entries": {"../x": [1, 2]}}',
        *(
            json.dumps({"version": 1, "entries": {"a": [4, "?"]}}).replace('4, "?"', row)
            for row in (
                "4",
                '4, "1"',
                "4, null",
                "4, true",
                "4, NaN",
                "4, 1e999",
                "4, 1" + "0" * 400,
                "4, 1" + "0" * 5000,
                "NaN, 1",
                "true, 1",
            )
        ),
    ],
    ids=lambda text: text[:60],
)
def test_an_index_that_cannot_be_read_is_made_anew(index: str, tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    store.put("a", [b"1234"])
    (tmp_path / "index.json").write_text(index)
    again = FolderStore(tmp_path)
    assert {k: e.bytes for k, e in again.entries().items()} == {"a": 4}
    assert "made anew from the files" in again.repaired
    assert json.loads((tmp_path / "index.json").read_text())["entries"]["a"][0] == 4


def test_the_index_follows_the_files(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    store.put("a", [b"1234"])
    store.put("b", [b"12"])
    (tmp_path / "a.safetensors").unlink()
    (tmp_path / "c.safetensors").write_bytes(b"by hand")
    assert {k: e.bytes for k, e in store.entries().items()} == {"b": 2, "c": 7}


def test_what_a_killed_writer_left_is_swept(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    old, new = tmp_path / ".a.1-x.part", tmp_path / ".b.2-y.part"
    for file in (old, new):
        file.write_bytes(b"half")
    os.utime(old, (1, 1))
    store.put("c", [b"x"])
    assert (old.exists(), new.exists()) == (False, True)


def test_who_changes_the_folder_waits_for_its_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "LOCK_SECONDS", 0.05)
    store = FolderStore(tmp_path)
    with filelock.FileLock(tmp_path / ".lock"), pytest.raises(StoreError, match="held its lock"):
        store.put("a", [b"x"])
    store.put("b", [b"x"])
    assert set(store.entries()) == {"b"}, "a put that is refused has put nothing"


WRITER = """
import sys
from kdalab.transfer.store import FolderStore
folder, who = sys.argv[1:]
store = FolderStore(folder, sync=False)
print("ready", flush=True)
sys.stdin.readline()
for i in range(12):
    store.put(f"{who}-{i}", [who.encode() * 1000, b"%d" % i])
    store.put("shared", [who.encode() * 5000])
    got = store.get("shared")[:]
    assert got in (b"A" * 5000, b"B" * 5000), len(got)
    if i % 5 == 0:
        store.remove(f"{who}-{i}")
"""


def test_two_processes_write_into_one_folder(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    writers = [subprocess.Popen([*command, who], text=True, **pipes) for who in "AB"]  # type: ignore[call-overload]
    try:
        for w in writers:
            assert w.stdout.readline() == "ready\n"
        for w in writers:
            w.stdin.write("\n")
            w.stdin.flush()
        for w in writers:
            _, errors = w.communicate(timeout=60)
            assert w.returncode == 0, errors
    finally:
        for w in writers:
            w.kill()
    store = FolderStore(tmp_path)
    wanted = {f"{who}-{i}" for who in "AB" for i in range(12) if i % 5} | {"shared"}
    assert set(store.entries()) == wanted
    assert json.loads((tmp_path / "index.json").read_text())["entries"].keys() == wanted
    assert store.repaired == ""
    assert not list(tmp_path.glob("*.part"))


KILLED = """
import sys
from kdalab.transfer.store import FolderStore
store = FolderStore(sys.argv[1], limit_bytes=30_000_000)
print("ready", flush=True)
for i in range(10_000):
    store.put("shared", [bytes([i % 251]) * 400_000] * 5)
    store.put(f"own-{i % 40}", [bytes([i % 251]) * 1_000_000])
"""


def test_of_a_writer_that_is_killed_nothing_torn_is_read(tmp_path: Path) -> None:
    """Killed six times in the middle of a put, wherever that is."""
    store = FolderStore(tmp_path, limit_bytes=30_000_000)
    for i in range(6):
        with subprocess.Popen(
            [sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE, text=True
        ) as writer:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "ready\n"
            time.sleep(0.02 + 0.013 * i)
            writer.kill()
        held = store.entries()  # its lock went with it
        assert held.keys() == {f.name.split(".")[0] for f in tmp_path.glob("*.safetensors")}
        for key, row in held.items():
            data = value(store, key)
            assert data is not None
            assert row.bytes == len(data) == (2_000_000 if key == "shared" else 1_000_000)
            assert len(set(data)) == 1, "a value is of one put"
        store.put("after", [b"x"])
        assert value(store, "after") == b"x"
        assert store.remove("after")
    for file in tmp_path.glob(".*.part"):
        os.utime(file, (1, 1))
    store.put("after", [b"x"])
    assert not list(tmp_path.glob(".*.part"))
    assert store.nbytes <= 30_000_000
