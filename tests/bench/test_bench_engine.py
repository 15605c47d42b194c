"""The engine's bench measures what it says, on inputs small enough for a test."""

from __future__ import annotations

import json

from typer.testing import CliRunner

from kdalab.bench.engine import Figure, decode_steps, first_tokens, state_costs
from kdalab.model import tiny_model


def test_every_hit_is_compared_with_its_tail_alone() -> None:
    figures = {f.name: f for f in first_tokens(tiny_model(), 256, 1)}
    assert {"cold", "full hit", "partial hit, 64 more"} <= set(figures)
    assert all(f.value > 0 for f in figures.values())
    assert figures["full hit, against its tail alone"].limit == 1.15


def test_a_state_is_frozen_restored_and_donated() -> None:
    figures = {f.name: f.value for f in state_costs("tiny", 1)}
    assert len(figures) == 5
    assert all(value > 0 for value in figures.values())


def test_the_shares_of_a_decode_step_add_up() -> None:
    figures = decode_steps(tiny_model(decode_rows=16), 1, 6)
    shares = [f.value for f in figures if f.unit == "% of a step"]
    assert len(shares) == 3
    assert all(0 <= s <= 100 for s in shares)
    assert "decode" not in vars(tiny_model(decode_rows=16))


def test_a_limit_is_met_or_missed() -> None:
    assert Figure("g", "n", 1.0, "x", 1.0).met is True
    assert Figure("g", "n", 1.1, "x", 1.0).met is False
    assert Figure("g", "n", 1.1, "x").met is None


def test_the_command_prints_json() -> None:
    from kdalab.cli.bench import app

    done = CliRunner().invoke(app, ["engine", "--quick", "--repeats", "1", "--json"])
    assert done.exit_code == 0
    data = json.loads(done.stdout)
    assert {"machine", "figures"} == set(data)
    assert {"group", "name", "value", "unit", "limit", "note", "met"} == set(data["figures"][0])
