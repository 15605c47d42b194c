"""``kdalab bench lab`` in small, and the traffic that it makes up."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from typer.testing import CliRunner

from kdalab.bench import lab
from kdalab.bench.lab_trace import BLOCK, SHARED, SHARED_TOKENS, AgentTrace
from kdalab.cli.bench import app
from kdalab.errors import KdalabError


def test_agents_are_of_the_size_that_was_asked_for_and_repeat_themselves() -> None:
    trace = AgentTrace(3_000, 118_000)
    lengths = [r.input_tokens for r in trace]
    assert sum(lengths) / len(lengths) == pytest.approx(118_000, rel=0.05)
    first: dict[int, int] = {}
    begins: Counter[int] = Counter()
    for r in trace:
        ids = r.blocks.tolist()
        assert len(ids) == -(-r.input_tokens // BLOCK)
        begins[ids[0]] += 1
        for at, block in enumerate(ids):
            assert first.setdefault(block, at) == at, "an id stands for one place"
    assert len(begins) == SHARED
    assert all(b % (SHARED_TOKENS // BLOCK) == 0 for b in begins)
    new, total = len(first), sum(-(-n // BLOCK) for n in lengths)
    assert new < 0.15 * total, "most of a prompt has been sent before"
    assert [tuple(r.blocks) for r in AgentTrace(50)] == [tuple(r.blocks) for r in AgentTrace(50)]


def test_all_of_it_in_small_prints_every_part() -> None:
    done = CliRunner().invoke(
        app, ["lab", "--quick", "--tokens", "31000", "--json"], catch_exceptions=False
    )
    rows = {r["what"]: r for r in json.loads(done.output)["rows"]}
    parts = Counter(name.split(",")[0].split(":")[0] for name in rows)
    assert parts["sweep"] >= 2
    assert parts["agents"] == 5
    assert parts["live"] == len(lab.LIVE_PLACEMENTS) * len(lab.LIVE_BUDGETS_GIB)
    assert all(r["seconds"] > 0 for r in rows.values())
    assert all(r["peak_rss"] > 1 << 20 for n, r in rows.items() if not n.startswith("live"))


def test_a_process_that_fails_says_why() -> None:
    with pytest.raises(KdalabError, match="cannot read the trace"):
        list(lab.bench_conversation(lab.Path("/nowhere.jsonl"), 1))
    with pytest.raises(KdalabError, match="0 requests"):
        AgentTrace(0)
