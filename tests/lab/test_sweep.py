"""Sweeps and advice: the same figures however they are computed, and promises that hold."""

from __future__ import annotations

import csv
import json
import socket
import subprocess
import sys
from array import array
from dataclasses import replace
from pathlib import Path

import pytest

from kdalab.errors import KdalabError
from kdalab.lab import Setup, Trace, replay_setup, synthetic_trace, write_synthetic
from kdalab.lab.advise import WORTH, advise, score
from kdalab.lab.cells import advice_gain, advice_rows, failures, sweep_rows
from kdalab.lab.generate import PRESETS, generated_trace
from kdalab.lab.readers import open_trace
from kdalab.lab.room import Room
from kdalab.lab.sweep import GAINS as LAB_GAINS
from kdalab.lab.sweep import check_reachable, combine, pareto, sweep, write_table
from kdalab.viz.lab_figures import GAINS as FIGURE_GAINS

TRACE = synthetic_trace(120)
GRID = {"memory": ["12GiB", "40GiB"], "checkpoints": ["leaf", "leaf+branch"], "int8": ["off", "on"]}


def without_time(rows: list[dict]) -> list[dict]:  # type: ignore[type-arg]
    return [r | {"seconds": 0} for r in rows]


def test_rows_are_those_of_single_replays_in_their_order() -> None:
    setups, left_out = combine(Setup(), GRID)
    assert (len(setups), left_out) == (8, [])
    told: list[tuple[int, int]] = []
    rows = sweep(TRACE, setups, on_done=lambda a, b: told.append((a, b)))
    assert told == [(i, 8) for i in range(1, 9)]
    for setup, row in zip(setups, rows, strict=True):
        account = replay_setup(TRACE, setup)
        assert row["setup"] == str(setup)
        assert row["hit_tokens"] == account.hit_tokens
        assert row["flops_saved"] == account.flops_saved
        assert row["memory"] == setup.memory


def test_processes_give_the_same_rows_from_memory_and_from_a_file(tmp_path: Path) -> None:
    path = write_synthetic(tmp_path / "t.jsonl", 120)
    setups = combine(Setup(), GRID)[0][:3]
    alone = without_time(sweep(TRACE, setups))
    assert without_time(sweep(TRACE, setups, jobs=2)) == alone
    streamed = without_time(sweep(open_trace(path), setups, jobs=2))
    assert [r["hit_tokens"] for r in streamed] == [r["hit_tokens"] for r in alone]


def test_a_cluster_that_does_not_answer_is_refused_at_once() -> None:
    with socket.socket() as here:
        here.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{here.getsockname()[1]}"
        for words in (address, f"ray://{address}"):
            with pytest.raises(KdalabError, match=f"no Ray cluster at '{words}': .*refused"):
                check_reachable(words)
        here.listen()
        check_reachable(address)
    with pytest.raises(KdalabError, match=r"no Ray cluster at 'nowhere.invalid:1'"):
        check_reachable("nowhere.invalid:1")
    for words in ("local", "auto", "[::1]", "http://nowhere"):
        check_reachable(words)


