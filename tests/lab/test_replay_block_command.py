"""``kdalab replay`` through the block cache and under tuned retentions, as a command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from kdalab.cli.replay import command
from kdalab.lab import write_synthetic


def run(*args: object) -> Result:
    app = typer.Typer()
    app.command()(command)
    return CliRunner().invoke(app, [str(a) for a in args])


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_synthetic(tmp_path_factory.mktemp("trace") / "t.jsonl", 120)


def test_block_sizes_come_from_the_model_and_sums_close(trace: Path) -> None:
    done = run(trace, "--cache", "block", "--json")
    assert done.exit_code == 0, done.output
    out = json.loads(done.stdout)
    # 6,512,640 B of state over 1,152 B a token are 5,653.3 tokens; up to a multiple of 512: 6,144.
    assert (out["block_tokens"], out["unit_tokens"], out["state_groups"]) == (6144, 512, 3)
    assert out["block_bytes"] == 24 * 6144 * 1152
    assert out["known_tokens"] == out["hit_tokens"] + out["replayed_tokens"]
    assert out["input_tokens"] == out["known_tokens"] + out["new_tokens"]
    assert 0 < out["padding_bytes"] + out["unfilled_bytes"] < out["held_bytes"] <= out["peak_bytes"]
    assert out["held_bytes"] == out["held_blocks"] * out["block_bytes"]
    assert (out["retention"], out["mode"], out["layout"]) == ("0", "align", "padded")


def test_modes_layouts_units_and_retentions_reach_the_cache(trace: Path) -> None:
    def hits(*args: object) -> tuple[int, int]:
        done = run(trace, "--cache", "block", "--model", "kimi-linear-48b", "--json", *args)
        assert done.exit_code == 0, done.output
        out = json.loads(done.stdout)
        return out["hit_tokens"], out["states_written"]

    fine, coarse = hits(), hits("--unit", 2048)
    assert coarse[0] < fine[0]
    dense = hits("--retention", "dense")
    assert dense[0] >= fine[0]
    assert dense[1] > fine[1]
    assert hits("--mode", "none")[0] == 0
    assert hits("--mode", "all", "--unit", 2048)[0] > 0
    assert hits("--layout", "packed", "--block", 512)[0] > fine[0]


def test_a_pool_under_a_budget_evicts_and_says_padding_in_the_table(trace: Path) -> None:
    done = run(trace, "--cache", "block", "--budget", "20GiB")
    assert done.exit_code == 0, done.output
    shown = " ".join(done.stdout.split())
    assert "of which padding" in shown
    assert "hits are whole units of 512 tokens" in shown
    small = run(trace, "--cache", "block", "--budget", "1GiB")
    assert small.exit_code == 2
    assert "The smallest budget that works" in small.stderr


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--cache", "tree"], "use radix or block"),
        (["--block", "1024"], "go with --cache block"),
        (["--cache", "block", "--unit", "100"], "a multiple of"),
        (["--cache", "block", "--block", "700"], "use a multiple of 512"),
        (["--cache", "block", "--block", "512"], "use blocks of at least"),
        (["--cache", "block", "--mode", "some"], "use one of none, all, align"),
        (["--cache", "block", "--mode", "all"], "needs cache mode align"),
        (["--cache", "block", "--layout", "loose"], "padded, packed"),
        (["--cache", "block", "--retention", "lru-path"], "allowed: dense"),
        (["--cache", "block", "--retention", "100"], "not a multiple of the scheduler's block"),
        (["--retention", "fifo"], "marconi:ALPHA"),
        (["--cache", "block", "--checkpoints", "leaf"], "--checkpoints goes with --cache radix"),
        (["--checkpoints", ""], "allowed"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    trace: Path, args: list[str], says: str
) -> None:
    done = run(trace, "--unit", "512", *args) if "all" in args else run(trace, *args)
    assert done.exit_code == 2
    assert says in done.stderr


def test_alpha_auto_is_one_of_those_tried_and_the_replay_uses_it(trace: Path) -> None:
    args = (trace, "--model", "kimi-linear-48b", "--checkpoints", "leaf+branch")
    limit = (*args, "--budget", "1.5GiB", "--json")
    tuned = json.loads(run(*limit, "--retention", "marconi:auto").stdout)
    alpha = tuned["tuned"]["alpha"]
    assert tuned["retention"] == f"marconi:{alpha:g}"
    saved = {float(a): s for a, s in tuned["tuned"]["saved"].items()}
    assert len(saved) == 21
    assert saved[alpha] == max(saved.values())
    given = json.loads(run(*limit, "--retention", f"marconi:{alpha:g}").stdout)
    assert given["hit_tokens"] == tuned["hit_tokens"]
    assert "tuned" not in given
    free = run(*args, "--retention", "marconi:auto")
    assert "nothing to choose" in " ".join(free.stdout.split())


def test_alpha_of_blocks_is_tuned_beside_any_retention_and_the_replay_uses_it(trace: Path) -> None:
    args = (trace, "--cache", "block", "--model", "kimi-linear-48b", "--budget", "3GiB", "--json")
    for kept in ("0", "dense"):
        tuned = json.loads(run(*args, "--retention", f"marconi:auto+{kept}").stdout)
        alpha = tuned["tuned"]["alpha"]
        assert tuned["retention"] == f"marconi:{alpha:g}+{kept}"
        saved = {float(a): s for a, s in tuned["tuned"]["saved"].items()}
        assert len(saved) == 21
        assert saved[alpha] == max(saved.values()) > 0
        given = json.loads(run(*args, "--retention", f"marconi:{alpha:g}+{kept}").stdout)
        assert given["hit_tokens"] == tuned["hit_tokens"]
        assert "tuned" not in given
    free = run(*args[:-3], "--retention", "marconi:auto")
    assert "nothing to choose" in " ".join(free.stdout.split())


def test_blocks_go_by_their_worth_where_that_is_asked_for(trace: Path) -> None:
    def hits(retention: str) -> int:
        args = (trace, "--cache", "block", "--model", "kimi-linear-48b", "--budget", "3GiB")
        return int(json.loads(run(*args, "--json", "--retention", retention).stdout)["hit_tokens"])

    assert hits("lru") == hits("0") != hits("marconi:1")
