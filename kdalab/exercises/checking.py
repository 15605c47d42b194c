"""Does an answer do what it should? Random cases, and the smallest one that shows it does not."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings
from hypothesis.errors import Flaky

from kdalab.errors import KdalabError, shown
from kdalab.exercises.catalog import find
from kdalab.exercises.exercise import Exercise, Given
from kdalab.exercises.one_case import Fault, call_text, try_case, value_text
from kdalab.exercises.outcome import Outcome, Status

TIME_LIMIT_S = 30.0
"""Seconds for all cases of one exercise."""

_FIRST = 6  # cases that a stub is told by


class _Found(Exception):  # noqa: N818
    """A case that fails: what hypothesis then makes smaller."""


class _Enough(BaseException):
    """Stop looking: out of time, or a call that never came back."""


def check(name: str, answer: Any, *, random_seed: int | None = None) -> Outcome:
    """Try ``answer`` on random cases of an exercise.

    The cases are the same each time unless ``random_seed`` is given. Shows itself in a notebook;
    ``print`` shows the text; true in an ``if`` when all was right. Nothing that the answer does
    raises here. In a notebook a call that does not end is interrupted after five seconds where the
    platform can do that (see :func:`~kdalab.exercises.limits.time_limit`).

    Args:
        name: ``ex01`` ... ``ex24``; see ``EXERCISES``.
        answer: the function. For an exercise in Triton the kernel, its source, or a ``Path`` to it;
            what the kernel calls has to be in the same source.

    Raises:
        KdalabError: an unknown name; something that cannot be called.
    """
    return check_exercise(find(name), answer, random_seed=random_seed)


def check_exercise(exercise: Exercise, answer: Any, *, random_seed: int | None = None) -> Outcome:
    """As :func:`check`, for an exercise that need not be in the catalog."""
    if lacking := exercise.missing():
        return Outcome(exercise.name, exercise.title, Status.SKIPPED, difference=lacking)
    if exercise.environment is not None:
        from kdalab.exercises.child import check_source

        return check_source(exercise, answer)
    return check_here(exercise, answer, random_seed=random_seed)


def check_here(exercise: Exercise, answer: Any, *, random_seed: int | None = None) -> Outcome:
    """As :func:`check_exercise`, in this process whatever the exercise wants."""
    if exercise.adapt is not None:
        answer = exercise.adapt(answer)
    if not callable(answer):
        raise KdalabError(
            f"{exercise.name}: {shown(answer)} is no function; give the function itself, without ()"
        )
    search = _Search(exercise, answer)
    fault = search.first_cases()
    if fault is not None and fault.status is Status.UNSOLVED:
        if fault.got is None and exercise.adapt is None and _does_something(answer):
            forgot = "it returned None: did you forget `return`?"
            return _outcome(exercise, replace(fault, difference=forgot), 0)
        return Outcome(exercise.name, exercise.title, Status.UNSOLVED)
    fault = fault or search.random_cases(random_seed) or search.larger_cases()
    if fault is None:
        return Outcome(exercise.name, exercise.title, Status.PASSED, search.cases)
    return _outcome(exercise, fault, search.cases)


class _Search:
    """The state of one check: how many cases were right, and the last that was not."""

    def __init__(self, exercise: Exercise, answer: Callable[..., Any]) -> None:
        self.exercise, self.answer = exercise, answer
        self.cases = 0
        self.fault: Fault | None = None
        self.deadline = time.monotonic() + TIME_LIMIT_S

    def first_cases(self) -> Fault | None:
        """A stub answers none of the first cases; and a call must be possible at all."""
        cases: list[Given] = []
        _run(self.exercise, cases.append, _FIRST, None)
        wrong = _cannot_be_called(self.answer, cases[0])
        if wrong:
            return Fault(Status.RAISED, cases[0], self.exercise.expected(**cases[0]), None, wrong)
        first = None
        for case in cases:
            fault = try_case(self.exercise, self.answer, case)
            if fault is None or fault.status is not Status.UNSOLVED:
                return fault if fault and fault.status is Status.TOO_LONG else None
            first = first or fault
        return first

    def random_cases(self, random_seed: int | None) -> Fault | None:
        """Look for a case that fails, and make it smaller."""
        try:
            _run(self.exercise, self._one, self.exercise.examples, random_seed)
        except _Found:
            pass
        except Flaky:
            if self.fault is not None:
                said = "the same arguments gave another answer the second time: " + (
                    self.fault.difference or str(self.fault.status)
                )
                f = self.fault
                return Fault(Status.UNSTEADY, f.given, f.expected, f.got, said)
        except _Enough:
            if self.fault is None:
                said = f"{self.cases} cases were right in {TIME_LIMIT_S:g} seconds; each is tiny"
                return Fault(Status.TOO_LONG, {}, None, None, said)
        return self.fault

    def larger_cases(self) -> Fault | None:
        """The first of the exercise's fixed cases that fails."""
        for case in self.exercise.larger():
            fault = try_case(self.exercise, self.answer, case)
            if fault is not None:
                return fault
            self.cases += 1
        return None

    def _one(self, case: Given) -> None:
        if time.monotonic() > self.deadline:
            raise _Enough
        fault = try_case(self.exercise, self.answer, case)
        if fault is None:
            self.cases += 1
            return
        self.fault = fault
        if fault.status is Status.TOO_LONG:
            raise _Enough  # every smaller case would take as long again
        raise _Found


