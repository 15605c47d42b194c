"""A wheel built from the tree works outside the checkout, pages and scripts included."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import sysconfig
import time
import urllib.request
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an empty venv with only the wheel in it.

    The dependencies are lent from the venv that runs the tests, by a path file. Path files found
    through a path file are not read, so the editable install of this checkout stays out of it.
    """
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "-o", folder, ROOT],
        check=True,
        capture_output=True,
        timeout=120,
    )
    (wheel,) = folder.glob("kdalab-*.whl")
    venv.create(folder / "venv", with_pip=False, symlinks=True)
    python = folder / "venv" / "bin" / "python"
    asked = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    site = Path(subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip())
    zipfile.ZipFile(wheel).extractall(site)
    (site / "lent.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def run(python: Path, *args: str) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    return subprocess.run(
        [python, *args],
        cwd=python.parent,
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_wheel_is_what_is_imported(python: Path) -> None:
    code = "import kdalab, kdalab_kernels; print(kdalab.__file__); print(kdalab_kernels.__file__)"
    done = run(python, "-c", code)
    assert done.returncode == 0, done.stderr
    assert str(ROOT) not in done.stdout


def test_help_and_size(python: Path) -> None:
    done = run(python, "-m", "kdalab.cli.main", "--help")
    assert done.returncode == 0, done.stderr
    done = run(python, "-m", "kdalab.cli.main", "size", "tiny")
    assert done.returncode == 0, done.stderr


def test_plot_draws_a_figure(python: Path, tmp_path: Path) -> None:
    out = tmp_path / "figures"
    done = run(
        python,
        *("-m", "kdalab.cli.main", "plot", "--all", "--format", "json", "--out", str(out)),
    )
    assert done.returncode == 0, done.stderr
    scripts = {f.stem.removeprefix("plot_") for f in (ROOT / "plot_scripts").glob("plot_*.py")}
    assert {f.stem for f in out.glob("*.json")} == scripts


def test_trained_weights_travel_with_it(python: Path) -> None:
    done = run(
        python, *("-m", "kdalab.cli.main", "recall", "--pairs", "4", "--episodes", "1", "--json")
    )
    assert done.returncode == 0, done.stderr
    assert '"network": "hybrid"' in done.stdout


def test_notebooks_travel_with_it(python: Path) -> None:
    code = "from kdalab.resources import resource_dir as r; print(*r('notebooks').glob('*.ipynb'))"
    done = run(python, "-c", code)
    assert "01_" in done.stdout, done.stderr
    assert str(ROOT) not in done.stdout


@pytest.fixture
def port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def test_demo_answers(python: Path, port: int) -> None:
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    server = subprocess.Popen(
        [python, "-m", "kdalab.cli.main", "demo", "--port", str(port)],
        cwd=python.parent,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        for _ in range(240):
            assert server.poll() is None, server.stdout.read() if server.stdout else ""
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/restore", timeout=5) as page:
                    assert page.status == 200
                    return
            except OSError:
                time.sleep(0.5)
        pytest.fail("the demo did not answer within two minutes")
    finally:
        server.terminate()
        server.wait(60)
