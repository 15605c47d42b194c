"""``kdalab check``: files in a process of their own, exit codes, stubs, hints."""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from kdalab.cli.main import build_app
from kdalab.errors import KdalabError
from kdalab.exercises import EXERCISES, Status, hint
from kdalab.exercises.child import check_file
from kdalab.exercises.compare import first_difference


def kdalab(*arguments: object, given: str | None = None) -> Result:
    return CliRunner().invoke(build_app(), ["check", *map(str, arguments)], input=given)


def test_a_solution_in_a_file_passes_with_code_0(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(EXERCISES["ex07"].solution + "\nprint('hello')\nmine = split_node\n")
    result = kdalab("ex07", f"{file}:mine")
    assert result.exit_code == 0, result.output
    assert "passed" in result.output


def test_a_wrong_answer_leaves_with_code_1_and_shows_what_it_printed(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def equal_tokens(a, b):\n    print('looking at', a)\n    return a // b\n")
    result = kdalab("ex01", file, "--picture", tmp_path / "case.svg")
    assert result.exit_code == 1
    assert "the smallest case found: equal_tokens(" in result.output
    assert "looking at" in result.output
    assert (tmp_path / "case.svg").read_text().startswith("<svg")


def test_the_stub_is_written_once_and_is_not_solved(tmp_path: Path) -> None:
    file = tmp_path / "start.py"
    assert kdalab("ex06", file, "--stub").exit_code == 0
    assert kdalab("6", "--stub").output == file.read_text()
    again = kdalab("ex06", file, "--stub")
    assert again.exit_code == 2
    assert "is there already" in again.output
    result = kdalab("ex06", file)
    assert result.exit_code == 1
    assert "not solved yet" in result.output
    assert "`kdalab check ex06 --hint` helps" in result.output


def test_an_endless_file_is_ended(tmp_path: Path) -> None:
    file = tmp_path / "endless.py"
    file.write_text(
        "while True:\n    try:\n        pass\n    except BaseException:\n        pass\n"
    )
    outcome = check_file("ex01", file, limit_s=1)
    assert outcome.status is Status.TOO_LONG


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("def equal_tokens(:", "SyntaxError"),
        ("import sys\nsys.exit(0)\n", "SystemExit"),
        ("import os\nos._exit(3)\n", "ended with code 3"),
        ("def other():\n    pass\n", "no equal_tokens in mine.py; it has other"),
        ("equal_tokens = 5\n", "is no function"),
        ("\n\ndef equal_tokens(:\n    pass\n", "(line 3: def equal_tokens(:)"),
        ("import nothing_of_this_name\n", "(line 1: import nothing_of_this_name)"),
        ("raise KeyboardInterrupt\n", "KeyboardInterrupt"),
    ],
)
def test_a_file_that_cannot_be_checked_says_why(tmp_path: Path, source: str, told: str) -> None:
    file = tmp_path / "mine.py"
    file.write_text(source)
    outcome = check_file("ex01", file)
    assert outcome.status is Status.RAISED
    assert told in outcome.difference
    assert outcome.tried == ("ended with" in told)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("import os; os.fork(); return 1", "one process"),
        ("return len(bytearray(6 * 2**30))", "more memory than 4 GiB"),
        ("n = a // b", "did you forget `return`?"),
    ],
)
def test_an_answer_that_goes_too_far_is_told_in_words(tmp_path: Path, body: str, told: str) -> None:
    if "GiB" in told and not sys.platform.startswith("linux"):
        pytest.skip("memory is limited on Linux only")
    file = tmp_path / "mine.py"
    file.write_text(f"def equal_tokens(a, b):\n    {body}\n")
    result = kdalab("ex01", file)
    assert result.exit_code == 1, result.output
    assert told in result.output
    assert "Traceback" not in result.output
    assert "not solved yet" not in result.output


