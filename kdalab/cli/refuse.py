"""How every command refuses: a problem on standard error, and exit code 2."""

from __future__ import annotations

import re
import sys
from shutil import get_terminal_size
from textwrap import wrap
from typing import NoReturn

import typer

_COMMAND = re.compile("`[^`\\n]*`")
_JOINED = "\0"  # stands for a space at which no line may end


def refuse(problem: object, cause: BaseException | None = None) -> NoReturn:
    """Print ``kdalab: problem`` and leave; the problem is text or the error that tells it."""
    say(problem)
    raise typer.Exit(2) from (problem if isinstance(problem, BaseException) else cause)


def say(problem: object) -> None:
    """Print ``kdalab: problem``: for people at the width of their terminal, else in one line, as
    scripts and logs want it."""
    text = f"kdalab: {problem}"
    if source := sys.modules.get("kdalab.lab.readers.source"):  # it has read a pipe, perhaps
        text = source.as_given(text)
    typer.echo(folded(text, get_terminal_size().columns) if _on_a_terminal() else text, err=True)


def folded(text: str, width: int) -> str:
    """``text`` in lines of at most ``width`` columns. Words are never broken, so paths stay whole,
    and neither is a command in backticks that fits a line."""

    def join(found: re.Match[str]) -> str:
        command = found.group()
        return command.replace(" ", _JOINED) if len(command) <= width - 4 else command

    width = max(20, width)
    lines: list[str] = []
    for line in text.split("\n"):
        lines += wrap(
            _COMMAND.sub(join, line), width, subsequent_indent="  ", break_long_words=False,
            break_on_hyphens=False, drop_whitespace=True, replace_whitespace=False,
        ) or [""]  # fmt: skip
    return "\n".join(lines).replace(_JOINED, " ")


def _on_a_terminal() -> bool:
    return sys.stderr.isatty()
