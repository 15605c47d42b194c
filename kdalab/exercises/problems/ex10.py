"""How much is replayed, at a checkpoint every so many tokens?"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from kdalab.cache import parse_placement
from kdalab.exercises.exercise import Exercise, Given
from kdalab.viz.answers import Cell, Picture, Row, Rows


def cases() -> st.SearchStrategy[Given]:
    """A few matches, some of them exactly at a checkpoint."""
    matches = st.lists(st.integers(0, 40), min_size=1, max_size=6)
    return st.tuples(matches, st.integers(1, 12)).map(
        lambda drawn: {"match_lengths": drawn[0], "interval": drawn[1]}
    )


def restore(match: int, interval: int) -> int:
    """The last boundary at which the cache's placement ``every:N`` leaves a checkpoint."""
    return max(parse_placement(f"every:{interval}").boundaries(match, 0, None, 1), default=0)


def expected(match_lengths: list[int], interval: int) -> float:
    """Request by request."""
    replayed = [m - restore(m, interval) for m in match_lengths]
    return sum(replayed) / len(replayed)


def picture(given: Given, expected: float, got: Any) -> Picture:
    """What each request restores and replays."""
    rows = []
    for i, m in enumerate(given["match_lengths"]):
        at = restore(m, given["interval"])
        cells = [Cell(0, at, "kv", "restored")] if at else []
        cells += [Cell(at, m, "free", f"replay {m - at}")] if m > at else []
        rows.append(Row(f"match {i + 1}", tuple(cells), (at,) if at else ()))
    return Rows(tuple(rows))


EXERCISE = Exercise(
    number=10,
    title="Replay at an interval",
    level=2,
    notebook="06_checkpoint_density",
    function="expected_replay",
    statement="""
        With a checkpoint at every multiple of `interval` tokens, a request whose text is known to m
        restarts at the last checkpoint at or before m. Write
        `expected_replay(match_lengths, interval)`: the mean number of tokens that a request
        replays, over the given matches. A match that ends at a checkpoint replays nothing; one that
        is shorter than the interval replays all of it.
    """,
    cases=cases,
    expected=expected,
    hints=(
        "Where does one request with a match of 10 and an interval of 4 restart?",
        "At 8; it replays 2. Which operation gives what is left after whole intervals?",
        "`m % interval` for each, then the mean.",
    ),
    picture=picture,
    tolerance=1e-9,
)
