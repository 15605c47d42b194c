"""The lab on a page: pasted text is a file like any other, with limits."""

import gzip
import pickle

import pytest

from kdalab.errors import KdalabError
from kdalab.lab.generate import CHAT, generate, write_jsonl
from kdalab.lab.readers import open_trace
from kdalab.lab.run import replay_setup
from kdalab.lessons.trace_lab import MAX_PASTED_BYTES, play_lab, read_pasted, read_uploaded


def test_a_pasted_trace_gives_the_account_of_its_file(tmp_path):
    file = tmp_path / "x.jsonl"
    write_jsonl(file, generate(20, CHAT), 512)
    run = play_lab("agent-like", file.read_text(), "kimi-linear-48b", 8 << 30, "leaf+branch")
    wanted = replay_setup(open_trace(file), run.setup)
    assert (run.requests, run.account.hit_tokens) == (20, wanted.hit_tokens)
    assert run.account.states_written == wanted.states_written
    here = [r for r in run.rows if r["setup"] == str(run.setup)]
    assert [r["hit_tokens"] for r in here] == [wanted.hit_tokens]
    assert all(row in run.rows for row in run.best)
    assert {a.system for a in run.advice} == {"SGLang", "vLLM"}


@pytest.mark.parametrize("text", ["not a trace", "\x80\x04K\x01.", '{"a": 1}', "[" * 5000])
def test_a_text_that_no_reader_takes_is_refused(text):
    with pytest.raises(KdalabError):
        read_pasted(text)


def test_a_text_that_is_too_long_is_refused_before_it_is_read():
    with pytest.raises(KdalabError, match="bytes"):
        read_pasted(" " * (MAX_PASTED_BYTES + 1))


def test_an_uploaded_file_is_text_within_the_limits(tmp_path):
    file = tmp_path / "x.jsonl"
    line = '{"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": [1, 2]}\n'
    file.write_bytes(b"\xef\xbb\xbf" + line.encode())
    assert read_uploaded(file) == line
    file.write_bytes(pickle.dumps(line))
    with pytest.raises(KdalabError, match="no UTF-8 text"):
        read_uploaded(file)
    file.write_bytes(gzip.compress(line.encode()))
    with pytest.raises(KdalabError, match="not compressed"):
        read_uploaded(file)
    file.write_text("neither a trace nor anything like it")
    with pytest.raises(KdalabError):
        read_uploaded(file)
    file.write_text(" " * (MAX_PASTED_BYTES + 1))
    with pytest.raises(KdalabError, match="more than 1,000,000 bytes"):
        read_uploaded(file)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("hello\nworld", "the pasted trace, line 1, begins 'hello'.*Formats known here: mooncake"),
        ('{"hash_ids": [1], "input_length": 9}', "the pasted trace declares no block_size; add"),
        (
            '{"timestamp": 0, "input_length": 9, "output_length": 1, "hash_ids": [1]}\n'
            + "x\n" * 20,
            "the pasted trace: 11 unusable lines, 10 allowed. The first: line 2",
        ),
        (" ", "the pasted trace holds nothing but blanks"),
    ],
)
def test_what_is_wrong_with_a_pasted_trace_is_said_without_places_and_options(text, says):
    with pytest.raises(KdalabError, match=says) as refused:
        read_pasted(text)
    assert "--" not in str(refused.value)
    assert "/" not in str(refused.value)
    assert "pasted.jsonl" not in str(refused.value)
