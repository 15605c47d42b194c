"""Two kinds of memory in one buffer. The specification is the project's ``UnifiedBuffer``."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from kdalab.exercises.exercise import Exercise, Given
from kdalab.viz.answers import Cell, Picture, Row, Rows

Answer = tuple[bool, int, int, list[tuple[int, int]]]
_UNIT = 16  # bytes: what every entry of the buffer is a multiple of


@st.composite
def _cases(draw: st.DrawFn) -> Given:
    page, state = _UNIT * draw(st.integers(1, 2)), _UNIT * draw(st.integers(1, 4))
    used = st.lists(st.booleans(), max_size=4).map(lambda rows: [*rows, True] if rows else [])
    pages, states = draw(used), draw(used)
    taken = len(pages) * page + len(states) * state
    # The buffer ends in whole rows of states, and its first rows stand idle.
    least = _idle(page, state) + max(taken, page + state)
    rows = -(-least // state) + draw(st.integers(0, 2))
    return {
        "pages": pages,
        "states": states,
        "page_bytes": page,
        "state_bytes": state,
        "room": rows * state - _idle(page, state),
        "kind": draw(st.sampled_from(["page", "state"])),
        "n": draw(st.integers(1, 4)),
    }


def _idle(page: int, state: int) -> int:
    """Bytes of padding at the start of a ``UnifiedBuffer``, in whole rows of pages."""
    return -(-max(page, state) // page) * page


def expected(
    pages: list[bool],
    states: list[bool],
    page_bytes: int,
    state_bytes: int,
    room: int,
    kind: str,
    n: int,
) -> Answer:
    """Fill a real buffer, make the holes, and ask for more."""
    from kdalab.memory.unified import UnifiedBuffer

    nbytes = room + _idle(page_bytes, state_bytes)
    buffer = UnifiedBuffer(nbytes, page_bytes, state_bytes, lazy=True)
    for side, rows in ((buffer.pages, pages), (buffer.states, states)):
        slots = side.allocate("before", len(rows))
        side.free([s for s, used in zip(slots, rows, strict=True) if not used], "before")
    wanted = buffer.pages if kind == "page" else buffer.states
    if wanted.n_free < n:
        return False, len(pages), len(states), []
    fresh = max(0, n - wanted.n_holes) * wanted.entry_bytes
    while fresh > buffer.gap:
        buffer.peer(wanted).compact(1)
    wanted.allocate("new", n)
    buffer.check()
    moves = []
    for move in buffer.drain_moves():
        low = move.pool == buffer.pages.name
        side = buffer.pages if low else buffer.states
        ends = (side._place_of_row(move.source), side._place_of_row(move.target))
        moves.append(ends)
    return True, buffer.pages.span, buffer.states.span, moves


def picture(given: Given, expected: Answer, got: Any) -> Picture:
    """The buffer before, and both frontiers afterwards."""
    page, state, room = given["page_bytes"], given["state_bytes"], given["room"]

    def sides(low: list[bool], high: list[bool]) -> tuple[Cell, ...]:
        cells = [
            Cell(i * page, (i + 1) * page, "kv" if used else "free", "page" if used else "hole")
            for i, used in enumerate(low)
        ]
        cells += [
            Cell(
                room - (i + 1) * state,
                room - i * state,
                "s" if used else "free",
                "state" if used else "hole",
            )
            for i, used in enumerate(high)
        ]
        return tuple(cells)

    def spans(answer: Answer) -> tuple[Cell, ...]:
        low, high = answer[1] * page, room - answer[2] * state
        return (Cell(0, low, "kv", "pages"), Cell(high, room, "s", "states"))

    rows = [Row("before", sides(given["pages"], given["states"]))]
    rows.append(Row(f"after, fits: {expected[0]}", spans(expected)))
    if got is not None:
        rows.append(Row(f"yours, fits: {got[0]}", spans(got)))
    return Rows(tuple(rows), "bytes")


EXERCISE = Exercise(
    number=15,
    title="Two frontiers",
    level=2,
    notebook="09_unified_memory",
    function="grow",
    statement="""
        Latent pages grow from the start of one buffer, states from its end; between the two
        frontiers lies the gap. Rows inside that were given back are holes. Write
        `grow(pages, states, page_bytes, state_bytes, room, kind, n)`, which takes `n` more rows of
        one kind, and returns `(fits, page_rows, state_rows, moves)`:

        1. Own holes are filled first; the rest moves the own frontier into the gap.
        2. While the gap is too small, the *other* side draws back: the row at its frontier moves
           into its first hole (the one nearest to its own end), and the frontier falls back over
           every hole behind the row that moved. Each move is `(from_row, to_row)`, counted from the
           side's own end, from 0. No more moves than needed.
        3. If the gap is still too small without holes left, `fits` is False, nothing changes and
           `moves` is empty.
    """,
    cases=_cases,
    expected=expected,
    hints=(
        "How many rows are left to be placed once the own holes are full? What is the gap, in "
        "bytes?",
        "A move turns the first hole of the other side into a used row and shortens that side by "
        "one row; then trim trailing holes.",
        "Work on a copy, and return it only if it fits; the answer for what does not fit is the "
        "state before.",
    ),
    picture=picture,
)
