"""The exercise in Triton: kernels run in the interpreter, in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from exercise_mutants import MUTANTS

from kdalab.exercises import EXERCISES, Outcome, Status, check

EX05 = EXERCISES["ex05"]
needs_triton = pytest.mark.skipif(bool(EX05.missing()), reason=EX05.missing() or "has Triton")

SOURCES = {
    "stub": EX05.stub,
    "write outside": EX05.solution.replace("tl.store(X + at", "tl.store(X + at + 1"),
    "no kernel": EX05.solution.replace("@triton.jit", ""),
    **{what: EX05.solution.replace(*change) for what, change in MUTANTS["ex05"].items()},
}
DOUBLING = """
import triton
import triton.language as tl


@triton.jit
def solve_chunk(A, B, X, N: tl.constexpr, D: tl.constexpr):
    g = tl.program_id(0)
    r = tl.arange(0, N)
    d = tl.arange(0, D)
    a = tl.load(A + g * N * N + r[:, None] * N + r[None, :])
    power = tl.where(r[:, None] > r[None, :], -a, 0.0)
    b_x = tl.load(B + g * N * D + r[:, None] * D + d[None, :])
    for _ in tl.static_range(5):
        b_x += tl.sum(power[:, :, None] * b_x[None, :, :], axis=1)
        power = tl.sum(power[:, :, None] * power[None, :, :], axis=1)
    tl.store(X + g * N * D + r[:, None] * D + d[None, :], b_x)
"""
SOURCES["powers added up"] = DOUBLING
SEVERAL = """
import json, sys
from pathlib import Path
from kdalab.exercises.child import _checked
from kdalab.exercises import find
files = [Path(f) for f in sys.argv[1:]]
print(json.dumps([_checked(find("ex05"), f, "solve_chunk").to_json() for f in files]))
"""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    """All sources, in one process that began with the interpreter switched on."""
    folder, files = tmp_path_factory.mktemp("kernels"), []
    for i, source in enumerate(SOURCES.values()):
        files.append(folder / f"kernel{i}.py")
        files[-1].write_text(source)
    done = subprocess.run(
        [sys.executable, "-c", SEVERAL, *map(str, files)],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    found = map(Outcome.from_json, json.loads(done.stdout.splitlines()[-1]))
    return dict(zip(SOURCES, found, strict=True))


def header(source: str) -> str:
    return source[source.index("def ") : source.index(":\n")]


def test_stub_and_solution_have_one_signature() -> None:
    assert header(EX05.stub) == header(EX05.solution)


@needs_triton
def test_the_solution_passes_from_a_notebook_that_knows_no_interpreter() -> None:
    outcome = check("ex05", EX05.solution)
    assert outcome.passed, outcome.text


@needs_triton
def test_the_stub_is_not_solved(outcomes: dict[str, Outcome]) -> None:
    assert outcomes["stub"].status is Status.UNSOLVED


@needs_triton
@pytest.mark.parametrize("what", [*MUTANTS["ex05"], "powers added up"])
def test_what_is_nearly_right_is_refused(outcomes: dict[str, Outcome], what: str) -> None:
    assert SOURCES[what] != EX05.solution
    outcome = outcomes[what]
    assert outcome.status is Status.WRONG, outcome.text
    assert outcome.call.startswith("solve_chunk(A=")
    assert outcome.picture.startswith("<svg")


@needs_triton
def test_a_write_outside_and_what_is_no_kernel_are_told(outcomes: dict[str, Outcome]) -> None:
    assert outcomes["write outside"].status is Status.RAISED
    assert "outside of X" in outcomes["write outside"].difference
    assert "@triton.jit" in outcomes["no kernel"].difference


def test_without_triton_it_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kdalab.exercises.problems.ex05.find_spec", lambda name: None)
    outcome = check("ex05", EX05.solution)
    assert outcome.status is Status.SKIPPED
    assert "Triton" in outcome.difference
