"""The exercise in Triton: kernels run in the interpreter, in processes of their own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from exercise_mutants import MUTANTS

from kdalab.exercises import EXERCISES, Outcome, Status, check

EX05 = EXERCISES["ex05"]
needs_triton = pytest.mark.skipif(bool(EX05.missing()), reason=EX05.missing() or "has Triton")


@pytest.fixture
def checked(tmp_path: Path) -> Callable[[str], Outcome]:
    def run(source: str) -> Outcome:
        file = tmp_path / "kernel.py"
        file.write_text(source)
        return check("ex05", file)

    return run


def header(source: str) -> str:
    return source[source.index("def ") : source.index(":\n")]


def test_stub_and_solution_have_one_signature() -> None:
    assert header(EX05.stub) == header(EX05.solution)


@needs_triton
def test_the_stub_is_not_solved_and_the_solution_passes(checked: Callable[[str], Outcome]) -> None:
    assert checked(EX05.stub).status is Status.UNSOLVED
    outcome = checked(EX05.solution)
    assert outcome.passed, outcome.text


@needs_triton
@pytest.mark.parametrize("what", MUTANTS["ex05"])
def test_what_is_nearly_right_is_refused(checked: Callable[[str], Outcome], what: str) -> None:
    old, new = MUTANTS["ex05"][what]
    assert old in EX05.solution
    outcome = checked(EX05.solution.replace(old, new))
    assert outcome.status is Status.WRONG, outcome.text
    assert outcome.call.startswith("solve_chunk(A=")
    assert outcome.picture.startswith("<svg")


@needs_triton
def test_a_write_outside_is_told(checked: Callable[[str], Outcome]) -> None:
    outcome = checked(EX05.solution.replace("tl.store(X + at", "tl.store(X + at + 1"))
    assert outcome.status is Status.RAISED
    assert "outside of X" in outcome.difference


@needs_triton
def test_a_function_that_is_no_kernel_is_told(checked: Callable[[str], Outcome]) -> None:
    outcome = checked(EX05.solution.replace("@triton.jit", ""))
    assert "@triton.jit" in outcome.difference


def test_a_notebooks_text_will_do_and_without_triton_it_is_skipped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kdalab.exercises.problems.ex05.find_spec", lambda name: None)
    outcome = check("ex05", EX05.solution)
    assert outcome.status is Status.SKIPPED
    assert "Triton" in outcome.difference
