"""Where do a few checkpoints help most? Any choice of least replay is right."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import Any

from hypothesis import strategies as st

from kdalab.exercises.exercise import Exercise, Given
from kdalab.viz.answers import Cell, Picture, Row, Rows


def cases() -> st.SearchStrategy[Given]:
    """Few enough matches to try every choice."""
    matches = st.lists(st.integers(0, 12), min_size=1, max_size=7)
    return st.tuples(matches, st.integers(0, 4)).map(
        lambda drawn: {"matches": drawn[0], "budget": drawn[1]}
    )


def replay(matches: Sequence[int], boundaries: Iterable[int]) -> int:
    """Tokens replayed in total."""
    at = tuple(boundaries)
    return sum(m - max((b for b in at if b <= m), default=0) for m in matches)


def expected(matches: list[int], budget: int) -> list[int]:
    """Every choice of so many boundaries is tried, wherever it lies."""
    places = sorted({*matches} - {0})
    sizes = range(min(budget, len(places)) + 1)
    choices = (c for size in sizes for c in combinations(places, size))
    return list(min(choices, key=lambda c: replay(matches, c)))


def judge(given: Given, expected: list[int], got: Any) -> str | None:
    """Boundaries in order, no more than allowed, and as little replay as possible."""
    if not isinstance(got, list | tuple) or not all(type(b) is int for b in got):
        return f"expected a list of whole numbers, you return {got!r}"
    if list(got) != sorted(set(got)):
        return f"the boundaries {list(got)} are not ascending, or one comes twice"
    if len(got) > given["budget"]:
        return f"{len(got)} checkpoints, and there is room for {given['budget']}"
    if any(b <= 0 for b in got):
        return "a checkpoint at 0 or before it is of no use"
    least, yours = replay(given["matches"], expected), replay(given["matches"], got)
    return None if yours == least else f"yours replays {yours} tokens, {least} are possible"


def picture(given: Given, expected: list[int], got: Any) -> Picture:
    """The matches, and both choices."""
    rows = [Row(f"match {i + 1}", (Cell(0, m),)) for i, m in enumerate(given["matches"]) if m]
    rows.append(Row("a best choice", states=tuple(expected)))
    if got is not None:
        rows.append(Row("yours", states=tuple(float(b) for b in got)))
    return Rows(tuple(rows))


EXERCISE = Exercise(
    number=11,
    title="The best places for a few checkpoints",
    level=3,
    notebook="06_checkpoint_density",
    function="place",
    statement="""
        There is room for `budget` checkpoints of one long text, and you know how far each later
        request will match it. Write `place(matches, budget)`: the boundaries (ascending, at most
        `budget` of them) with the least total replay

            sum over matches m of  m - max(b <= m, or 0)

        Where several choices are equally good, any of them will do. Greedy is not enough.
    """,
    cases=cases,
    expected=expected,
    hints=(
        "A checkpoint between two matches can move up to the next match and only save more: the "
        "candidates are the matches themselves.",
        "Sort them. Once you have fixed the first checkpoint, what lies below it is decided, and "
        "what lies above is the same problem with one checkpoint less.",
        "best(first match, checkpoints left, last checkpoint) by recursion with `functools.cache`: "
        "try every position for the next checkpoint, and none.",
    ),
    picture=picture,
    judge=judge,
    examples=100,
)
