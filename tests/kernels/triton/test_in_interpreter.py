"""Run every test file of this folder in a process of its own with Triton's interpreter."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
FILES = sorted(f.name for f in HERE.glob("test_*.py") if f.name != Path(__file__).name)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("file", FILES)
def test_kernels_in_the_interpreter(file: str) -> None:
    env = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-p",
        "no:cacheprovider",
        str(HERE / file),
    ]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
