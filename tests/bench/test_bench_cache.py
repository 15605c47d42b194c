"""``kdalab bench cache``: every row is there and means what it says. No time is asserted."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from kdalab.bench.cache import CacheRow, bench_cache
from kdalab.cli.main import build_app
from kdalab.errors import KdalabError


def test_every_operation_is_measured_in_every_tree() -> None:
    rows = list(bench_cache([7, 30], [1_000, 100], repeats=3))
    names = {(r.operation, r.nodes, r.tokens) for r in rows}
    for nodes in (7, 30):
        assert {("evict a page", nodes, 0), ("evict a state", nodes, 0)} <= names
        for tokens in (1_000, 100):
            for name in ("lookup", "lock + unlock", "insert", "key from an int32 array"):
                assert (name, nodes, tokens) in names
    assert all(0 < r.median_us <= r.slowest_us for r in rows)
    assert [(r.limit_us, r.goal_us) for r in rows if (r.operation, r.tokens) == ("lookup", 1_000)]


@pytest.mark.parametrize(("median", "says"), [(4, "goal"), (6, "limit"), (22, "missed")])
def test_the_verdict_compares_with_limit_and_goal(median: float, says: str) -> None:
    assert CacheRow("lookup", 1, 1000, median, median, 1, 21, 5).verdict == says


@pytest.mark.parametrize("wrong", [{"nodes": [0]}, {"tokens": [63]}, {"repeats": 0}])
def test_sizes_that_cannot_be_measured_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(KdalabError, match=r"; use [\d,]+ to"):
        next(bench_cache(**{"nodes": [5], "tokens": [100], **wrong}))  # type: ignore[arg-type]


def test_the_command_prints_json_with_stable_keys() -> None:
    args = ["bench", "cache", "--nodes", "20", "--tokens", "200", "--repeats", "2", "--json"]
    done = CliRunner().invoke(build_app(), args)
    assert done.exit_code == 0, done.output
    out = json.loads(done.stdout)
    assert set(out) == {"machine", "rows", "block_rows"}
    assert set(out["rows"][0]) == {
        "operation", "nodes", "tokens", "median_us", "slowest_us", "calls", "limit_us", "goal_us",
        "verdict",
    }  # fmt: skip
