"""A donation. The specification is the project's slot allocator."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from kdalab.errors import OutOfSlotsError
from kdalab.exercises.exercise import Exercise, Given
from kdalab.viz.answers import Cell, Picture, Row, Rows

Owners = list[str | None]


@st.composite
def _cases(draw: st.DrawFn) -> Given:
    others = draw(st.lists(st.sampled_from([None, "cache", "B"]), max_size=4))
    slot = draw(st.integers(0, len(others)))
    owners: Owners = [*others[:slot], "A", *others[slot:]]
    held = [i for i, who in enumerate(owners) if who == "cache"]
    known = draw(st.none() | st.sampled_from(held)) if held else None
    return {"owners": owners, "request": "A", "slot": slot, "known": known}


def expected(owners: Owners, request: str, slot: int, known: int | None) -> tuple[Owners, int]:
    """Hand the slot over in a :class:`~kdalab.memory.slots.SlotAllocator`, after taking a spare."""
    from kdalab.memory.slots import CACHE, SlotAllocator

    pool = SlotAllocator(len(owners), "states")
    pool.allocate("nobody", len(owners))
    for i, who in enumerate(owners):
        if who is not None:
            pool.transfer([i], "nobody", who)
    pool.free(pool.owned_by("nobody")[::-1], "nobody")  # last freed, first taken: the lowest
    if known is not None:
        return list(pool.owners()), slot
    try:
        (spare,) = pool.allocate(request)
    except OutOfSlotsError:
        return list(pool.owners()), slot
    pool.transfer([slot], request, CACHE)
    pool.check()
    return list(pool.owners()), spare


def _row(title: str, owners: Owners) -> Row:
    looks = {None: "free", "cache": "s"}
    return Row(
        title,
        tuple(
            Cell(i, i + 1, looks.get(who, "kv"), f"{i}: {who or 'free'}")
            for i, who in enumerate(owners)
        ),
    )


def picture(given: Given, expected: Any, got: Any) -> Picture:
    """The slots before and after."""
    rows = [_row("before", given["owners"]), _row(f"after, next {expected[1]}", expected[0])]
    if got is not None:
        rows.append(_row(f"yours, next {got[1]}", got[0]))
    return Rows(tuple(rows), "slots")


EXERCISE = Exercise(
    number=13,
    title="Donate a slot",
    level=2,
    notebook="07_cow_snapshot_donate",
    function="donate",
    statement="""
        A snapshot copies a state; a donation hands over the slot itself. Write
        `donate(owners, request, slot, known)`, which returns the new table of owners and the slot
        that the request writes next.

        * The donated slot belongs to `"cache"` from now on: read-only, also for the request. So the
          request needs a spare slot to go on in: the free one (None) of the lowest number.
        * If the cache has a state of this prefix already (`known`), it keeps that one: nothing
          changes, and the request goes on in its slot.
        * If no slot is free, nothing can be donated: nothing changes.
    """,
    cases=_cases,
    expected=expected,
    hints=(
        "Look for reasons not to donate first; there are two.",
        "Take the spare before you give the slot away. Work on a copy of the list.",
        "`owners.index(None)` is the lowest free slot; it gets the request's name, the donated one "
        '"cache".',
    ),
    picture=picture,
)
