"""The articles' examples both ways: every restore point worked out by hand."""

from __future__ import annotations

import json
from typing import NamedTuple

import numpy as np
import pytest
import typer
from typer.testing import CliRunner, Result

from kdalab.cli.compare import command
from kdalab.errors import KdalabError
from kdalab.lab.figures import Comparison
from kdalab.lessons import PAIRS, RESTORE, Pair, Share, both, examples, run_both


class ByHand(NamedTuple):
    """(hit tokens, replayed tokens) of all prompts together, in the tree and in blocks."""

    radix: tuple[int, int]
    block: tuple[int, int]


BY_HAND = {
    # 399 // 64 * 64 = 384: hashes of 64 name that boundary, and the tree's leaf stands there.
    "400-in-256": ByHand((384, 0), (384, 0)),
    # Whole blocks of 256 only.
    "400-coarse": ByHand((384, 0), (256, 0)),
    # One token must be computed: 255 // 64 * 64 = 192; the tree has a state at 256 and no other.
    "256-again": ByHand((0, 256), (192, 64)),
    # B finds no state: 320 known tokens in pages of 16, 256 in blocks of 128, all replayed. It
    # leaves one at 320 and at 320 // 128 * 128 = 256, where C starts; C's text is known that far.
    "junction": ByHand((320, 320), (256, 256)),
    # 4,499 // 128 * 128 = 4,480; 4,500 // 64 * 64 = 4,480.
    "4480-in-8192": ByHand((4480, 0), (4480, 0)),
    # One whole block of 4,096.
    "4480-coarse": ByHand((4480, 0), (4096, 0)),
    # 99 // 32 * 32 = 96; 100 // 64 * 64 = 64.
    "96-in-128": ByHand((64, 0), (96, 0)),
    "15k-every-10k": ByHand((10_000, 5_000), (10_000, 5_000)),
    "905k-every-100k": ByHand((900_000, 5_000), (900_000, 5_000)),
    "905k-every-400k": ByHand((800_000, 105_000), (800_000, 105_000)),
}


def check(found: Comparison, name: str) -> None:
    hand = BY_HAND[name]
    assert (found.radix.hit_tokens, found.radix.replayed_tokens) == hand.radix
    assert (found.block.hit_tokens, found.block.replayed_tokens) == hand.block
    assert (found.first is None) == (hand.radix[0] == hand.block[0])


def test_every_pair_is_worked_out_and_listed_with_one_sentence() -> None:
    assert set(BY_HAND) == set(PAIRS)
    assert set(examples()) == set(PAIRS) | set(RESTORE)
    for name, pair in PAIRS.items():
        assert name == pair.name
        assert pair.lead.endswith(".")
        assert "!" not in pair.lead + pair.question + pair.title


@pytest.mark.parametrize("name", PAIRS)
def test_both_caches_restore_where_the_arithmetic_says(name: str) -> None:
    check(both.pair_on_caches(PAIRS[name]), name)