INTERRUPTED = """
import os, signal, sys, time
from kdalab.lab import Setup, synthetic_trace
from kdalab.lab import sweep as s

def still(_):
    with open(f"/proc/{os.getpid()}/status") as status:
        (line,) = [x for x in status if x.startswith("SigBlk")]
    print(bool(int(line.split()[1], 16) >> (signal.SIGINT - 1) & 1), flush=True)

if __name__ == "__main__":
    from joblib import Parallel, delayed
    s._start_workers(2)
    Parallel(n_jobs=2)(delayed(still)(i) for i in range(4))
    still(0)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="/proc tells what is blocked")
def test_workers_are_deaf_to_ctrl_c_from_their_start_and_this_process_is_not(
    tmp_path: Path,
) -> None:
    (tmp_path / "main.py").write_text(INTERRUPTED)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "main.py")], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["True"] * 4 + ["False"]


@pytest.mark.slow
def test_a_ray_cluster_gives_the_same_rows() -> None:
    pytest.importorskip("ray")
    setups = combine(Setup(), GRID)[0][:3]
    assert without_time(sweep(TRACE, setups, jobs=2, ray="local")) == without_time(
        sweep(TRACE, setups)
    )


def test_a_cluster_that_is_not_there_is_said() -> None:
    setups = [Setup()]
    with pytest.raises(KdalabError, match="give one"):
        sweep(TRACE, setups, ray="a", dask="b")
    with pytest.raises(KdalabError, match=r"Dask is not installed|no Dask scheduler"):
        sweep(TRACE, setups, dask="tcp://127.0.0.1:1")


def test_a_setup_that_cannot_be_replayed_is_a_row_that_says_why() -> None:
    rows = sweep(TRACE, combine(Setup(), {"memory": ["1MiB", "40GiB"]})[0])
    assert "alone needs" in rows[0]["error"]
    assert rows[1]["error"] == ""
    assert pareto(rows) == rows[1:]
    header, cells = sweep_rows(rows, rows[1:])
    assert all(len(c) == len(header) for c in cells)
    assert cells[0][:4] == ("", "", "1MiB", "failed")
    assert cells[1][0] == "*"
    assert failures(rows) == [f"1MiB failed: {rows[0]['error']}"]


def test_settings_that_exclude_each_other_are_named() -> None:
    setups, left_out = combine(Setup(), {"cache": ["radix", "block"], "int8": ["off", "on"]})
    assert len(setups) == 3
    assert left_out == ["cache=block int8=on: int8 is a setting of cache=radix; leave it out here"]
    with pytest.raises(KdalabError, match="no value for memory"):
        combine(Setup(), {"memory": []})
    with pytest.raises(KdalabError, match=r"^cache = 'tree'; allowed: radix, block"):
        combine(Setup(), {"cache": ["tree"], "speed": ["1", "x"]})
    with pytest.raises(KdalabError, match=r"^speed = 0; use 1e-06 or more$"):
        combine(Setup(), {"speed": ["0"], **GRID})
    with pytest.raises(KdalabError, match=r"no combination is possible; unit is a setting of"):
        combine(Setup(), {"unit": ["64", "128"]})
    for bad in ({"memory": ["8GiB", "x"]}, {"checkpoints": ["leaf", "bad"]}, {"model": ["none"]}):
        with pytest.raises(KdalabError, match=r"'(x|bad|none)'"):
            combine(Setup(), bad)


def test_the_best_rows_are_those_that_no_other_beats() -> None:
    rows = [
        {"peak_bytes": b, "hit_rate": h}
        for b, h in [(5, 1), (3, 2), (4, 2), (9, 3), (1, 0), (3, 1)]
    ]
    beaten = [
        r
        for r in rows
        if any(
            o["peak_bytes"] <= r["peak_bytes"] and o["hit_rate"] >= r["hit_rate"] and o != r
            for o in rows
        )
    ]
    assert sorted(map(str, pareto(rows))) == sorted(str(r) for r in rows if r not in beaten)


@pytest.mark.parametrize("gain", ["ttft_mean", "evicted_states", "replayed_tokens"])
def test_of_times_and_losses_the_least_is_best(gain: str) -> None:
    rows = [
        {"memory": m, gain: v, "setup": s} for m, v, s in [(1, 5, "a"), (1, 50, "b"), (2, 1, "c")]
    ]
    assert [r["setup"] for r in pareto(rows, "memory", gain)] == ["a", "c"]
    slow = {"memory": 4, gain: 60, "setup": "more memory, and worse"}
    assert pareto([*rows, slow], "memory", gain) == [rows[0], rows[2]]


def test_a_figure_of_unknown_direction_compares_nothing() -> None:
    with pytest.raises(KdalabError, match="gain 'line'; allowed: hit_rate, "):
        pareto([{"peak_bytes": 1, "line": 2}], gain="line")


def test_every_figure_that_rows_are_compared_by_is_in_a_row() -> None:
    (row,) = sweep(TRACE, [Setup(memory=40 << 30)])
    assert not set(LAB_GAINS) - set(row)
    assert not set(FIGURE_GAINS) - set(LAB_GAINS)


def test_tables_keep_every_row_and_column(tmp_path: Path) -> None:
    import pyarrow.parquet

    rows = sweep(TRACE, combine(Setup(), {"memory": ["1MiB", "40GiB", "unlimited"]})[0])
    write_table(rows, tmp_path / "t.csv")
    write_table(rows, tmp_path / "t.json")
    write_table(rows, tmp_path / "t.parquet")
    from_json = json.loads((tmp_path / "t.json").read_text())
    from_csv = list(csv.DictReader((tmp_path / "t.csv").open()))
    from_parquet = pyarrow.parquet.read_table(tmp_path / "t.parquet").to_pylist()
    for table in (from_json, from_csv, from_parquet):
        assert [r["setup"] for r in table] == [r["setup"] for r in rows]
        assert set(table[0]) == {name for r in rows for name in r}
        assert float(table[1]["flops_saved"]) == rows[1]["flops_saved"]
    assert from_parquet[0]["hit_rate"] is None
    with pytest.raises(KdalabError, match="a table ends in"):
        write_table(rows, tmp_path / "t.xls")
    with pytest.raises(KdalabError, match="cannot write"):
        write_table(rows, tmp_path / "none" / "t.csv")


@pytest.mark.parametrize("objective", ["ttft", "flops"])
def test_a_recommendation_keeps_what_it_promises(objective: str) -> None:
    base = Setup(memory=60 << 30, speed=0.2)
    found = advise(TRACE, base, objective, host=64 << 30)
    assert [a.system for a in found] == ["SGLang", "vLLM"]
    for a in found:
        setup = Setup.parse(a.setup)
        again = replay_setup(TRACE, setup)
        assert again.flops_saved == a.after["flops_saved"]
        assert again.ttft.mean == a.after["ttft_mean"]
        default = replay_setup(TRACE, Setup.parse(a.before["setup"]))
        assert default.flops_saved == a.before["flops_saved"]
        assert score(a.after, objective) >= score(a.before, objective)
        assert a.gain >= 0
        own = abs(score(a.after, objective))
        near = own * WORTH * 1.01
        for n in a.neighbours:  # no single change would have been better by more than is told
            worse = n.objective >= own - near if objective == "ttft" else n.objective <= own + near
            assert n.error or worse, n
        header, cells = advice_rows(a)
        assert all(len(c) == len(header) for c in cells)
        assert len(cells) == len(a.neighbours) + 1 + (a.before["setup"] != a.setup)
        assert setup.arrivals is (objective == "ttft")
        assert a.assumptions
    assert any("--chunked-prefill-size" in f for f in found[0].flags)
    assert any(f.startswith("--mamba-cache-mode align") for f in found[1].flags)
    assert found[0].gain > 0


def test_the_search_goes_on_until_no_single_change_helps() -> None:
    """Here the first round's order of settings leaves something for a second one."""
    trace = generated_trace(150, PRESETS["chat-like"], 0)
    (a,) = advise(trace, Setup(memory=40 << 30), "flops", systems=["SGLang"])
    assert a.gain > 0
    most = a.after["flops_saved"] * (1 + WORTH * 1.01)
    assert all(n.error or n.objective <= most for n in a.neighbours)


