"""Reading traces: what is right is read, what is wrong is named."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kdalab.errors import KdalabError
from kdalab.lab import TraceFile, read_mooncake, synthetic_trace, write_synthetic

GOOD: dict[str, Any] = {
    "timestamp": 5,
    "input_length": 1025,
    "output_length": 3,
    "hash_ids": [0, 1, 2],
}


def write(path: Path, *rows: object) -> Path:
    path.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in rows))
    return path


PEAK = """
import sys, tracemalloc
from kdalab.lab import TraceFile, read_mooncake
from kdalab.lab.readers import source
path = sys.argv[1]
tracemalloc.start()
{what}
print(tracemalloc.get_traced_memory()[1])
"""


def peak_bytes(path: Path, what: str) -> int:
    """Most bytes held while ``what`` reads ``path``, in a process of its own: in this one another
    test's hub may be drawing its pages."""
    command = [sys.executable, "-c", PEAK.format(what=what), str(path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def test_reads_plain_and_gzipped_alike(tmp_path: Path) -> None:
    plain = write_synthetic(tmp_path / "t.jsonl", 50)
    packed = tmp_path / "t.jsonl.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    misnamed = tmp_path / "packed.jsonl"
    misnamed.write_bytes(packed.read_bytes())
    a, b = read_mooncake(plain), read_mooncake(packed)
    assert a.requests == b.requests == read_mooncake(misnamed).requests
    assert len(a.requests) == 50
    rows = [json.loads(line) for line in plain.read_text().splitlines()]
    assert a.input_tokens == sum(r["input_length"] for r in rows)
    assert [list(r.blocks) for r in a.requests] == [r["hash_ids"] for r in rows]
    assert [r.line for r in a.requests] == list(range(1, 51))


def test_the_synthetic_trace_is_the_same_for_the_same_seed(tmp_path: Path) -> None:
    one = write_synthetic(tmp_path / "a", 30, seed=1).read_bytes()
    assert one == write_synthetic(tmp_path / "b", 30, seed=1).read_bytes()
    assert one != write_synthetic(tmp_path / "c", 30, seed=2).read_bytes()
    assert synthetic_trace(30, seed=1).requests == read_mooncake(tmp_path / "a").requests


def test_the_synthetic_trace_has_sessions_that_share_grow_and_fork() -> None:
    prompts = [tuple(r.blocks[: r.input_tokens // 512]) for r in synthetic_trace(300)]
    assert len({p[:3] for p in prompts if len(p) >= 3}) < 20  # most share the system prompt
    seen: set[tuple[int, ...]] = set()
    grown = forked = 0
    for prompt in prompts:
        known = max((n for n in range(len(prompt) + 1) if prompt[:n] in seen), default=0)
        grown += prompt[:known] in prompts and known > 3
        forked += 0 < known < len(prompt) and prompt[:known] not in prompts
        seen.update(prompt[:n] for n in range(1, len(prompt) + 1))
    assert grown > 50
    assert forked > 5


def test_a_file_is_read_line_by_line_and_each_time_anew(tmp_path: Path) -> None:
    file = TraceFile(write(tmp_path / "t", GOOD, "?", GOOD, "?"), max_bad=1)
    requests = iter(file)
    assert next(requests).line == 1
    assert next(requests).line == 3
    assert file.n_skipped == 1
    for _ in range(2):
        with pytest.raises(KdalabError, match="2 unusable lines, 1 allowed"):
            list(file)
    assert [r.line for r in TraceFile(file.file, limit=1)] == [1]
    with pytest.raises(KdalabError, match="a limit of 0 requests"):
        TraceFile(file.file, limit=0)


def test_a_long_file_is_never_in_memory_as_a_whole(tmp_path: Path) -> None:
    path = write_synthetic(tmp_path / "t.jsonl", 40)
    row = {**GOOD, "timestamp": 10**9, "input_length": 512 * 200, "hash_ids": list(range(200))}
    path.write_bytes(path.read_bytes() + (json.dumps(row) + "\n").encode() * 9_000)
    size = path.stat().st_size
    places: list[int] = []
    assert sum(1 for _ in TraceFile(path, on_bytes=places.append)) == 9_040
    assert peak_bytes(path, "assert sum(1 for _ in TraceFile(path)) == 9_040") < size / 10
    assert places == sorted(places)
    assert 0.9 * size < places[-1] <= size


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("{not json", "line 2: not JSON"),
        ("[1, 2]", "line 2: an array, not an object"),
        ("NaN", "line 2: a number, not an object"),
        ({**GOOD, "timestamp": "x"}, "line 2, field timestamp: must be milliseconds"),
        ({**GOOD, "timestamp": -1}, "line 2, field timestamp"),
        ({**GOOD, "timestamp": float("nan")}, "line 2, field timestamp"),
        ({**GOOD, "timestamp": 4}, "line 2, field timestamp: goes back from 5 to 4"),
        ({**GOOD, "input_length": 0}, "line 2, field input_length: must be a whole number"),
        ({**GOOD, "input_length": 10.5}, "line 2, field input_length"),
        ({**GOOD, "input_length": True}, "line 2, field input_length"),
        ({**GOOD, "input_length": 10**15}, "line 2, field input_length"),
        ({**GOOD, "output_length": -3}, "line 2, field output_length"),
        ({**GOOD, "hash_ids": [0, 1]}, "2 ids for 1,025 tokens; blocks of 512 make 3"),
        ({**GOOD, "hash_ids": [0, 1, "2"]}, "line 2, field hash_ids: must be a list"),
        ({**GOOD, "hash_ids": [0, 1, 1.5]}, "line 2, field hash_ids"),
        ({**GOOD, "hash_ids": [0, 1, 2**70]}, "does not fit 64 bits"),
        ({**GOOD, "hash_ids": [0, 1, -2]}, "line 2, field hash_ids: an id of -2"),
        ({**GOOD, "hash_ids": [0, True, 2]}, "line 2, field hash_ids: must be a list"),
        ({**GOOD, "hash_ids": {"0": 1}}, "line 2, field hash_ids: must be a list"),
        *(
            ({k: v for k, v in GOOD.items() if k != name}, f"field {name}: is missing")
            for name in GOOD
        ),
        ("\x00\x01\x02", "line 2: not JSON"),
        ("[" * 100_000, "line 2: not JSON"),
    ],
)
def test_a_bad_line_is_named_counted_and_skipped(tmp_path: Path, row: object, message: str) -> None:
    file = write(tmp_path / "bad.jsonl", GOOD, row, GOOD)
    trace = read_mooncake(file)
    assert len(trace.requests) == 2
    assert trace.n_skipped == 1
    assert message in str(trace.skipped[0])
    with pytest.raises(KdalabError, match=r"bad\.jsonl: 1 unusable lines, 0 allowed"):
        read_mooncake(file, max_bad=0)


def test_only_the_first_three_bad_lines_are_kept(tmp_path: Path) -> None:
    trace = read_mooncake(write(tmp_path / "t", GOOD, *["?"] * 7))
    assert (trace.n_skipped, len(trace.skipped)) == (7, 3)


@pytest.mark.parametrize(
    ("content", "name", "message"),
    [
        (b"", "t.jsonl", "the file is empty"),
        (b"\n\n", "t.jsonl", "the file is empty"),
        (b"\x00\xff\x00", "t.jsonl", "line 1: not JSON"),
        (b"plain text", "t.jsonl.gz", "cannot read the trace"),
        (gzip.compress(b"{}" * 100, mtime=0)[:-9], "t.jsonl.gz", "cannot read the trace"),
    ],
)
def test_a_file_without_a_usable_request_is_an_error(
    tmp_path: Path, content: bytes, name: str, message: str
) -> None:
    file = tmp_path / name
    file.write_bytes(content)
    with pytest.raises(KdalabError, match=message):
        read_mooncake(file)


def test_a_missing_file_and_a_folder_say_so(tmp_path: Path) -> None:
    with pytest.raises(KdalabError, match=r"cannot read the trace .*No such file"):
        read_mooncake(tmp_path / "none.jsonl")
    with pytest.raises(KdalabError, match=r"cannot read the trace .*directory"):
        read_mooncake(tmp_path)
    with pytest.raises(KdalabError, match=r"cannot read the trace .*null byte"):
        read_mooncake("a\0b")


def test_a_file_that_may_not_be_read_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)  # a mode of 000 would not stop root
    with pytest.raises(KdalabError, match=r"cannot read the trace .*t\.jsonl'?: Permission denied"):
        read_mooncake(tmp_path / "t.jsonl")


def test_a_line_without_an_end_is_refused_before_it_fills_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kdalab.lab.readers.source.MAX_LINE_BYTES", 1 << 20)
    file = write(tmp_path / "t", GOOD, "7" * (32 << 20))
    with pytest.raises(KdalabError, match="line 2 is longer than 1 MiB"):
        read_mooncake(file)
    what = """
source.MAX_LINE_BYTES = 1 << 20
try: read_mooncake(path)
except ValueError as error: assert "longer than 1 MiB" in str(error)
"""
    assert peak_bytes(file, what) < 8 << 20
