"""Every exercise: its stub is unsolved, its solution passes, and what is nearly right does not."""

from __future__ import annotations

import inspect
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import Any

import pytest
from exercise_mutants import MUTANTS

from kdalab.exercises import EXERCISES, Exercise, Outcome, Status, check
from kdalab.exercises.checking import check_exercise
from kdalab.exercises.limits import TookTooLong, time_limit

NAMES = [n for n in EXERCISES if EXERCISES[n].environment is None]
WRONG = [(n, what) for n in NAMES for what in MUTANTS[n]]


def function(folder: str, name: str) -> Callable[..., Any]:
    found = getattr(import_module(f"kdalab.exercises.{folder}.{name}"), EXERCISES[name].function)
    assert callable(found)
    return found


def mutated(name: str, old: str, new: str) -> Callable[..., Any]:
    source = EXERCISES[name].solution
    assert source.count(old) >= 1, old
    scope: dict[str, Any] = {"__name__": "answer"}
    exec(source.replace(old, new), scope)
    return scope[EXERCISES[name].function]


@pytest.mark.parametrize("name", list(EXERCISES))
def test_an_exercise_is_whole(name: str) -> None:
    exercise = EXERCISES[name]
    assert exercise.name == name
    assert 1 <= exercise.level <= 3
    assert exercise.title
    assert exercise.function in exercise.statement
    assert 2 <= len(exercise.hints) <= 3
    assert exercise.notebook[:2].isdecimal()
    assert len(MUTANTS[name]) >= 2


@pytest.mark.parametrize("name", NAMES)
def test_stub_and_solution_have_one_signature(name: str) -> None:
    stub, solution = (inspect.signature(function(f, name)) for f in ("stubs", "solutions"))
    assert stub == solution
    assert function("stubs", name).__doc__


@pytest.mark.parametrize("name", NAMES)
def test_a_stub_is_not_solved_yet(name: str) -> None:
    assert check(name, function("stubs", name)).status is Status.UNSOLVED


@pytest.mark.parametrize("name", NAMES)
def test_a_solution_passes(name: str) -> None:
    outcome = check(name, function("solutions", name))
    assert outcome.passed, outcome.text
    assert outcome.cases >= min(20, EXERCISES[name].examples)


@pytest.mark.parametrize(("name", "what"), WRONG)
def test_what_is_nearly_right_is_refused_with_a_small_case(name: str, what: str) -> None:
    outcome = check(name, mutated(name, *MUTANTS[name][what]))
    assert outcome.status in (Status.WRONG, Status.RAISED, Status.CHANGED), outcome.text
    assert outcome.call.startswith(EXERCISES[name].function + "(")
    assert outcome.difference
    assert len(outcome.call) < 400, outcome.call
    if EXERCISES[name].picture is not None:
        assert outcome.picture.startswith("<svg")
        assert outcome.picture_text


# -- the checker itself, on ex06 ------------------------------------------------------------------


def ex06(answer: Callable[..., Any]) -> Outcome:
    return check("ex06", answer)


def right(match: int, kv: list[int], states: list[int], n: int, page: int) -> int:
    fits = [b for b in kv if b in states and b <= match and b < n and b % page == 0]
    return max(fits, default=0)


def test_the_smallest_case_is_small() -> None:
    def no_token_left(match: int, kv: list[int], states: list[int], n: int, page: int) -> int:
        return max((b for b in kv if b in states and b <= match and b % page == 0), default=0)

    said = ex06(no_token_left)
    assert said.status is Status.WRONG
    assert "kv_boundaries=[2], state_boundaries=[2], n_tokens=2, page=1)" in said.call
    assert (said.expected, said.got) == ("0", "2")
    assert said.difference == "expected 0, you return 2"


def test_messages_name_what_differs() -> None:
    said = check("ex03", mutated("ex03", *MUTANTS["ex03"]["adds without a difference"]))
    assert said.difference.startswith(("S: ", "o: ")), said.difference


def test_one_node_shows_a_fault_that_one_node_has() -> None:
    said = check("ex08", mutated("ex08", *MUTANTS["ex08"]["nothing left to compute"]))
    assert said.call.count("PathNode(") == 1, said.call


def test_returning_none_is_unsolved_only_if_nothing_is_answered() -> None:
    assert ex06(lambda *a: None).status is Status.UNSOLVED
    said = ex06(lambda *a: right(*a) or None)
    assert said.status is Status.WRONG
    assert "None" in said.difference


def test_an_error_is_told_with_its_line() -> None:
    said = ex06(lambda match, kv, states, n, page: kv[99])
    assert said.status is Status.RAISED
    assert "IndexError: list index out of range" in said.difference
    assert "line" in said.difference


def test_a_changed_argument_is_told() -> None:
    def greedy(match: int, kv: list[int], states: list[int], n: int, page: int) -> int:
        answer = right(match, kv, states, n, page)
        kv.clear()
        return answer

    said = ex06(greedy)
    assert said.status is Status.CHANGED
    assert "kv_boundaries" in said.difference


