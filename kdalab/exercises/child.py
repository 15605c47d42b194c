"""Answers in a process of their own: it can be ended, and can have settings of its own.

``python -m kdalab.exercises.child NAME FILE FUNCTION RESULT`` checks one file and writes the
outcome into another. What the answer prints goes to the parent.
"""

from __future__ import annotations

import importlib.util
import inspect
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO

from kdalab.errors import KdalabError, shown
from kdalab.exercises.catalog import find
from kdalab.exercises.checking import TIME_LIMIT_S, check_here
from kdalab.exercises.exercise import Exercise
from kdalab.exercises.limits import forbid_forks, limit_memory
from kdalab.exercises.one_case import told
from kdalab.exercises.outcome import Outcome, Status

LIMIT_S = 2 * TIME_LIMIT_S
"""Seconds after which the process is ended, whatever it does."""

_PRELUDE = "import triton\nimport triton.language as tl\n\n\n"


def check_file(
    name: str, file: Path, function: str | None = None, limit_s: float = LIMIT_S
) -> Outcome:
    """Run ``file`` in a process of its own, and check its function.

    The file is run as any program of yours: with your rights, and all that it does happens. Only
    check files that you trust.

    Args:
        function: its name in the file; None for the exercise's own.
        limit_s: seconds.

    Raises:
        KdalabError: an unknown exercise, or no such Python file.
    """
    exercise = find(name)
    _require_file(exercise, file)
    if lacking := exercise.missing():
        return Outcome(exercise.name, exercise.title, Status.SKIPPED, difference=lacking)
    with tempfile.TemporaryDirectory(prefix="kdalab-check-") as folder:
        result = Path(folder) / "outcome.json"
        command = [
            sys.executable,
            "-m",
            "kdalab.exercises.child",
            exercise.name,
            str(file.resolve()),
        ]
        # A file and no pipe: a process that the answer leaves behind would hold a pipe open.
        with open(Path(folder) / "said", "w+b") as said:
            process = subprocess.Popen(
                [*command, function or exercise.function, str(result)],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(exercise.environment or {})},
                start_new_session=True,
            )
            try:
                process.wait(timeout=limit_s)
            except subprocess.TimeoutExpired:
                late = f"ended after {limit_s:g} seconds: does a loop ever end?"
                return Outcome(exercise.name, exercise.title, Status.TOO_LONG, difference=late)
            finally:
                _end(process)
            printed = _last_lines(said)
        if not result.is_file():
            gone = f"the process ended with code {process.returncode} before the check was done"
            return Outcome(
                exercise.name, exercise.title, Status.RAISED, difference=gone, printed=printed
            )
        outcome = Outcome.from_json(result.read_text("utf-8"))
    if outcome.passed or not printed:
        return outcome
    return replace(outcome, printed=printed)


def _require_file(exercise: Exercise, file: Path) -> None:
    name = shown(str(file), 200)
    if file.is_dir():
        raise KdalabError(f"{name} is a folder; give the Python file in it")
    if not file.exists():
        raise KdalabError(
            f"there is no file {name}; give your own, or let "
            f"`kdalab check {exercise.name} --stub FILE` write one to start from"
        )
    if file.suffix != ".py" or not file.is_file():
        raise KdalabError(f"{name} is no Python file; give a file that ends in .py")


def check_source(exercise: Exercise, answer: Any) -> Outcome:
    """Check what a notebook holds, by its source: a ``Path``, a text, or a function or kernel.

    Raises:
        KdalabError: the source cannot be found.
    """
    if isinstance(answer, Path):
        return check_file(exercise.name, answer)
    name = exercise.function
    if not isinstance(answer, str):
        inner = getattr(answer, "fn", answer)  # a kernel keeps its function here
        name = getattr(inner, "__name__", name)
        try:
            answer = inspect.getsource(inner)
        except (OSError, TypeError) as error:
            raise KdalabError(
                f"{exercise.name}: the source of {shown(answer)} cannot be found ({error}); "
                "give it as a text, or the Path of a file"
            ) from None
    with tempfile.TemporaryDirectory(prefix="kdalab-check-") as folder:
        file = Path(folder) / "answer.py"
        file.write_text(_PRELUDE + inspect.cleandoc(answer) + "\n", encoding="utf-8")
        return check_file(exercise.name, file, name)


def load(file: Path) -> ModuleType:
    """Run a file as a module of its own."""
    spec = importlib.util.spec_from_file_location("answer", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["answer"] = module  # where dataclasses look
    spec.loader.exec_module(module)
    return module


def _checked(exercise: Exercise, file: Path, function: str) -> Outcome:
    def untried(said: str) -> Outcome:
        return Outcome(exercise.name, exercise.title, Status.RAISED, difference=said, tried=False)

    try:
        module = load(file)
    except BaseException as error:  # a KeyboardInterrupt is the file's own: no terminal is here
        return untried(f"the file does not run: {told(error)}")
    answer = getattr(module, function, None)
    if answer is None:
        there = [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")]
        said = f"no {function} in {file.name}; it has {', '.join(there) or 'no function'}"
        return untried(said)
    try:
        return check_here(exercise, answer)
    except KdalabError as error:
        return untried(str(error))
    except BaseException as error:  # likewise
        return Outcome(exercise.name, exercise.title, Status.RAISED, difference=told(error))


def _last_lines(said: BinaryIO, lines: int = 12, most: int = 20_000) -> str:
    """The end of what an answer printed."""
    said.seek(max(0, said.seek(0, os.SEEK_END) - most))
    return "\n".join(said.read().decode("utf-8", "replace").splitlines()[-lines:])


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process and whatever it has started."""
    if hasattr(os, "killpg"):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.wait()


def main(argv: list[str]) -> None:
    """NAME FILE FUNCTION RESULT."""
    name, file, function, result = argv
    limit_memory()
    forbid_forks()
    outcome = _checked(find(name), Path(file), function)
    Path(result).write_text(outcome.to_json(), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
