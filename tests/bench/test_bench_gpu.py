"""``kdalab bench gpu`` without a GPU: its checks in the interpreter, its cases on a CPU."""

import json
import os
import subprocess
import sys

import pytest
import torch
from typer.testing import CliRunner

from kdalab.bench import gpu
from kdalab.bench.gpu_checks import Check, Checked, Place, all_checks, relative, run_checks
from kdalab.bench.kernels import Rates, bench_kernels
from kdalab.cli.bench import app
from kdalab.errors import KdalabError
from kdalab_kernels.dispatch import MODULES

no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
RATES = Rates(flop=1e9, nbytes=1e8)


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_every_check_passes_in_the_interpreter():
    """In a process of its own: the kernels are built for the interpreter when they are imported."""
    pytest.importorskip("triton")
    done = subprocess.run(
        [sys.executable, "-m", "kdalab.cli.bench", "gpu", "--interpret", "--json"],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    checks = json.loads(done.stdout)["checks"]
    assert len(checks) == len(all_checks(Place("cpu", tiny=True)))
    for check in checks:
        assert check["passed"], check
        assert check["worst"] <= check["limit"], check


def test_on_a_gpu_every_op_is_drawn_at_random_and_the_large_cases_run_in_three_dtypes():
    checks = all_checks(Place())
    drawn = {c.op for c in checks if c.case == "40 drawn at random"}
    assert drawn == set(MODULES) - {"beta_sigmoid"}
    large = {(c.op, c.dtype) for c in checks if c.case != "40 drawn at random"}
    ops = {op for op, _ in large}
    assert large == {(op, d) for op in ops for d in ("float32", "float16", "bfloat16")}
    assert len(ops) == 9


def test_a_wrong_result_a_nan_and_an_exception_fail_and_do_not_end_the_run():
    def broken():
        raise RuntimeError("out of\nresources")

    def check(run):
        return Check("op", "case", "float32", 2e-5, run)

    runs = [check(r) for r in (lambda: 1e-6, lambda: 1e-3, lambda: float("nan"), broken)]
    done = run_checks(runs)
    assert [c.passed for c in done] == [True, False, False, False]
    assert done[3].error == "RuntimeError: out of resources"


def test_a_difference_is_relative_and_nan_is_infinite():
    x = torch.tensor([3.0, 4.0])
    assert relative(x * 1.5, x) == pytest.approx(0.5)
    assert relative(x, x * 0) == pytest.approx(12.5**0.5)
    assert relative(x * torch.nan, x) == float("inf")
    assert relative(x[:1], x) == float("inf")
    assert relative(x[:0], x[:0]) == 0


@no_gpu
def test_without_a_gpu_it_says_what_is_needed():
    with pytest.raises(KdalabError, match="NVIDIA"):
        gpu.require_gpu()
    with pytest.raises(KdalabError, match="no GPU"):
        gpu.bench_gpu_speed()
    result = CliRunner().invoke(app, ["gpu"])
    assert result.exit_code == 2
    assert "no GPU" in result.stderr


def test_a_dry_run_lists_checks_and_the_published_shapes():
    out = CliRunner().invoke(app, ["gpu", "--dry-run"]).stdout
    for text in ("chunk_kda: gates huge, bfloat16", "T=8192 mixed, H=96", "8 x 1024, H=64"):
        assert text in out
    assert all(sum(lengths) == 8192 for lengths in gpu.LENGTHS.values())


@pytest.mark.parametrize("case", [
    gpu.prefill("mixed, H=2", (5, 70, 21), 2, 16, "cpu", "reference"),
    gpu.prefill("fixed, H=2", (70,), 2, 16, "cpu", "reference"),
    gpu.decode(3, 2, 16, "cpu", "torch"),
    gpu.checkpoints("store", 2, 2, 2, 16, "cpu", "torch"),
    gpu.checkpoints("load", 2, 2, 2, 16, "cpu", "torch"),
], ids=lambda c: c.op)  # fmt: skip
def test_a_case_runs_and_ours_agrees_and_a_peer_that_cannot_says_so(case):
    with torch.inference_mode():
        rows = {r.name: r for r in bench_kernels([case], 1, RATES)[1]}
    assert list(rows) == list(case.names)
    ours = next(r for name, r in rows.items() if name.startswith("kdalab"))
    assert ours.ms > 0
    assert ours.error < 1e-2
    assert ours.over_bytes == pytest.approx(ours.ms * 1e-3 * 1e8 / case.nbytes)
    for name, row in rows.items():
        if name.startswith(("fla", "flash")) and row.ms is None:
            assert row.note


def test_bytes_of_a_decode_are_its_states_twice():
    assert gpu.decode(32, 96, 128, "cuda", "triton").nbytes == 2 * 32 * 6_291_456


def test_a_failed_check_fails_the_command_and_is_valid_json(monkeypatch):
    monkeypatch.setattr(
        "kdalab.bench.gpu_checks.run_checks",
        lambda checks, progress: [Checked("op", "c", "float32", 1e-5, float("inf"), "no")],
    )
    monkeypatch.setattr("kdalab.bench.gpu.require_gpu", lambda: None)
    result = CliRunner().invoke(app, ["gpu", "--json"])
    assert result.exit_code == 1
    out = json.loads(result.stdout)
    assert out["checks"][0]["worst"] is None
    assert out["rows"] == []  # the speed of wrong kernels is not measured