def test_a_change_that_gains_nothing_keeps_the_default() -> None:
    """With memory for all, caps and INT8 change no hit: every value ties with the default."""
    (a,) = advise(TRACE, Setup(memory=1 << 50), "flops", systems=["SGLang"])
    setup, default = Setup.parse(a.setup), Setup.parse(a.before["setup"])
    assert (setup.int8, setup.retention, setup.split) == (False, "lru", default.split)
    for name in ("checkpoints", "int8", "retention", "split"):
        if getattr(setup, name) != getattr(default, name):  # then going back costs really
            back = replay_setup(TRACE, replace(setup, **{name: getattr(default, name)}))
            assert back.flops_saved < a.after["flops_saved"] * (1 - WORTH)


def test_a_recommendation_that_is_the_defaults_stands_there_once() -> None:
    new = [r._replace(blocks=array("q", [n << 20 | i for i in range(len(r.blocks))]))
           for n, r in enumerate(TRACE, 1)]  # fmt: skip
    apart = Trace("nothing is shared", new, block_tokens=TRACE.block_tokens)
    (a,) = advise(apart, Setup(memory=1 << 50), "flops", systems=["vLLM"])
    assert a.before["setup"] == a.setup
    names = [c[0] for c in advice_rows(a)[1]]
    assert names[0] == "recommended: the defaults"
    assert "the defaults" not in names


