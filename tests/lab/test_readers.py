"""Every format is recognised by its content, and what cannot be used is counted and named."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import subprocess
import sys
import threading
from array import array
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kdalab.errors import KdalabError
from kdalab.lab import synthetic_trace, write_synthetic
from kdalab.lab.readers import READERS, ReadOptions, open_trace
from kdalab.lab.readers.prefixes import PrefixCheck
from kdalab.lab.request import Requests, TraceRequest, report_of

TOKENS = [list(range(100, 100 + n)) for n in (130, 70)]
SAMPLES: dict[str, list[Any]] = {
    "mooncake": [{"timestamp": 5, "input_length": 513, "output_length": 3, "hash_ids": [0, 1]}],
    "kvcache": [{"block_size": 64, "input_length": 130, "hash_ids": [7, 8, 9]}],
    "bailian": [
        {
            "chat_id": 1,
            "parent_chat_id": -1,
            "timestamp": 0.5,
            "input_length": 33,
            "output_length": 4,
            "type": "text",
            "turn": 1,
            "hash_ids": [4, 5, 6],
        }
    ],
    "marconi": [
        {
            "session_id": 0,
            "turn_id": 0,
            "ts": 1.5,
            "input_tokens": TOKENS[0],
            "output_tokens": TOKENS[1],
        }
    ],
    "agentic": [
        {
            "id": "s",
            "block_size": 64,
            "tool_tokens": 0,
            "system_tokens": 0,
            "requests": [{"t": 2.0, "in": 130, "out": 9, "hash_ids": [1, 2]}],
        }
    ],
    "azure": [
        "TIMESTAMP,ContextTokens,GeneratedTokens",
        "2023-11-16 18:15:46.6805900,374,44",
        "2023-11-16 18:15:50.9951690,1025,109",
    ],
    "burstgpt": [
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type",
        "5,ChatGPT,472,18,490,Conversation log",
        "45,ChatGPT,1087,230,1317,Conversation log",
    ],
}


def write(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in rows))
    return path


def read(
    path: Path, format: str | None = None, **options: Any
) -> tuple[Requests, list[TraceRequest]]:
    reader = open_trace(path, format, ReadOptions(**options))
    return reader, list(reader)


@pytest.mark.parametrize("name", SAMPLES)
def test_a_format_is_told_by_its_content(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / "any.name", SAMPLES[name])
    reader, requests = read(path)
    assert reader.format == name  # type: ignore[attr-defined]
    assert requests
    assert requests == read(path, name)[1] == list(reader)
    packed = tmp_path / "packed"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert read(packed)[1] == requests
    # A line of rubbish before the data changes nothing, but is counted.
    if name not in ("agentic", "azure", "burstgpt"):
        path.write_text("rubbish\n" + path.read_text())
        reader, again = read(path)
        assert (reader.n_skipped, len(again)) == (1, len(requests))


@pytest.mark.parametrize("name", SAMPLES)
def test_an_empty_file_is_an_error_for_every_format(tmp_path: Path, name: str) -> None:
    empty = tmp_path / "empty"
    empty.write_bytes(b"")
    with pytest.raises(KdalabError, match=r"is empty|no usable request|no block_size|no session"):
        read(empty, name)
    with pytest.raises(KdalabError, match="is empty; give a trace with at least one request"):
        read(empty)


def test_rubbish_and_unknown_formats_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "t", ["a,b,c", "1,2,3"])
    with pytest.raises(KdalabError, match="begins 'a,b,c', which is no format known here"):
        read(path)
    with pytest.raises(KdalabError, match="unknown format 'csv'; allowed: mooncake, "):
        read(path, "csv")
    with pytest.raises(KdalabError, match="cannot read the trace"):
        read(tmp_path / "missing")


def test_ids_and_lengths_of_each_format(tmp_path: Path) -> None:
    got = {n: read(write(tmp_path / n, rows))[1] for n, rows in SAMPLES.items()}
    (r,) = got["kvcache"]
    assert (r.input_tokens, list(r.blocks), r.timestamp_ms) == (130, [7, 8, 9], 0.0)
    (r,) = got["bailian"]
    assert (r.timestamp_ms, list(r.blocks)) == (500.0, [4, 5, 6])
    (r,) = got["agentic"]
    assert (r.timestamp_ms, r.input_tokens, len(r.blocks)) == (2000.0, 130, 2)
    a, b = got["azure"]
    assert (a.timestamp_ms, a.input_tokens, b.output_tokens) == (0.0, 374, 109)
    assert b.timestamp_ms == pytest.approx(4314.579, abs=0.01)
    a, b = got["burstgpt"]
    assert (a.timestamp_ms, b.timestamp_ms, b.input_tokens) == (0.0, 40_000.0, 1087)
    assert not set(a.blocks) & set(b.blocks)  # arrivals only: nothing is shared


def test_tokens_become_ids_of_whole_prefixes(tmp_path: Path) -> None:
    """The next turn, which contains the output, finds the ids that the output got."""
    first = SAMPLES["marconi"][0]
    turn = first | {"turn_id": 1, "ts": 2.0, "input_tokens": TOKENS[0] + TOKENS[1] + [1] * 60}
    other = first | {"ts": 3.0, "input_tokens": [9, *TOKENS[0][1:]]}
    a, b, c = read(write(tmp_path / "t", [first, turn, other]))[1]
    assert (len(a.blocks), len(a.decoded)) == (2, 1)  # 130 and 70 tokens in blocks of 64
    assert list(a.blocks) + list(a.decoded) == list(b.blocks[:3])
    assert not set(a.blocks) & set(c.blocks)  # another first token: other prefixes throughout
    assert len(read(tmp_path / "t", block_tokens=16)[1][0].blocks) == 130 // 16


def sessions(folder: Path, **changes: Any) -> Path:
    """Two sessions with equal preambles of 128 tokens; the second has a sub-agent."""
    one = {
        "block_size": 64,
        "tool_tokens": 100,
        "system_tokens": 40,
        "requests": [
            {"t": 0.0, "in": 200, "out": 5, "hash_ids": [1, 2, 3]},
            {"t": 9.0, "in": 260, "out": 5, "hash_ids": [1, 2, 3, 4]},
        ],
    }
    agent = {
        "t": 3.0,
        "type": "subagent",
        "tool_tokens": 64,
        "system_tokens": 0,
        "requests": [
            {"t": 0.0, "in": 128, "out": 1, "hash_ids": [50, 51]},
            {"t": 1.0, "in": 192, "out": 1, "hash_ids": [50, 51, 52]},
        ],
    }
    two = one | {"requests": [*one["requests"], agent]} | changes  # type: ignore[misc]
    folder.mkdir()
    write(folder / "a.json", [json.dumps(one, indent=1)])
    write(folder / "b.json", [two])
    (folder / "notes.txt").write_text("not a session")
    return folder


def test_a_folder_of_sessions_is_merged_by_time_and_ids_stay_local(tmp_path: Path) -> None:
    folder = sessions(tmp_path / "s")
    reader, found = read(folder, gap_ms=1000.0)
    assert [r.timestamp_ms for r in found] == [0.0, 1000.0, 4000.0, 5000.0, 9000.0, 10_000.0]
    a, b, sub, sub2, _, _ = found
    assert list(a.blocks[:2]) == list(b.blocks[:2])  # 140 tokens of preamble: two whole blocks
    assert a.blocks[2] != b.blocks[2]
    assert list(sub2.blocks[:2]) == list(sub.blocks)  # siblings share through the session's ids
    assert not set(sub.blocks) & set(b.blocks)
    assert "declared, not measured" in " ".join(report_of(reader).notes)
    alone = read(folder, share="none", gap_ms=1000.0)[1]
    assert not set(alone[0].blocks) & set(alone[1].blocks)


def test_sessions_that_are_broken_are_counted(tmp_path: Path) -> None:
    folder = sessions(tmp_path / "s", block_size=32)
    (folder / "c.json").write_text("[]")
    deep: dict[str, Any] = {"t": 0.0, "requests": []}
    for _ in range(20):
        deep = {"t": 0.0, "requests": [deep]}
    rows = [{"t": -1.0, "in": 1, "out": 1, "hash_ids": []}, 7, {"t": 1.0, "in": 64}, deep]
    write(folder / "d.json", [{"block_size": 64, "requests": rows}])
    reader, found = read(folder)
    assert len(found) == 2
    assert reader.n_skipped == 6
    assert str(reader.skipped[0]) == "b.json, field block_size: 32 in a trace of blocks of 64"
    with pytest.raises(KdalabError, match="1 unusable"):
        read(folder, max_bad=0)


BAD: list[tuple[str, dict[str, Any], str]] = [
    ("mooncake", {"input_length": -5}, "field input_length: must be a whole number from 1"),
    ("mooncake", {"hash_ids": [1, 2, 3]}, "3 ids for 513 tokens; blocks of 512 make 2"),
    ("mooncake", {"timestamp": "now"}, "must be milliseconds"),
    ("kvcache", {"block_size": 32}, "field block_size: 32 in a trace of blocks of 64"),
    ("kvcache", {"block_tokens": [64, 64]}, "must have as many numbers as hash_ids"),
    ("kvcache", {"block_tokens": [64, 32, 34]}, "only the last block may differ from 64"),
    ("kvcache", {"block_tokens": [64, 64, 3]}, "add up to 131, and input_length is 130"),
    ("kvcache", {"hash_ids": [1]}, "1 ids for 130 tokens"),
    ("bailian", {"chat_id": "x"}, "field chat_id: must be a whole number"),
    ("bailian", {"output_length": -1}, "field output_length"),
    ("marconi", {"input_tokens": []}, "must be a list of 1 or more token ids"),
    ("marconi", {"output_tokens": [-3]}, "whole numbers of 0 or more"),
    ("marconi", {"input_tokens": [2**40]}, "below 2\\*\\*31"),
]


@pytest.mark.parametrize(("name", "change", "message"), BAD)
def test_a_line_that_contradicts_itself_is_counted_and_shown(
    tmp_path: Path, name: str, change: dict[str, Any], message: str
) -> None:
    good = SAMPLES[name][0]
    path = write(tmp_path / "t", [good, good | change, good])
    reader, found = read(path, name)
    assert (len(found), reader.n_skipped) == (2, 1)
    assert str(reader.skipped[0]).startswith("line 2")
    with pytest.raises(KdalabError, match=message):
        read(path, name, max_bad=0)


@pytest.mark.parametrize("name", ["mooncake", "bailian", "marconi"])
def test_time_that_goes_back_is_counted_or_sorted(tmp_path: Path, name: str) -> None:
    good = SAMPLES[name][0]
    field = READERS[name].time_field
    rows = [good | {field: t} for t in (3, 1, 4)]
    path = write(tmp_path / "t", rows)
    reader, found = read(path)
    assert (len(found), reader.n_skipped) == (2, 1)
    assert f"field {field}: goes back from" in str(reader.skipped[0])
    reader, found = read(path, sort=True)
    assert reader.n_skipped == 0
    assert [r.line for r in found] == [2, 1, 3]
    assert [r.line for r in read(path, sort=True, limit=2)[1]] == [2, 1]


def test_rows_of_tables_that_are_wrong_are_counted(tmp_path: Path) -> None:
    rows = [*SAMPLES["azure"], "yesterday,1,1", "2023-11-17 00:00:00,0,5", "2023-11-17 00:00:00,7"]
    reader, found = read(write(tmp_path / "t.csv", rows))
    assert (len(found), reader.n_skipped) == (2, 3)
    assert "no date and time: 'yesterday'" in str(reader.skipped[0])
    assert "no policy" in " ".join(report_of(reader).lines)


def test_a_length_beyond_any_context_is_a_bad_line_and_costs_no_ids(tmp_path: Path) -> None:
    huge = [f"2023-11-17 00:00:00,{n},{m}" for n, m in [(2**31, 5), (2**24 + 1, 5), (7, 2**24 + 1)]]
    rows = [*SAMPLES["azure"], *huge, f"2023-11-17 00:00:00,{2**24},{2**24}"]
    reader, found = read(write(tmp_path / "t.csv", rows))
    assert [(r.input_tokens, r.output_tokens) for r in found][2:] == [(2**24, 2**24)]
    assert len(found[2].blocks) == 2**24 // reader.block_tokens
    assert reader.n_skipped == 3
    assert "from 1 to 16,777,216, not '2147483648'" in str(reader.skipped[0])


def test_an_archive_that_swells_without_end_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kdalab.lab.readers.source.RATIO_FROM", 1 << 20)
    bomb = tmp_path / "t.gz"
    line = json.dumps(SAMPLES["mooncake"][0]).encode() + b" " * 1000 + b"\n"
    bomb.write_bytes(gzip.compress(line * 20_000))
    with pytest.raises(
        KdalabError, match=r"has unpacked to over 1 MiB, more than 200 times its size"
    ):
        read(bomb)


def test_a_small_archive_may_pack_as_tight_as_it_likes(tmp_path: Path) -> None:
    path = tmp_path / "t.gz"
    rows = [json.dumps(SAMPLES["mooncake"][0]) + " " * 2000] * 2000
    path.write_bytes(gzip.compress("\n".join(rows).encode()))
    assert 4 << 20 > 2000 * len(rows[0]) > 200 * path.stat().st_size
    assert len(read(path)[1]) == 2000


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
@pytest.mark.parametrize("blank", [b"   ", b" \n\t\n" * 100])
def test_a_file_of_blanks_is_called_that(tmp_path: Path, pack: Any, blank: bytes) -> None:
    path = tmp_path / "t"
    path.write_bytes(pack(blank))
    with pytest.raises(KdalabError, match="t holds nothing but blanks; give a trace"):
        read(path)


def test_blank_lines_before_a_trace_do_not_hide_its_format(tmp_path: Path) -> None:
    path = write(tmp_path / "t", [""] * 50 + SAMPLES["bailian"])
    assert read(path)[0].format == "bailian"  # type: ignore[attr-defined]


@pytest.mark.parametrize("code", ["UTF-16", "UTF-32"])
@pytest.mark.parametrize("name", [None, "mooncake"])
def test_text_of_another_encoding_is_named_with_the_way_out(
    tmp_path: Path, name: str | None, code: str
) -> None:
    path = tmp_path / "t"
    path.write_text(json.dumps(SAMPLES["mooncake"][0]) + "\n", encoding=code)
    said = rf"is {code} text; traces are UTF-8\. Convert it: `iconv"
    with pytest.raises(KdalabError, match=said):
        read(path, name)


def test_what_has_no_known_format_is_refused_in_few_words(tmp_path: Path) -> None:
    path = write(tmp_path / "t", ["x" * 5000])
    with pytest.raises(KdalabError) as refused:
        read(path)
    assert all(name in str(refused.value) for name in READERS)
    assert len(str(refused.value).replace(str(path), "")) < 300


def test_a_device_and_a_pipe_without_an_end_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for device in ("/dev/full", "/dev/null"):
        with pytest.raises(KdalabError, match=f"{device} is a device; give a file"):
            open_trace(device)
    monkeypatch.setattr("kdalab.lab.readers.source.MAX_SPOOL_BYTES", 1 << 20)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "copies"))
    (tmp_path / "copies").mkdir()
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    def write() -> None:
        with contextlib.suppress(BrokenPipeError):
            pipe.write_bytes(bytes(3 << 20))

    threading.Thread(target=write, daemon=True).start()
    with pytest.raises(KdalabError, match="has not ended; save it as a file first"):
        open_trace(pipe)
    assert not list((tmp_path / "copies").iterdir())


def test_a_pipe_that_begins_as_no_trace_does_is_refused_before_its_end(tmp_path: Path) -> None:
    pipe, sent = tmp_path / "pipe", [0]
    os.mkfifo(pipe)

    def write() -> None:
        with contextlib.suppress(BrokenPipeError), pipe.open("wb", buffering=0) as into:
            while sent[0] < 64 << 20:
                sent[0] += into.write(b"y\n" * 32768)

    feed = threading.Thread(target=write, daemon=True)
    feed.start()
    with pytest.raises(KdalabError, match="begins 'y', which is no format known here"):
        open_trace(pipe)
    feed.join(timeout=60)
    assert not feed.is_alive()
    assert sent[0] < 16 << 20


def test_a_long_document_in_a_pipe_is_read_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kdalab.lab.readers.source.CHECK_BYTES", 1000)
    session = SAMPLES["agentic"][0]
    many = [session["requests"][0] | {"t": float(i)} for i in range(8_000)]
    pipe, text = tmp_path / "pipe", json.dumps(session | {"requests": many}, indent=4)
    assert len(text) > 1 << 20  # more than one read of the pipe
    file = tmp_path / "session.json"
    file.write_text(text)
    os.mkfifo(pipe)
    threading.Thread(target=lambda: pipe.write_text(text), daemon=True).start()
    assert read(pipe)[1] == read(file)[1]


CUT = """
import sys
from kdalab.cli.refuse import say
from kdalab.errors import KdalabError
from kdalab.lab.readers import open_trace
try:
    list(open_trace("-", "mooncake"))
