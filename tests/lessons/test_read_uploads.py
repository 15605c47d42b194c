"""A visitor's file: every format by its content, and clear words for what is none."""

import csv
import gzip
import json
import pickle
import random
import time
from itertools import accumulate

import pytest

from kdalab.errors import KdalabError
from kdalab.lab.generate import CHAT, generate, write_jsonl
from kdalab.lab.readers import ReadOptions, open_trace, source
from kdalab.lessons import uploads
from kdalab.lessons.uploads import plain_name, read_upload

LINE = '{"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": [1, 2]}\n'


def written(folder, content, name="x.bin"):
    file = folder / name
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return file


def test_what_is_read_is_what_the_lab_reads_packed_or_not(tmp_path):
    write_jsonl(tmp_path / "x.jsonl", generate(40, CHAT), 512)
    raw = (tmp_path / "x.jsonl").read_bytes()
    wanted = list(open_trace(tmp_path / "x.jsonl"))
    for name, content in (("a", raw), ("b.jsonl.gz", gzip.compress(raw))):
        found = read_upload(written(tmp_path, content, name), "mine.jsonl")
        assert found.trace.requests == wanted
        assert (found.more, found.report.skipped) == (False, 0)
    part = found.first(7)
    assert part.requests == wanted[:7]
    assert found.first(10**6) is found.trace


@pytest.mark.parametrize(
    ("content", "format"),
    [
        (LINE, "mooncake"),
        ("\ufeff" + LINE, "mooncake"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,374,44\n", "azure"),
        ("Timestamp,Model,Request tokens,Response tokens\n5,<b>x</b>,472,18\n", "burstgpt"),
        (
            json.dumps(
                {"block_size": 64, "requests": [{"t": 0, "in": 64, "out": 1, "hash_ids": [0]}]},
                indent=1,
            ),
            "agentic",
        ),
    ],
)
def test_the_format_is_told_by_the_content_whatever_the_name(tmp_path, content, format):
    found = read_upload(written(tmp_path, content, "notes.txt"), "notes.txt")
    assert (found.report.format, len(found.trace.requests)) == (format, 1)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "mine is empty"),
        (b" \n\n", "mine is empty"),
        (gzip.compress(b"", mtime=0), "mine is empty"),
        (LINE.encode("utf-16"), "UTF-16 text; save it as UTF-8"),
        (pickle.dumps(LINE) + b"\0", "no UTF-8 text"),
        (b"PK\x03\x04rest", "a zip archive"),
        (gzip.compress(gzip.compress(LINE.encode(), mtime=0), mtime=0), "gzipped twice"),
        (gzip.compress(LINE.encode() * 50, mtime=0)[:-12], "cannot be unpacked or read"),
        ("hello\nworld", "mine, line 1, begins 'hello' and has no format.*Mooncake JSONL"),
        ("[" * 5000, "has no format that is known"),
        ('{"a": 1}', "has no format that is known"),
        ('{"hash_ids": [1], "input_length": 9}', "mine declares no block_size; add"),
        (LINE + "x\n" * 200, "mine: 101 unusable lines, 100 allowed. The first: line 2"),
    ],
)
def test_what_is_no_trace_is_refused_without_places_and_options(tmp_path, content, says):
    file = written(tmp_path, content)
    with pytest.raises(KdalabError, match=says) as refused:
        read_upload(file, "mine")
    for word in (str(tmp_path), "x.bin", "--max", "--format", "--block"):
        assert word not in str(refused.value)


def test_a_bomb_is_measured_only_as_far_as_the_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(uploads, "MAX_UNPACKED_BYTES", 3 << 20)
    heard = []
    bomb = written(tmp_path, gzip.compress(b"\n" * (64 << 20)), "x.gz")
    with pytest.raises(KdalabError, match="unpacks to more than 3 MiB"):
        read_upload(bomb, "mine", lambda done, total: heard.append(done))
    assert len(heard) < 5  # of 64 pieces


@pytest.mark.parametrize("begin", [b"", LINE.encode() * 20])
def test_a_bomb_of_blank_lines_costs_next_to_nothing(tmp_path, begin):
    packed = written(tmp_path, gzip.compress(begin + b"\n" * (60 << 20)), "x.gz")
    began = time.process_time()
    with pytest.raises(KdalabError, match="over 4 MiB, more than 200 times its size"):
        read_upload(packed, "mine")
    plain = written(tmp_path, begin + b"\r\n" * (15 << 20))
    with pytest.raises(KdalabError, match="mine has more than 1 MiB of blank lines"):
        read_upload(plain, "mine")
    with pytest.raises(KdalabError, match="blank lines"):  # as the commands read it
        list(open_trace(packed, "mooncake"))
    assert time.process_time() - began < 5  # a minute, where each line is looked at