@pytest.mark.skipif(not hasattr(os, "killpg"), reason="this platform has no process groups")
def test_a_process_that_an_answer_leaves_behind_is_ended_and_not_waited_for(tmp_path: Path) -> None:
    file, number = tmp_path / "mine.py", tmp_path / "pid"
    file.write_text(
        "import subprocess\n"
        "left = subprocess.Popen(['sleep', '60'])\n"
        f"open({str(number)!r}, 'w').write(str(left.pid))\n" + EXERCISES["ex01"].solution
    )
    began = time.monotonic()
    assert check_file("ex01", file).passed
    assert time.monotonic() - began < 30
    state = Path(f"/proc/{number.read_text()}/stat")
    alive = True
    while alive and time.monotonic() - began < 30:
        with suppress(OSError):
            alive = state.exists() and state.read_text().split()[2] != "Z"
    assert not alive


def test_a_place_that_cannot_be_written_is_told_and_keeps_the_exit_code(tmp_path: Path) -> None:
    file, nowhere = tmp_path / "mine.py", tmp_path / "no" / "case.svg"
    file.write_text("def equal_tokens(a, b):\n    return 0\n")
    result = kdalab("ex01", file, "--picture", nowhere)
    assert result.exit_code == 1, result.output
    assert "cannot be written (no such file or directory)" in result.output
    assert "not right yet" in result.output
    stub = kdalab("ex01", tmp_path / "no" / "mine.py", "--stub")
    assert stub.exit_code == 2
    assert "kdalab: " in stub.output
    assert "Errno" not in stub.output + result.output


def test_files_that_do_not_run_leave_with_code_2(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    for source in ("def equal_tokens(:", "import nothing_of_this_name", "def other():\n    pass\n"):
        file.write_text(source)
        assert kdalab("ex01", file).exit_code == 2, source
    assert "is a folder" in kdalab("ex01", tmp_path).output
    assert "there is no file" in kdalab("ex01", tmp_path / "no.py").output


def test_what_is_not_there_is_refused(tmp_path: Path) -> None:
    for arguments in (["ex99"], ["nonsense"], [], ["ex01", tmp_path / "no.py"]):
        result = kdalab(*arguments)
        assert result.exit_code == 2, arguments
        assert "kdalab: " in result.output
    assert "ex01 to" in kdalab("ex99").output


def test_the_list_names_every_exercise() -> None:
    shown = kdalab("--list").output
    for exercise in EXERCISES.values():
        assert exercise.name in shown


def test_help_comes_step_by_step() -> None:
    first, second = hint("ex06"), hint("ex06")
    assert first.startswith("Hint 1 of 3")
    assert second.startswith("Hint 2 of 3")
    assert [str(hint("ex06")) for _ in range(2)][1].startswith("Hint 3 of 3")
    assert kdalab("ex06", "--hint").output.strip() == str(first)
    assert kdalab("ex06", "--hint", "2").output.strip() == str(second)
    assert kdalab("ex06", "--hint", "mine.py").exit_code == 2
    with pytest.raises(KdalabError, match="hints 1 to 3"):
        hint("ex06", 4)


def test_a_solution_is_shown_only_if_wanted() -> None:
    assert "def joint_boundary" not in kdalab("ex06", "--solution", given="n\n").output
    assert "def joint_boundary" in kdalab("ex06", "--solution", given="y\n").output


def test_differences_name_the_first_place() -> None:
    import torch

    assert first_difference((1, [2, 3]), [1, (2, 3)]) is None
    assert first_difference({"a": 1.0}, {"a": 1.0 + 1e-12}, 1e-9) is None
    assert first_difference((1, (2, 3)), (1, (2, 4))) == "at [1][1]: expected 3, you return 4"
    assert first_difference(float("inf"), 1e300, 1e-9) is not None
    assert first_difference(2**60, 2**60 + 1) is not None
    assert first_difference("a", "b") == "expected 'a', you return 'b'"
    assert first_difference((True, None), (False, None)) is not None
    assert first_difference({1, 2}, {2, 3}) == "your set has no 1 and also 3"
    assert "the keys" in str(first_difference({"a": 1}, {"b": 1}))
    x = torch.zeros(2, 2)
    y = x.clone()
    y[1, 0] = 1
    assert first_difference(x, y) == "[1, 0] should be 0, yours is 1 (1 of 4 differ)"
    assert "shape" in str(first_difference(x, x[0]))
    assert "dtype" in str(first_difference(x, x.double()))
    assert "float" in str(first_difference(x, 0.0))
