"""The kernel benchmark: its rows, its arithmetic, and what it says of peers that are missing."""

import importlib
import json

import pytest
import torch
from typer.testing import CliRunner

from kdalab.bench import cases, kernels
from kdalab.bench.cases import Shape
from kdalab.bench.kernels import Rates, bench_kernels
from kdalab.bench.solve import solve_errors
from kdalab.bench.timing import machine, medians_in_turns, ratio_in_turns
from kdalab.cli.bench import app
from kdalab.errors import KdalabError


@pytest.fixture(autouse=True)
def _one_thread():
    """On a busy machine several threads mostly wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


RATES = Rates(flop=1e9, nbytes=1e8)
TINY = Shape(1, 64, 1, 8, 8)


def rows_of(case):
    return {r.name: r for r in bench_kernels([case], repeats=1, rates=RATES)[1]}


def test_every_prefill_is_measured_and_right():
    pytest.importorskip("fla.ops.kda.naive", exc_type=ImportError)
    pytest.importorskip("transformers.models.kimi_linear", exc_type=ImportError)
    rows = rows_of(cases.prefill(TINY))
    assert len(rows) == 7
    base = rows[cases.FLA_RECURRENCE]
    assert base.times_baseline == 1
    for row in rows.values():
        assert row.ms > 0
        assert row.times_baseline == pytest.approx(base.ms / row.ms)
        assert row.over_operations == pytest.approx(row.ms * 1e-3 * 1e9 / TINY.flop())
        assert row.over_bytes == pytest.approx(row.ms * 1e-3 * 1e8 / TINY.nbytes())
        if row.name != cases.PRODUCTS:
            assert row.error < 1e-5


@pytest.mark.parametrize(("case", "least"), [
    (cases.decode(2, 3, 8, 16), 1e-5), (cases.conv(40, 12), 1e-5), (cases.gate(20, 2, 8), 1e-5),
    (cases.checkpoints("store", 2, 1, 2, 8, 16), 1e-2),
    (cases.checkpoints("load", 2, 1, 2, 8, 16), 1e-2),
], ids=lambda x: getattr(x, "op", ""))  # fmt: skip
def test_every_other_op_is_measured_and_right(case, least):
    rows = rows_of(case)
    ours = [r for name, r in rows.items() if name.startswith("kdalab")]
    assert ours
    for row in ours:
        assert row.ms > 0
        assert row.error < least
    peers = [r.error for r in rows.values() if r.error is not None and r not in ours]
    assert all(error < least for error in peers)


def test_without_peers_their_rows_say_so_and_the_others_stand(monkeypatch):
    def missing(name):
        raise ModuleNotFoundError("no", name="fla")

    monkeypatch.setattr(importlib, "import_module", missing)
    rows = rows_of(cases.prefill(TINY))
    for name in (cases.FLA_RECURRENCE, cases.FLA_CHUNK, cases.HF_CHUNK):
        assert rows[name].ms is None
        assert "not installed" in rows[name].note
    assert rows[cases.OUR_RECURRENCE].times_baseline == 1
    assert rows[cases.OUR_CHUNK].error < 1e-5


def test_a_peer_that_would_fill_the_memory_is_not_run(monkeypatch):
    monkeypatch.setattr(cases, "MOST_PAIR_BYTES", 1000)
    row = rows_of(cases.prefill(TINY))[cases.HF_CHUNK]
    assert row.ms is None
    assert "not run" in row.note


def test_a_wrong_result_shows_in_its_row(monkeypatch):
    import kdalab_kernels

    right = kdalab_kernels.chunk_kda
    monkeypatch.setattr(kdalab_kernels, "chunk_kda", lambda **x: (right(**x)[0] * 1.01, None))
    assert rows_of(cases.prefill(TINY))[cases.OUR_CHUNK].error == pytest.approx(0.01, rel=1e-3)


def test_least_arithmetic_is_the_reports_equation_13():
    s = Shape(2, 128, 3, 64, 64)
    T, C, d = 128, 32, 64
    assert s.flop(C) == 2 * 3 * (6 * T * d * d + 3 * T * C * d + T * C * C)


def test_the_products_alone_have_the_operations_that_are_printed(monkeypatch):
    s = Shape(1, 64, 2, 16, 24)
    done = []
    real = torch.bmm
    run = cases._products(s)
    monkeypatch.setattr(
        torch,
        "bmm",
        lambda a, b, out: done.append(2 * a.numel() * b.shape[2]) or real(a, b, out=out),
    )
    run()
    assert sum(done) == cases.products_flop(s)


def test_calls_take_turns_and_warm_up_rounds_are_not_counted():
    log = []
    medians_in_turns({"a": lambda: log.append("a"), "b": lambda: log.append("b")}, 2, warmup=1)
    assert log == ["a", "b"] * 3
    with pytest.raises(ValueError, match="repeats"):
        medians_in_turns({}, 0)


def test_a_ratio_is_of_pairs_and_whoever_goes_first_changes(monkeypatch):
    clock, log = [0.0], []
    monkeypatch.setattr("kdalab.bench.timing.time.perf_counter", lambda: clock[0])

    def call(name, seconds):
        def run():
            log.append(name)
            clock[0] += seconds * 2 ** (len(log) // 2)  # a machine that slows down pair by pair

        return run

    low, middle, high = ratio_in_turns(call("a", 3.0), call("b", 2.0), 4)
    assert log == ["a", "b", "b", "a", "a", "b", "b", "a"]
    assert low <= middle <= high
    assert low >= 0.75
    assert high <= 3
    with pytest.raises(ValueError, match="pairs"):
        ratio_in_turns(print, print, 1)


def test_doubling_loses_what_substitution_keeps():
    for row in solve_errors():
        assert row.substitution < 1e-6
        assert row.blocks < 2e-6
        assert row.doubling > 10 * row.substitution
    assert row.doubling > 1e6  # 64 tokens


def test_quick_measures_every_op_on_small_inputs():
    quick, whole = kernels.quick_cases(), kernels.default_cases()
    assert {c.op for c in quick} == {c.op for c in whole}
    assert sum(c.flop for c in quick) < 0.02 * sum(c.flop for c in whole)
    seen = []
    bench_kernels(quick[-1:], 1, RATES, on_case=lambda case: seen.append(case.op))
    assert seen == ["int8 load"]


def test_the_command_prints_the_three_ways():
    result = CliRunner().invoke(app, ["kernels", "--solve", "--json"])
    assert result.exit_code == 0, result.output
    assert [row["C"] for row in json.loads(result.stdout)] == [16, 32, 64]
    assert CliRunner().invoke(app, ["kernels", "--solve", "--quick"]).exit_code == 2


@pytest.mark.parametrize("text", ["", "1,2", "1,64,4,32,0", "1,64,4,a,8", "1,64,1,512,8"])
def test_bad_shapes_are_refused(text):
    with pytest.raises(KdalabError, match="shape"):
        cases.parse_shape(text)
    assert CliRunner().invoke(app, ["kernels", "--shape", text]).exit_code == 2


def test_command_prints_json_with_the_machine():
    args = ["kernels", "--shape", "1,64,1,8,8", "--repeats", "1", "--json"]
    result = CliRunner().invoke(app, args)
    assert result.exit_code == 0, result.output
    out = json.loads(result.stdout)
    assert out["machine"]["torch"] == machine()["torch"]
    assert out["rates"]["flop"] > 0
    assert out["rows"][0]["sizes"] == {"B": 1, "T": 64, "H": 1, "K": 8, "V": 8}
    assert {r["op"] for r in out["rows"]} == {"prefill"}


def test_command_prints_a_table():
    result = CliRunner().invoke(app, ["kernels", "--shape", "1x64x1x8x8", "--repeats", "1"])
    assert result.exit_code == 0, result.output
    assert "chunk_kda" in result.stdout


def test_without_a_choice_every_op_has_a_case():
    ops = {c.op for c in kernels.default_cases()}
    assert ops == {"prefill", "decode", "conv", "gate", "int8 store", "int8 load"}