def test_a_blank_line_after_each_request_is_no_bomb(tmp_path, monkeypatch):
    monkeypatch.setattr(source, "MAX_BLANK_BYTES", 10)
    found = read_upload(written(tmp_path, (LINE + "\r\n") * 500), "mine")
    assert len(found.trace.requests) == 500


def test_a_reading_is_told_by_bytes_and_not_by_lines(tmp_path):
    heard = []
    text = LINE * 20_000
    assert list(source.lines(written(tmp_path, text), heard.append))[-1][0] == 20_000
    assert 5 <= len(heard) <= 1 + len(text) // (256 << 10)
    assert heard == sorted(heard)


def test_a_line_and_a_document_have_limits_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setattr(uploads, "MAX_LINE_BYTES", 2 << 20)
    with pytest.raises(KdalabError, match="a line of more than 2 MiB"):
        read_upload(written(tmp_path, b"7" * (3 << 20)), "mine")
    with pytest.raises(KdalabError, match="one JSON document of more than 2 MiB"):
        read_upload(written(tmp_path, b'{\n"requests": [\n' + b"1,\n" * (1 << 20)), "mine")


def test_of_a_long_trace_the_beginning_is_kept_and_it_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(uploads, "MAX_KEPT_REQUESTS", 3)
    file = written(tmp_path, LINE * 9)
    found = read_upload(file, "mine")
    assert (len(found.trace.requests), found.more) == (3, True)
    monkeypatch.setattr(uploads, "MAX_KEPT_BLOCKS", 5)
    assert len(read_upload(file, "mine").trace.requests) == 2


def test_bad_lines_are_counted_and_the_first_are_shown(tmp_path):
    found = read_upload(written(tmp_path, LINE + "nonsense\n" + LINE), "mine")
    assert len(found.trace.requests) == 2
    assert found.report.skipped == 1
    assert found.report.first[0].startswith("line 2: not JSON")


def test_lines_out_of_their_order_are_sorted_and_the_beginning_is_the_earliest(
    tmp_path, monkeypatch
):
    times = random.Random(5).sample(range(1000), 300)
    lines = [LINE.replace("0", str(at), 1) for at in times]
    file = written(tmp_path, "".join(lines))
    found = read_upload(file, "mine")
    assert found.trace.requests == list(open_trace(file, None, ReadOptions(sort=True)))
    latest = list(accumulate(times, max))
    assert found.back == sum(at < most for at, most in zip(times, latest, strict=True))
    assert (found.more, found.report.skipped) == (False, 0)
    monkeypatch.setattr(uploads, "MAX_KEPT_REQUESTS", 290)
    monkeypatch.setattr(uploads, "MAX_KEPT_BLOCKS", 2 * 20 + 1)
    part = read_upload(file, "mine")
    assert [r.timestamp_ms for r in part.trace.requests] == sorted(times)[:20]
    assert part.more
    assert read_upload(written(tmp_path, LINE * 3), "mine").back == 0


def test_an_id_that_contradicts_itself_is_noted(tmp_path):
    found = read_upload(written(tmp_path, LINE + LINE.replace("[1, 2]", "[2, 1]")), "mine")
    assert any("contradict an earlier prefix" in note for note in found.report.notes)


def test_html_in_a_field_stays_text(tmp_path):
    file = tmp_path / "x.csv"
    with file.open("w", newline="") as out:
        csv.writer(out).writerows(
            [("Timestamp", "Request tokens", "Response tokens"), (1, 5, 5),
             (2, "<img src=x onerror=alert(1)>", 5)]
        )  # fmt: skip
    found = read_upload(file, "<b>x</b>.csv")
    assert "<img src=x" in found.report.first[0]
    assert found.name == "b>.csv"


@pytest.mark.parametrize(
    ("name", "shown"),
    [("../../etc/passwd", "passwd"), ("C:\\a\\b.gz", "b.gz"), ("a\x00\x1b[2Jb\n.csv", "a[2Jb.csv"),
     ("", "trace"), ("x" * 200, "x" * 80), ("트레이스.jsonl", "트레이스.jsonl")],
)  # fmt: skip
def test_a_name_is_shown_as_one_short_line_without_its_folders(name, shown):
    assert plain_name(name) == shown