def test_a_wrong_type_is_told() -> None:
    assert "an int, you return a str" in ex06(lambda *a: str(right(*a))).difference
    assert "whole number" in ex06(lambda *a: float(right(*a))).difference
    assert "a bool" in ex06(lambda *a: False).difference


def test_an_answer_is_compared_by_what_it_holds_and_not_by_what_it_says_of_itself() -> None:
    def agree(self: object, other: object) -> bool:
        return True

    alike = {"__eq__": agree, "__hash__": lambda self: 1, "__sub__": lambda self, other: self}
    Anything = type("Anything", (int,), alike)
    Text = type("Text", (str,), alike)
    Items = type("Items", (list,), {**alike, "__len__": lambda self: 0})
    assert check("ex01", lambda *a: Anything(5)).status is Status.WRONG
    assert check("ex17", lambda *a: (Anything(5), Anything(5))).status is Status.WRONG
    assert check("ex23", lambda *a: (Text("ship"), Anything(1))).status is Status.WRONG
    assert check("ex20", lambda *a: Items([1])).status is Status.WRONG
    assert ex06(lambda *a: Anything(right(*a))).passed


def test_answers_that_are_hard_to_look_at_are_told_all_the_same() -> None:
    class Odd:
        dtype = shape = 1

        def __repr__(self) -> str:
            raise RuntimeError

        def tolist(self) -> None:
            raise RuntimeError

    for odd in (10**6000, -(10**6000), Odd(), [Odd()], float("nan"), {1}, lambda: 0, b"", 1j):
        said = ex06(lambda *a, odd=odd: odd)
        assert said.status is Status.WRONG, odd
        assert said.difference
        assert said._repr_html_()
    assert check("ex10", lambda m, i: 10**6000).status is Status.WRONG
    assert check("ex03", lambda *a: (Odd(), Odd())).status is Status.WRONG
    assert check("ex14", lambda state: state).status is Status.WRONG
    assert len(check("ex19", lambda *a: list(range(20_000))).picture) < 20_000


def test_a_wrong_signature_is_told_before_anything_runs() -> None:
    said = ex06(lambda match, kv: 0)
    assert said.status is Status.RAISED
    assert "(token_match, kv_boundaries, state_boundaries, n_tokens, page)" in said.difference


def test_an_endless_loop_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kdalab.exercises.one_case.CALL_LIMIT_S", 0.5)

    stuck: list[int] = []

    def endless(*a: Any) -> int:
        if a[3] > 3:
            stuck.append(a[3])
        while a[3] > 3:
            with suppress(Exception):
                sum(range(1000))
        return right(*a)

    said = ex06(endless)
    assert said.status is Status.TOO_LONG
    assert "does a loop ever end" in said.difference
    assert len(stuck) == 1  # no smaller case is looked for: each would take as long


@pytest.mark.skipif(not hasattr(signal, "SIGALRM"), reason="this platform has no alarms")
def test_an_alarm_of_somebody_else_goes_on() -> None:
    theirs = signal.setitimer(signal.ITIMER_REAL, 50)
    handler = signal.getsignal(signal.SIGALRM)
    try:
        with pytest.raises(TookTooLong), time_limit(0.01):
            time.sleep(5)
        assert 40 < signal.getitimer(signal.ITIMER_REAL)[0] <= 50
        assert signal.getsignal(signal.SIGALRM) is handler
    finally:
        signal.setitimer(signal.ITIMER_REAL, *theirs)


def test_a_slow_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kdalab.exercises.checking.TIME_LIMIT_S", 0.0)
    assert ex06(right).status is Status.TOO_LONG


def test_an_unsteady_answer_is_told() -> None:
    calls: list[int] = []

    def unsteady(*a: Any) -> int:
        calls.append(0)
        return right(*a) + (len(calls) == 40)

    assert ex06(unsteady).status is Status.UNSTEADY


def test_an_outcome_shows_itself(capsys: pytest.CaptureFixture[str]) -> None:
    said = ex06(lambda *a: 1)
    page = said._repr_html_()
    assert "<svg" in page
    assert "not right yet" in page
    assert repr(said) == said.text
    assert not said
    assert Outcome.from_json(said.to_json()) == said
    assert ex06(right)


def test_what_an_answer_returns_cannot_write_html() -> None:
    page = ex06(lambda *a: "<script>alert(1)</script>")._repr_html_()
    assert "<script" not in page


def test_an_exercise_of_ones_own_is_checked_too() -> None:
    from hypothesis import strategies as st

    own = Exercise(
        number=99,
        title="Double",
        level=1,
        notebook="01_mental_model",
        function="double",
        statement="`double(n)`",
        cases=lambda: st.integers(0, 9).map(lambda n: {"n": n}),
        expected=lambda n: n + n,
        hints=("Add.", "n + n"),
    )
    assert check_exercise(own, lambda n: 2 * n).passed
    assert check_exercise(own, lambda n: n * n).call == "double(n=1)"
