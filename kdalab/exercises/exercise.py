"""What an exercise is: words, a stub, an independent specification, cases, hints, a picture."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import TYPE_CHECKING, Any

from kdalab.errors import KdalabError
from kdalab.viz.answers import Picture

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

Given = dict[str, Any]
"""One case: the arguments by name, in the order in which the answer is called."""


@dataclass(frozen=True)
class Exercise:
    """One function to write.

    Args:
        number: 1, 2, ...; the name is ``ex01``, ``ex02``, ...
        title: a few words.
        level: 1 (arithmetic) to 3 (an algorithm).
        notebook: name of the notebook that asks for it, without ending.
        function: name of the function to write.
        statement: what it must do: formula, shapes with named axes, units. Markdown.
        cases: a hypothesis strategy of :data:`Given`; its simplest case comes first.
        expected: the specification, called with a case's arguments. It shares no code with the
            solution; where the project has the thing itself, it asks that.
        hints: two or three, each telling more than the one before.
        picture: draws a case, the expected answer and the given one; None for no picture. Given an
            answer that is not of the right kind, it may raise, and is called again with None.
        judge: tells what is wrong with an answer that is given, or None; in place of comparing
            with ``expected``, where several answers are right.
        tolerance: floating-point numbers may differ by this times max(1, |expected|).
        examples: random cases to try.
        parts: names of what a tuple returns, for messages: "S" in place of "[1]".
        larger: fixed cases that are tried once all random ones were right; they are not made
            smaller.
        adapt: makes a function out of what the reader has written, where that is something else.
        environment: set in a process of its own, in which the answer then runs; None for here.
        missing: names what this machine lacks for it, or "".
    """

    number: int
    title: str
    level: int
    notebook: str
    function: str
    statement: str
    cases: Callable[[], SearchStrategy[Given]] = field(repr=False)
    expected: Callable[..., Any] = field(repr=False)
    hints: tuple[str, ...] = field(repr=False)
    picture: Callable[[Given, Any, Any], Picture] | None = field(default=None, repr=False)
    judge: Callable[[Given, Any, Any], str | None] | None = field(default=None, repr=False)
    tolerance: float = 0.0
    examples: int = 120
    parts: tuple[str, ...] = ()
    larger: Callable[[], Sequence[Given]] = field(default=tuple, repr=False)
    adapt: Callable[[Any], Callable[..., Any]] | None = field(default=None, repr=False)
    environment: dict[str, str] | None = None
    missing: Callable[[], str] = field(default=lambda: "", repr=False)

    @property
    def name(self) -> str:
        """``ex07``."""
        return f"ex{self.number:02d}"

    @property
    def stub(self) -> str:
        """The source to start from."""
        return _source("stubs", self.name)

    @property
    def solution(self) -> str:
        """The source of an answer that passes."""
        return _source("solutions", self.name)

    @property
    def intro(self) -> str:
        """Name, title and statement."""
        return (
            f"{self.name}: {self.title} (level {self.level})\n\n{inspect.cleandoc(self.statement)}"
            "\n\nLeave the arguments as they are: sort or change a copy."
        )

    def hint(self, number: int) -> str:
        """Hint 1, 2, ...

        Raises:
            KdalabError: there is no such hint.
        """
        if not 1 <= number <= len(self.hints):
            raise KdalabError(f"{self.name} has hints 1 to {len(self.hints)}, not {number}")
        return f"Hint {number} of {len(self.hints)}: {self.hints[number - 1]}"


def _source(folder: str, name: str) -> str:
    return resources.files(f"kdalab.exercises.{folder}").joinpath(f"{name}.py").read_text("utf-8")
