"""One call of an answer, with copies of the arguments, held against the specification."""

from __future__ import annotations

import copy
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kdalab.errors import shown
from kdalab.exercises.compare import first_difference, plain, same
from kdalab.exercises.exercise import Exercise, Given
from kdalab.exercises.limits import TookTooLong, memory_words, time_limit
from kdalab.exercises.outcome import Status

CALL_LIMIT_S = 5.0
"""Seconds that one call may take; the cases are tiny."""

MISSING = object()
"""In place of a returned value, when nothing was returned."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One case that is not as it should be."""

    status: Status
    given: Given
    expected: Any
    got: Any
    difference: str


def try_case(exercise: Exercise, answer: Callable[..., Any], given: Given) -> Fault | None:
    """Call ``answer`` with copies of the arguments; None when it is right."""
    expected = exercise.expected(**copy.deepcopy(given))
    mine = copy.deepcopy(given)
    try:
        with time_limit(CALL_LIMIT_S):
            got = answer(*mine.values())
    except NotImplementedError:
        return Fault(Status.UNSOLVED, given, expected, MISSING, "")
    except TookTooLong:
        said = f"no answer within {CALL_LIMIT_S:g} seconds: does a loop ever end?"
        return Fault(Status.TOO_LONG, given, expected, MISSING, said)
    except (Exception, SystemExit) as error:
        return Fault(Status.RAISED, given, expected, MISSING, told(error))
    if got is None:
        return Fault(Status.UNSOLVED, given, expected, None, "it returns None")
    try:
        got = plain(got)
    except Exception as error:  # a list within itself
        said = f"expected the form of {shown(expected)}: {told(error)}"
        return Fault(Status.WRONG, given, expected, MISSING, said)
    for name, value in given.items():
        if not _unchanged(value, mine[name]):
            said = f"{name} is another after the call; work on a copy"
            return Fault(Status.CHANGED, given, expected, got, said)
    try:
        if exercise.judge is not None:
            wrong = exercise.judge(given, expected, got)
        else:
            wrong = _named(first_difference(expected, got, exercise.tolerance), exercise.parts)
    except Exception as error:  # an answer of a kind that nobody thought of
        wrong = f"expected the form of {shown(expected)}: {told(error)}"
    return None if wrong is None else Fault(Status.WRONG, given, expected, got, wrong)


def _named(wrong: str | None, parts: tuple[str, ...]) -> str | None:
    for i, part in enumerate(parts):
        if wrong is not None and wrong.startswith(f"at [{i}]"):
            return f"{part}{wrong.removeprefix(f'at [{i}]')}"
    return wrong


def told(error: BaseException) -> str:
    """An error of the reader's code: its type, its words, and the line."""
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [f for f in frames if not _of_the_checker(f.filename)]
    if isinstance(error, SyntaxError) and error.lineno:  # it has no frame of its own
        line = (error.text or "").strip()
        where = f" (line {error.lineno}{': ' if line else ''}{line})"
        return f"{type(error).__name__}: {error.msg}{where}"
    if isinstance(error, MemoryError) and not str(error):
        return f"MemoryError: {memory_words()}{_line_of(theirs)}"
    return f"{type(error).__name__}: {shown(str(error), 200)[1:-1]}{_line_of(theirs)}"


def _line_of(theirs: list[traceback.FrameSummary]) -> str:
    if theirs:
        last = theirs[-1]
        return f" (line {last.lineno}: {last.line})" if last.line else f" (line {last.lineno})"
    return ""


def _of_the_checker(file: str) -> bool:
    path = file.replace("\\", "/")
    here = ("one_case", "child", "checking", "limits", "process")
    return path.startswith("<frozen importlib") or any(
        path.endswith(f"kdalab/exercises/{name}.py") for name in here
    )


def value_text(value: Any, most: int = 600) -> str:
    """A value as the reader would write it; arrays as nested lists."""
    if value is MISSING:
        return ""
    try:
        text = _written(value)
    except Exception:  # whoever wrote the value's class
        text = f"a {type(value).__name__} that cannot be printed"
    return text if len(text) <= most else text[: most - 3] + "..."


def call_text(exercise: Exercise, given: Given) -> str:
    """The call in Python, by name."""
    arguments = ", ".join(f"{name}={value_text(value, 300)}" for name, value in given.items())
    return f"{exercise.function}({arguments})"


def _written(value: Any) -> str:
    if hasattr(value, "tolist") and hasattr(value, "dtype"):
        return f"{type(value).__name__.lower()}({value.tolist()})"
    if type(value) in (tuple, list):
        inner = ", ".join(map(_written, value))
        if type(value) is list:
            return f"[{inner}]"
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    return shown(value, 600)


def _unchanged(before: Any, after: Any) -> bool:
    try:
        return type(before) is type(after) and same(before, plain(after))
    except Exception:
        return False