@pytest.mark.parametrize("name", [n for n, p in PAIRS.items() if p.on_engines])
def test_both_engines_restore_there_too_and_generate_the_same(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched: list[both.Watch] = []
    monkeypatch.setattr(both, "Watch", lambda e: watched.append(_Watch(e)) or watched[-1])
    run = run_both(name, repeats=1)
    found = run.comparison
    check(found, name)
    one, two = watched
    assert [r.generated for r in one.requests] == [r.generated for r in two.requests]
    assert all(len(r.generated) == 4 for r in one.requests)
    for figures in (found.radix, found.block):
        assert figures.first_token is not None
        assert 0 < figures.first_token.mean <= figures.first_token.p95
        assert figures.first_token_runs == (figures.first_token,)
        assert 0 < figures.held_bytes <= figures.peak_bytes <= (found.budget_bytes or 0)
    assert found.block.padding_bytes > 0 == found.radix.padding_bytes
    assert [c.requests for c in run.chapters] == [(p.name,) for p in PAIRS[name].prompts]
    for chapter in run.chapters:
        assert chapter.radix[0] == chapter.block[0]  # the same prompt arrives
        assert "arrives" in chapter.radix[0]


_Watch = both.Watch


def test_several_runs_are_told_and_their_times_lie_between_the_runs() -> None:
    told: list[tuple[str, int, int]] = []
    found = run_both("256-again", 4, lambda *run: told.append(run)).comparison
    assert told == [(way, run, 4) for run in (1, 2, 3, 4) for way in ("radix", "block")]
    for figures in (found.radix, found.block):
        assert len(figures.first_token_runs) == 3
        for name in ("mean", "median", "p95"):
            times = sorted(getattr(run, name) for run in figures.first_token_runs)
            assert getattr(figures.first_token, name) == times[1]


def test_prompts_that_arrive_together_are_one_chapter() -> None:
    run = run_both("fork", repeats=1)
    assert [c.requests for c in run.chapters] == [("A",), ("B", "C")]
    assert run.comparison.requests == 3


def test_a_state_that_both_read_is_copied_by_the_tree_and_not_always_by_blocks() -> None:
    found = both.pair_on_caches(PAIRS["400-coarse"])
    assert found.radix.states_read == found.block.states_read == 1
    # One copy to restore and two snapshots; a hit on a block's end is read where it stands.
    assert (found.radix.copies, found.block.copies) == (3, 0)


def test_prompts_share_just_what_they_say() -> None:
    a, b, c = (both.tokens_of(p, i) for i, p in enumerate(PAIRS["junction"].prompts))
    for other in (b, c):
        assert np.argmin(a[: len(other)] == other) == 320
    assert np.argmin(b[:500] == c) == 320


def test_a_prompt_that_shares_more_than_there_is_is_refused() -> None:
    with pytest.raises(KdalabError, match="shares 300 of 200"):
        Pair("x", "x", "x", "x", (Share("A", 200), Share("B", 400, 300)), 64)


def run(*args: object) -> Result:
    app = typer.Typer()
    app.command()(command)
    return CliRunner().invoke(app, [str(a) for a in args])


def test_the_command_shows_both_reasons_and_json_has_the_logs() -> None:
    shown = " ".join(run("96-in-128").stdout.split())
    assert "radix: restore 64" in shown
    assert "block: restore 96" in shown
    assert "group state 2: state at 96" in shown
    out = json.loads(run("400-coarse", "--json").stdout)
    assert out["first"]["radix_restore"] == 384
    assert out["chapters"][1]["block"][0] == out["chapters"][1]["radix"][0]
    listed = run("--list")
    assert all(name in listed.stdout for name in examples())
    told = json.loads(run("--list", "--json").stdout)
    assert {e["name"]: e["shows"] for e in told} == examples()
    assert {e["runs_on"] for e in told} == {"engines", "caches"}


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ([], "give a scenario"),
        (["fork", "--memory", "1GiB"], "--memory or --budget: only for a trace"),
        (["fork", "--seed", 0, "--unit", 64], "--unit, --seed: only for a trace"),
        (["nope"], "no scenario is named 'nope'; known: 400-in-256"),
        (["missing.jsonl"], "cannot read the trace"),
        (["--synthetic", 9, "--events"], "a trace has no event log"),
        (["--synthetic", 9, "--device", "abacus"], "known: a100"),
        (["--synthetic", 9, "--block-retention", "oldest"], "allowed: dense"),
        (["--synthetic", 9, "--flops", "1e-300", "--json"], "use a number of 1 to 1e+24"),
        (["--synthetic", 9, "--flops", "inf"], "use a number of 1 to 1e+24"),
        (["--synthetic", 9, "--budget", "1GiB"], "smallest budget that works"),
    ],
)
def test_what_cannot_be_compared_is_refused(args: list[object], says: str) -> None:
    done = run(*args)
    assert done.exit_code == 2
    assert says in " ".join(done.stderr.split())
