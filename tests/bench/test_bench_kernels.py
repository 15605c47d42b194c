"""The kernel benchmark: its rows, its arithmetic, and the speed that the fast path must keep."""

import importlib
import json

import pytest
import torch
from typer.testing import CliRunner

from kdalab.bench import kernels as bench
from kdalab.bench.timing import machine, medians_in_turns
from kdalab.cli.bench import app
from kdalab.errors import KdalabError


@pytest.fixture(autouse=True)
def _one_thread():
    """On a busy machine several threads mostly wait for each other, and ratios become noise."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


TINY = bench.Shape(1, 64, 1, 8, 8)


def test_every_implementation_is_measured_and_right():
    pytest.importorskip("fla.ops.kda.naive", exc_type=ImportError)
    rows = {r.name: r for r in bench.bench_kernels([TINY], repeats=1)}
    assert len(rows) == 7
    base, chunk = rows[bench.FLA_RECURRENCE], rows[bench.FLA_CHUNK]
    assert base.times_recurrence == 1
    assert chunk.times_fla_chunk == 1
    for row in rows.values():
        assert row.ms > 0
        assert row.times_recurrence == pytest.approx(base.ms / row.ms)
        if not row.name.startswith("floor"):
            assert row.error < 1e-5


def test_without_fla_its_rows_say_so_and_the_others_stand(monkeypatch):
    def missing(name):
        raise ModuleNotFoundError("no", name="fla")

    monkeypatch.setattr(importlib, "import_module", missing)
    rows = {r.name: r for r in bench.bench_kernels([TINY], repeats=1)}
    for name in (bench.FLA_RECURRENCE, bench.FLA_CHUNK):
        assert rows[name].ms is None
        assert "not installed" in rows[name].note
    assert rows[bench.OUR_RECURRENCE].times_recurrence == 1
    assert rows[bench.OUR_CHUNK].times_fla_chunk is None


def test_least_arithmetic_is_the_reports_equation_13():
    s = bench.Shape(2, 128, 3, 64, 64)
    T, C, d = 128, 32, 64
    assert s.flop(C) == 2 * 3 * (6 * T * d * d + 3 * T * C * d + T * C * C)


def test_calls_take_turns_and_warm_up_rounds_are_not_counted():
    log = []
    medians_in_turns({"a": lambda: log.append("a"), "b": lambda: log.append("b")}, 2, warmup=1)
    assert log == ["a", "b"] * 3
    with pytest.raises(ValueError, match="repeats"):
        medians_in_turns({}, 0)


@pytest.mark.parametrize("text", ["", "1,2", "1,64,4,32,0", "1,64,4,a,8", "1,64,1,512,8"])
def test_bad_shapes_are_refused(text):
    with pytest.raises(KdalabError, match="shape"):
        bench.parse_shape(text)
    assert CliRunner().invoke(app, ["kernels", "--shape", text]).exit_code == 2


def test_command_prints_json_with_the_machine():
    args = ["kernels", "--shape", "1,64,1,8,8", "--repeats", "1", "--json"]
    result = CliRunner().invoke(app, args)
    assert result.exit_code == 0, result.output
    out = json.loads(result.stdout)
    assert out["machine"]["torch"] == machine()["torch"]
    assert out["rows"][0]["shape"] == {"B": 1, "T": 64, "H": 1, "K": 8, "V": 8}


def test_command_prints_a_table():
    result = CliRunner().invoke(app, ["kernels", "--shape", "1x64x1x8x8", "--repeats", "1"])
    assert result.exit_code == 0, result.output
    assert "chunk_kda" in result.stdout


@pytest.mark.slow
def test_chunk_form_keeps_its_lead():
    pytest.importorskip("fla.ops.kda.naive", exc_type=ImportError)
    rows = bench.bench_kernels([bench.Shape(1, 4096, 4, 128, 128)], repeats=2)
    chunk = next(r for r in rows if r.name == bench.OUR_CHUNK)
    assert chunk.times_recurrence >= 3
    assert chunk.times_fla_chunk >= 5
