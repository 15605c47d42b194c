"""Made-up traces: the same seed gives the same one, and its statistics are those asked for."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kdalab.errors import KdalabError
from kdalab.lab import Trace, TraceRequest, open_trace
from kdalab.lab.generate import (
    AGENT,
    CHAT,
    PRESETS,
    Draw,
    Shape,
    changed,
    generate,
    generated_trace,
    write_jsonl,
)
from kdalab.lab.stats import trace_stats


@pytest.mark.parametrize("name", PRESETS)
def test_a_seed_gives_one_trace_and_a_longer_one_begins_with_it(name: str) -> None:
    of = PRESETS[name]
    first = list(generate(200, of, 7))
    assert first == list(generate(200, of, 7))
    assert first == list(islice(generate(400, of, 7), 200))
    assert first != list(generate(200, of, 8))
    times = [r.timestamp_ms for r in first]
    assert times == sorted(times)


@pytest.mark.parametrize("name", PRESETS)
def test_what_is_written_is_read_again(tmp_path: Path, name: str) -> None:
    of, path = PRESETS[name], tmp_path / "t.jsonl"
    assert write_jsonl(path, generate(100, of), of.block_tokens) == 100
    read = open_trace(path).load()
    assert read.block_tokens == of.block_tokens
    assert read.requests == list(generate(100, of))
    assert read.n_skipped == 0


def near(value: float, wanted: float, factor: float) -> bool:
    return wanted / factor <= value <= wanted * factor


def test_the_chat_preset_has_the_statistics_of_the_trace_it_was_fitted_to() -> None:
    """The wanted numbers are those of Mooncake's conversation trace."""
    s = trace_stats(generated_trace(6_000, CHAT, 1))
    assert near(s.rate, 3.40, 1.2)
    assert near(s.arrival_cv, 3.03, 1.3)
    assert near(s.input.p50, 6_909, 1.2)
    assert near(s.input.mean, 12_035, 1.2)
    assert near(s.input.p95, 39_552, 1.25)
    assert near(s.output.p50, 350, 1.1)
    assert near(s.known_share, 0.373, 1.2)
    assert near(s.next_turns, 0.275, 1.2)
    assert near(s.added.p50, 776, 1.5)
    assert near(s.think.p50, 126, 1.2)
    assert s.branch_at.p50 == 512


def test_the_agent_preset_has_the_statistics_of_the_sessions_it_was_fitted_to() -> None:
    s = trace_stats(generated_trace(2_500, AGENT, 1))
    assert near(s.input.p50, 52_886, 1.4)
    assert near(s.input.mean, 51_659, 1.3)
    assert near(s.input.p95, 90_563, 1.2)
    assert near(s.known_share, 0.937, 1.05)
    assert near(s.next_turns, 0.908, 1.05)
    assert near(s.turn.p50, 8, 1.4)
    assert near(s.think.p50, 12, 1.2)
    assert near(s.output.p50, 213, 1.2)


def test_statistics_that_are_changed_change_the_trace() -> None:
    one = trace_stats(
        generated_trace(400, changed("chat-like", {"go_on": [9, 1], "think": [1, 0.1]}))
    )
    many = trace_stats(generated_trace(400, changed("chat-like", {"go_on": [1, 99]})))
    assert one.next_turns > 0.7 > 0.1 > many.next_turns
    short = changed("agent-like", {"first": [100, 0.1], "added": [10, 0.1, "normal", 50]})
    assert short.first == Draw(100, 0.1)
    assert trace_stats(generated_trace(300, short)).added.p50 < 1_000
    for wrong in ({"colour": 1}, {"first": 3}, {"first": [0, 1]}, {"branch": 2}, {"go_on": "x"}):
        with pytest.raises(KdalabError):
            changed("chat-like", wrong)
    with pytest.raises(KdalabError, match="unknown preset 'x'; allowed: chat-like, agent-like"):
        changed("x", {})
    with pytest.raises(KdalabError, match="0 made-up requests"):
        generate(0, Shape())


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.lists(st.integers(0, 1), max_size=6), st.integers(0, 511)), min_size=1)
)
def test_what_was_known_before_is_what_a_set_of_prefixes_says(rows) -> None:  # type: ignore[no-untyped-def]
    names: dict[tuple[int, ...], int] = {}
    seen: set[tuple[int, ...]] = set()
    requests, known, total, fresh = [], 0, 0, 0
    for line, (prompt, rest) in enumerate(rows, 1):
        tokens = len(prompt) * 512 + rest
        if not tokens:
            continue
        prefixes = [tuple(prompt[: i + 1]) for i in range(len(prompt))]
        ids = [names.setdefault(p, len(names)) for p in prefixes]
        requests.append(TraceRequest(line, float(line), tokens, 1, array("q", ids)))
        match = sum(1 for p in prefixes if p in seen)
        known += match * 512
        total += tokens
        fresh += match == 0
        seen.update(prefixes)
    if not requests:
        return
    s = trace_stats(Trace("drawn", requests))
    assert s.known_share == pytest.approx(known / total)
    assert s.distinct_blocks == len(seen)
    assert s.fresh == pytest.approx(fresh / len(requests))
    assert s.fresh + s.next_turns + s.branches == pytest.approx(1)


