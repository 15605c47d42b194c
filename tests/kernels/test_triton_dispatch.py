"""Asking for Triton where it cannot run is an error that says what to do."""

import importlib.util
import os
import subprocess
import sys

import pytest
import torch

from kdalab_kernels import l2norm
from kdalab_kernels.dispatch import MODULES, implementation

installed = importlib.util.find_spec("triton")
needs_triton = pytest.mark.skipif(
    installed is None or installed.origin is None, reason="triton is not installed"
)


def python(code: str, **env: str) -> str:
    """What a fresh Python prints that runs code."""
    clean = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**clean, **env},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@needs_triton
def test_cpu_tensors_without_the_interpreter_are_refused_with_advice():
    code = "import torch; from kdalab_kernels import l2norm\n"
    code += "try: l2norm(torch.ones(2, 4), backend='triton')\n"
    code += "except ValueError as e: print(e)\n"
    code += "import sys; print('triton' in sys.modules)"
    said = python(code)
    assert "on cpu tensors" in said
    assert "x.to('cuda')" in said
    assert "TRITON_INTERPRET=1" in said
    assert said.rstrip().endswith("False")  # nothing was imported, so the variable still counts


@needs_triton
def test_the_interpreter_set_too_late_is_explained():
    code = (
        "import os, torch, kdalab_kernels.triton_path.launch; from kdalab_kernels import l2norm\n"
    )
    code += "os.environ['TRITON_INTERPRET'] = '1'\n"
    code += "try: l2norm(torch.ones(2, 4), backend='triton')\n"
    code += "except ValueError as e: print(e)"
    assert "too late" in python(code)


@needs_triton
def test_the_interpreter_runs_cpu_tensors_and_auto_stays_with_torch():
    code = "import sys, torch; from kdalab_kernels import l2norm\n"
    code += "l2norm(torch.ones(2, 4)); print('triton' in sys.modules)\n"
    code += "print(l2norm(torch.ones(2, 4), backend='triton')[0, 0].item())"
    before, value = python(code, TRITON_INTERPRET="1").split()
    assert before == "False"
    assert float(value) == pytest.approx(0.5, abs=1e-6)


def test_without_the_package_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setattr("kdalab_kernels.dispatch.has_triton", lambda: False)
    with pytest.raises(ValueError, match=r"not installed.*pip install triton"):
        l2norm(torch.ones(2, 4), backend="triton")


@pytest.mark.parametrize("op", ["chunk_kda", "l2norm", "causal_conv1d"])
def test_auto_is_decided_by_device_and_dtype_alone(op, monkeypatch):
    monkeypatch.setattr("kdalab_kernels.dispatch._find", lambda op, backend: backend)
    monkeypatch.setattr("kdalab_kernels.dispatch.has_triton", lambda: True)
    assert op in MODULES
    assert implementation(op, "auto", torch.device("cuda"), torch.bfloat16) == "triton"
    assert implementation(op, "auto", torch.device("cuda"), torch.float64) == "torch"
    assert implementation(op, "auto", torch.device("cpu"), torch.bfloat16) == "torch"
    assert implementation(op, "auto") == "torch"
