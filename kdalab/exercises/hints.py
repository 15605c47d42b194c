"""Help on demand, each time a little more."""

from __future__ import annotations

from kdalab.exercises.catalog import find

_asked: dict[str, int] = {}


class Hint(str):
    """Text that shows itself without quotes at the end of a notebook cell."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def hint(name: str, number: int | None = None) -> Hint:
    """The next hint for an exercise, or hint ``number`` (1, 2, ...); the last one repeats.

    Raises:
        KdalabError: an unknown exercise; a hint that it does not have.
    """
    exercise = find(name)
    if number is None:
        number = min(_asked.get(exercise.name, 0) + 1, len(exercise.hints))
        _asked[exercise.name] = number
    return Hint(exercise.hint(number))