except KdalabError as error:
    say(error)
"""


def test_what_is_wrong_with_a_pipe_names_the_pipe_and_leaves_no_copy(tmp_path: Path) -> None:
    file = write_synthetic(tmp_path / "f.jsonl", 200)
    cut = gzip.compress(file.read_bytes())[:2000]
    copies = tmp_path / "copies"
    copies.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", CUT],
        input=cut,
        capture_output=True,
        env={**os.environ, "TMPDIR": str(copies)},
    )
    assert b"kdalab: cannot read the trace 'standard input': Compressed file ended" in done.stderr
    assert not list(copies.iterdir())


def test_a_file_of_the_name_of_standard_input_is_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_synthetic(tmp_path / "-", 20)
    monkeypatch.chdir(tmp_path)
    assert read(Path("./-"))[1] == synthetic_trace(20).requests
    assert list(open_trace("./-")) == synthetic_trace(20).requests


def test_a_pipe_is_read_like_a_file(tmp_path: Path) -> None:
    pipe, file = tmp_path / "pipe", write_synthetic(tmp_path / "f.jsonl", 20)
    os.mkfifo(pipe)
    threading.Thread(target=lambda: pipe.write_bytes(file.read_bytes()), daemon=True).start()
    assert read(pipe)[1] == synthetic_trace(20).requests


def test_ids_that_are_strings_count_by_their_value(tmp_path: Path) -> None:
    row = SAMPLES["kvcache"][0]
    rows = [row | {"hash_ids": ["7", "x", "y"]}, row | {"hash_ids": [7, "x", "z"]}]
    a, b = read(write(tmp_path / "t", rows))[1]
    assert list(a.blocks[:2]) == list(b.blocks[:2])
    assert a.blocks[2] != b.blocks[2]
    assert min(a.blocks) >= 0


def prompts(*prompts: list[int]) -> list[Any]:
    return [
        SAMPLES["mooncake"][0] | {"timestamp": t, "input_length": 512 * len(ids), "hash_ids": ids}
        for t, ids in enumerate(prompts)
    ]


@pytest.mark.parametrize("batch", [1, 4, 1 << 20])
def test_ids_that_contradict_an_earlier_prefix_are_counted_and_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch: int
) -> None:
    monkeypatch.setattr("kdalab.lab.readers.prefixes.BATCH", batch)
    rows = prompts([1, 2, 3], [1, 2, 4], [5, 2, 3], [], [4], [7, 7], [1, 2, 3, 9], [8, 9])
    rows[3] |= {"input_length": 511, "hash_ids": [11]}
    reader, found = read(write(tmp_path / "t", rows))
    assert (len(found), reader.n_skipped) == (8, 0)
    # By the definition: an id's first predecessor is the right one.
    first: dict[int, int] = {}
    wrong = sum(
        first.setdefault(i, before) != before
        for r in found
        for before, i in zip([-1, *r.blocks], r.blocks, strict=False)
    )
    assert wrong == 4
    assert reader.contradictions.count == wrong  # type: ignore[attr-defined]
    note = report_of(reader).notes[-1]
    assert note == report_of(reader.load()).notes[-1]  # type: ignore[attr-defined]
    assert note.startswith("4 block ids contradict an earlier prefix")
    assert note.endswith(
        "the first: line 3: id 2 after 5, the first time after 1; line 5: id 4 at the beginning, "
        "the first time after 2; line 6: id 7 after 7, the first time at the beginning"
    )


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=6), max_size=12))
def test_contradictions_are_those_of_the_definition(paths: list[list[int]]) -> None:
    check, first, wrong = PrefixCheck(), dict[int, int](), 0
    for line, ids in enumerate(paths):
        check.add(TraceRequest(line, 0.0, 1, 1, array("q", ids)))
        wrong += sum(
            first.setdefault(i, before) != before
            for before, i in zip([-1, *ids], ids, strict=False)
        )
    check.finish()
    assert (check.count, len(check.first)) == (wrong, min(3, wrong))


def test_ids_of_whole_prefixes_and_ids_that_promise_nothing_need_no_note(tmp_path: Path) -> None:
    for name, rows in (
        ("good", prompts([1, 2, 3], [1, 2, 4], [5, 6], [1, 2, 4, 8])),
        ("blocks", [SAMPLES["kvcache"][0] | {"hash_ids": ids} for ids in ([7, 8, 9], [9, 8, 7])]),
    ):
        reader, _ = read(write(tmp_path / name, rows))
        assert not any("contradict" in line for line in report_of(reader).lines)


def test_options_out_of_range_are_refused() -> None:
    wrong = [{"limit": 0}, {"max_bad": -1}, {"block_tokens": 0}, {"share": "all"}, {"gap_ms": -1}]
    for options in wrong:
        with pytest.raises(KdalabError):
            ReadOptions(**options)