def test_an_overloaded_machine_is_said() -> None:
    (a,) = advise(TRACE, Setup(memory=60 << 30, speed=1000), systems=["vLLM"])
    assert "busy" in a.warnings[0]
    with pytest.raises(KdalabError, match="objective 'joy'; allowed: ttft, flops"):
        advise(TRACE, Setup(), "joy")
    with pytest.raises(KdalabError, match="SGLang: the request on line"):
        advise(TRACE, Setup(memory=1 << 20), systems=["SGLang"])


@pytest.mark.slow
def test_a_dask_cluster_gives_the_rows_that_this_process_gives() -> None:
    distributed = pytest.importorskip("distributed", reason="pip install 'dask[distributed]'")
    setups = combine(Setup(), {"memory": ["1MiB", "40GiB", "60GiB"], "int8": ["off", "on"]})[0]
    told: list[tuple[int, int]] = []

    def figures(rows: list[dict[str, object]]) -> list[dict[str, object]]:
        return [{k: v for k, v in row.items() if k != "seconds"} for row in rows]

    here = sweep(TRACE, setups)
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address=None
    ) as cluster:
        there = sweep(
            TRACE, setups, dask=cluster.scheduler_address, on_done=lambda *at: told.append(at)
        )
        with distributed.Client(cluster) as client:  # the work was done there, not here
            ran = client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.transition_log))
    assert figures(there) == figures(here)
    assert told == [(n, len(setups)) for n in range(1, len(setups) + 1)]
    assert ran >= len(setups)


def test_defaults_that_save_nothing_are_beaten_by_whatever_saves_something() -> None:
    (a,) = advise(TRACE, Setup(memory=40 << 30), "flops", systems=["SGLang"])
    assert a.better
    nothing = replace(a, before={**a.before, "flops_saved": 0, "flops_saved_share": 0.0})
    assert (nothing.better, nothing.gain) == (True, 0.0)
    share = f"{a.after['flops_saved_share']:.1%}"
    assert "save no prefill work" in advice_gain(nothing)
    assert share in advice_gain(nothing)
    same = replace(a, before=a.after)
    assert not same.better
    assert advice_gain(same).startswith("No setting")
    assert json.dumps(replace(a, before={"error": "no room"}).as_dict(), allow_nan=False)


@pytest.mark.parametrize(("memory", "split"), [(500, 0.001), (1, 0.9), (2, 1000.0), (1 << 20, 0.9)])
def test_the_memory_that_a_refusal_names_is_enough_and_less_is_not(
    memory: int, split: float
) -> None:
    need = Room(1_000, 5_000, 7_000, memory, split).largest(3_000, 1, 1)
    assert need is not None
    assert Room(1_000, 5_000, 7_000, need, split).largest(3_000, 1, 1) is None
    assert Room(1_000, 5_000, 7_000, int(need * 0.999), split).largest(3_000, 1, 1) is not None
