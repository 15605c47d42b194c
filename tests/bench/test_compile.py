"""Every Triton kernel compiles for cards that are not there, and fits H100 and MI300."""

import json
import os
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kdalab.bench import compile as bench
from kdalab.bench.compile import TARGETS, Built, compile_kernels
from kdalab.cli.bench import app
from kdalab.errors import KdalabError

pytest.importorskip("triton")

HERE = Path(__file__).parent
OTHER = os.environ.get("KDALAB_TRITON_3_6", "")


def assert_all_fit(compiled):
    kernels = {r.kernel for r in compiled.rows}
    assert len(kernels) >= 20
    assert len(compiled.rows) == len(kernels) * len(TARGETS)
    for row in compiled.rows:
        assert not row.error, (row.kernel, row.target, row.error)
        assert row.registers > 0
    for target, limit in (("sm_90", 227 * 1024), ("gfx942", 64 * 1024)):
        for row in (r for r in compiled.rows if r.target == target):
            assert row.spill_bytes == 0, row
            assert row.shared_bytes <= limit, row
            assert not row.problem


def test_every_kernel_compiles_for_every_target_and_fits_sm_90_and_gfx942(monkeypatch):
    import triton

    monkeypatch.setenv("TRITON_INTERPRET", "1")  # must not reach the processes that compile
    compiled = compile_kernels()
    assert compiled.triton == triton.__version__
    assert_all_fit(compiled)


def test_the_same_on_triton_3_6():
    if not OTHER:
        pytest.skip(".ci/triton-versions installs triton 3.6.0 in a folder, and runs this there")
    compiled = compile_kernels(path=[Path(OTHER)])
    assert compiled.triton.startswith("3.6.")
    assert_all_fit(compiled)


def test_a_spill_too_much_shared_memory_and_an_error_fail_the_check():
    compiled = compile_kernels(
        ["sm_90", "gfx942"], specs="spilling_specs:specs", path=[HERE], jobs=1
    )
    on = {(r.kernel, r.target): r for r in compiled.rows}
    assert len(on) == 6
    assert "spilled" in on["spills", "sm_90"].problem
    assert "shared memory" in on["shared", "sm_90"].problem
    assert "65536" in on["shared", "gfx942"].problem
    for target in ("sm_90", "gfx942"):
        assert "no_such_name" in on["wrong", target].problem


def test_sm_90_and_gfx942_are_held_to_spills_and_limits():
    row = Built("k", "sm_80", 4, 2, 255, 8, 300_000)
    assert not row.problem
    assert row.over_limit
    assert "spilled" in Built("k", "sm_90", 4, 2, 255, 8).problem
    assert "232448" in Built("k", "sm_90", 4, 2, 255, 0, 232_449).problem
    assert not Built("k", "sm_90", 4, 2, 255, 0, 232_448).problem
    assert "spilled" in Built("k", "gfx942", 4, 2, 255, 8).problem
    assert "65536" in Built("k", "gfx942", 4, 2, 255, 0, 65_537).problem


def test_a_launch_and_its_spec_agree_on_what_an_amd_card_needs_otherwise():
    import torch

    from kdalab_kernels.triton_path import chunk_scan, mla

    for spec in (*mla.SPECS(), *chunk_scan.SPECS()):
        hip = spec.on("hip")
        assert spec.on("cuda") == spec
        if spec.name.startswith("chunk_scan"):
            assert (spec.num_stages, hip.num_stages) == (2, 1)
        elif spec.name != "mla_merge":
            rows = [mla.tile_rows(torch.bfloat16, hip=flag) for flag in (False, True)]
            assert [spec.constants["BT"], hip.constants["BT"]] == rows == [32, 16]


def test_an_unknown_target_is_refused_before_anything_is_built():
    with pytest.raises(KdalabError, match="sm_80, sm_90, sm_100, gfx942"):
        compile_kernels(["sm_70"])
    result = CliRunner().invoke(app, ["kernels", "--compile", "--target", "sm_70"])
    assert result.exit_code == 2


def test_a_process_that_dies_is_an_error():
    with pytest.raises(KdalabError, match="no_such_module"):
        compile_kernels(["sm_90"], specs="no_such_module:specs", jobs=1)


@pytest.mark.parametrize("args", [["--target", "sm_90"], ["--compile", "--quick"]])
def test_options_that_do_not_belong_together_are_refused(args):
    assert CliRunner().invoke(app, ["kernels", *args]).exit_code == 2


def test_the_command_fails_where_a_kernel_does(monkeypatch):
    def built(*rows):
        monkeypatch.setattr(
            "kdalab.bench.compile.compile_kernels", lambda targets: bench.Compiled("3.9.0", [*rows])
        )
        return CliRunner().invoke(app, ["kernels", "--compile", "--json"])

    good, bad = Built("k", "sm_90", 4, 2, 40), Built("k", "sm_90", 4, 2, 255, 8)
    assert built(good).exit_code == 0
    result = built(good, bad)
    assert result.exit_code == 1
    assert "spilled" in json.loads(result.stdout)["rows"][1]["problem"]
    assert built().exit_code == 1  # nothing compiled is no success


def test_the_table_names_what_is_over_a_limit(monkeypatch):
    rows = [Built("some_kernel", "sm_80", 4, 2, 100, 0, 170_000)]
    monkeypatch.setattr(
        "kdalab.bench.compile.compile_kernels", lambda targets: bench.Compiled("3.9.0", rows)
    )
    result = CliRunner().invoke(app, ["kernels", "--compile"], env={"COLUMNS": "200"})
    assert result.exit_code == 0
    assert "more shared memory than sm_80 has" in result.stdout
    assert sys.modules.get("spilling_specs") is None
