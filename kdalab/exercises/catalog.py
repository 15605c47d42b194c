"""All exercises by name. Each is a module in ``problems``, with its twins in ``stubs`` and
``solutions``."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module

from kdalab.errors import KdalabError, shown
from kdalab.exercises import problems
from kdalab.exercises.exercise import Exercise


@cache
def _names() -> tuple[str, ...]:
    return tuple(sorted(m.name for m in pkgutil.iter_modules(problems.__path__)))


@cache
def _load(name: str) -> Exercise:
    found: Exercise = import_module(f"kdalab.exercises.problems.{name}").EXERCISE
    return found


class _Catalog(Mapping[str, Exercise]):
    """Loads an exercise when it is first asked for."""

    def __getitem__(self, name: str) -> Exercise:
        if name not in _names():
            raise KeyError(name)
        return _load(name)

    def __iter__(self) -> Iterator[str]:
        return iter(_names())

    def __len__(self) -> int:
        return len(_names())


EXERCISES: Mapping[str, Exercise] = _Catalog()
"""``ex01``, ``ex02``, ... -> :class:`Exercise`."""


def find(name: str) -> Exercise:
    """The exercise of that name; ``7`` and ``ex7`` do for ``ex07``.

    Raises:
        KdalabError: there is none; names the first and the last.
    """
    word = str(name).strip().lower().removeprefix("ex")
    number = int(word) if word.isdecimal() and len(word) < 4 else 0
    known = f"ex{number:02d}"
    if known not in EXERCISES:
        names = _names()
        raise KdalabError(
            f"unknown exercise {shown(name)}; there are {names[0]} to {names[-1]} "
            "(`kdalab check --list` names them)"
        )
    return EXERCISES[known]
