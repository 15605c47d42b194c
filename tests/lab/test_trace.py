"""Reading traces: what is right is read, what is wrong is named."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from kdalab.errors import KdalabError
from kdalab.lab import read_mooncake, write_synthetic

GOOD: dict[str, Any] = {
    "timestamp": 5,
    "input_length": 1025,
    "output_length": 3,
    "hash_ids": [0, 1, 2],
}


def write(path: Path, *rows: object) -> Path:
    path.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in rows))
    return path


def test_reads_plain_and_gzipped_alike(tmp_path: Path) -> None:
    plain = write_synthetic(tmp_path / "t.jsonl", 50)
    packed = tmp_path / "t.jsonl.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    a, b = read_mooncake(plain), read_mooncake(packed)
    assert a.requests == b.requests
    assert len(a.requests) == 50
    rows = [json.loads(line) for line in plain.read_text().splitlines()]
    assert a.input_tokens == sum(r["input_length"] for r in rows)
    assert [list(r.blocks) for r in a.requests] == [r["hash_ids"] for r in rows]
    assert [r.line for r in a.requests] == list(range(1, 51))


def test_the_synthetic_trace_is_the_same_for_the_same_seed(tmp_path: Path) -> None:
    one = write_synthetic(tmp_path / "a", 30, seed=1).read_bytes()
    assert one == write_synthetic(tmp_path / "b", 30, seed=1).read_bytes()
    assert one != write_synthetic(tmp_path / "c", 30, seed=2).read_bytes()


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("{not json", "line 2: not JSON"),
        ("[1, 2]", "line 2: a list, not an object"),
        ("NaN", "line 2: a float, not an object"),
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
        ({k: v for k, v in GOOD.items() if k != "hash_ids"}, "field hash_ids: is missing"),
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
        (gzip.compress(b"{}" * 100)[:-9], "t.jsonl.gz", "cannot read the trace"),
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