def test_turns_are_counted_along_a_conversation() -> None:
    def prompt(line: int, blocks: list[int], more: int = 5) -> TraceRequest:
        n = len(blocks) * 512 + more
        return TraceRequest(line, line * 1000.0, n, 1, array("q", blocks))

    rows = [
        prompt(1, [1, 2]),  # fresh
        prompt(2, [1, 2, 3]),  # its second turn
        prompt(3, [1, 9]),  # parts after one block
        prompt(4, [1, 2, 3, 4, 5]),  # third turn
        prompt(5, [1, 2, 3, 7]),  # the second turn's end, a second time: a branch
    ]
    s = trace_stats(Trace("t", rows))
    assert (s.fresh, s.next_turns, s.branches) == (0.2, 0.4, 0.4)
    assert s.turn.max == 3
    assert (s.added.p50, s.added.max) == (512 + 5, 1024 + 5)
    assert (s.think.p50, s.think.max) == (1.0, 2.0)
    assert (s.branch_at.p10, s.branch_at.max) == (512, 1536)


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        ({"systems": 1e308}, "systems = 1e+308; use a whole number from 1 to 100,000"),
        ({"systems": 1.5}, "systems = 1.5; use a whole number"),
        ({"systems": "3"}, "systems = '3'; use a whole number"),
        ({"systems": True}, "systems = True; use a whole number"),
        ({"first": 5}, "first = 5: use [MIDDLE, WIDTH]"),
        ({"first": ["a", 1]}, "a draw's middle = 'a'; use a number"),
        (
            {"first": [5, 1e9]},
            "width of a lognormal draw = 1000000000.0; use a number from 0 to 10",
        ),
        ({"first": [5, 1, []]}, "a draw of kind []; allowed: lognormal, normal"),
        ({"go_on": [1]}, "use [A, B]"),
        ({"go_on": [1, 0]}, "go_on = 0; use a number from 0.001"),
        ({"zipf": float("nan")}, "zipf = nan; use a number from 0 to 20"),
        ({"common": 500, "most": 400}, "common = 500 tokens leave nothing"),
    ],
)
def test_a_statistic_that_cannot_be_is_named(shape: dict[str, object], said: str) -> None:
    with pytest.raises(KdalabError) as error:
        changed("chat-like", shape)
    assert said in str(error.value)


def test_no_prompt_has_more_blocks_than_tokens_even_where_the_systems_are_long() -> None:
    of = changed("chat-like", {"system": [50_000, 0.1], "most": 4_000})
    assert all(len(r.blocks) == -(-r.input_tokens // 512) for r in generate(50, of))


@pytest.mark.parametrize("name", ["t.jsonl", "t.jsonl.gz"])
def test_an_interrupt_leaves_the_file_that_was_there_and_nothing_else(
    tmp_path: Path, name: str
) -> None:
    def interrupted() -> Iterator[TraceRequest]:
        yield from generate(20, CHAT)
        raise KeyboardInterrupt

    path = tmp_path / name
    with pytest.raises(KeyboardInterrupt):
        write_jsonl(path, interrupted(), 512)
    assert list(tmp_path.iterdir()) == []
    write_jsonl(path, generate(5, CHAT), 512)
    with pytest.raises(KeyboardInterrupt):
        write_jsonl(path, interrupted(), 512)
    assert len(open_trace(path).load().requests) == 5
    assert list(tmp_path.iterdir()) == [path]