def _run(
    exercise: Exercise, body: Callable[[Given], None], examples: int, random_seed: int | None
) -> None:
    def test(case: Given) -> None:
        body(case)

    wanted = settings(
        max_examples=examples,
        derandomize=random_seed is None,
        database=None,
        deadline=None,
        print_blob=False,
        report_multiple_bugs=False,
        verbosity=Verbosity.quiet,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink),
    )
    run = wanted(given(exercise.cases())(test))
    if random_seed is not None:
        run = seed(random_seed)(run)
    run()


def _cannot_be_called(answer: Callable[..., Any], case: Given) -> str:
    try:
        signature = inspect.signature(answer)
    except (TypeError, ValueError):
        return ""
    try:
        signature.bind(*case.values())
    except TypeError:
        return f"it is called with ({', '.join(case)}), and yours takes {signature}"
    return ""


def _empty() -> None: ...


def _does_something(answer: Callable[..., Any]) -> bool:
    """Has the function more in it than a docstring, ``pass`` or ``return None``?"""
    code = getattr(answer, "__code__", None)
    return code is not None and len(code.co_code) > len(_empty.__code__.co_code)


def _outcome(exercise: Exercise, fault: Fault, cases: int) -> Outcome:
    # Other cases were answered: this one was forgotten.
    status = Status.WRONG if fault.status is Status.UNSOLVED else fault.status
    drawn, drawn_text = _picture(exercise, fault)
    return Outcome(
        exercise.name,
        exercise.title,
        status,
        cases,
        call_text(exercise, fault.given) if fault.given else "",
        value_text(fault.expected) if fault.given else "",
        value_text(fault.got) if status in (Status.WRONG, Status.UNSTEADY) else "",
        fault.difference,
        drawn,
        drawn_text,
    )


def _picture(exercise: Exercise, fault: Fault) -> tuple[str, str]:
    if exercise.picture is None or not fault.given:
        return "", ""
    got = fault.got if fault.status is Status.WRONG else None
    if len(value_text(got, 10**6)) > 1000 + 4 * len(value_text(fault.expected, 10**6)):
        got = None  # nobody wants to see that many
    for shape in (got, None):
        try:
            picture = exercise.picture(fault.given, fault.expected, shape)
            return picture.svg(), picture.text()
        except Exception:  # an answer of the wrong kind cannot be drawn
            continue
    return "", ""
