"""Copy on write. The specification counts per slot, without following the step."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from kdalab.exercises.exercise import Exercise, Given
from kdalab.viz.answers import Cell, Picture, Row, Rows


@st.composite
def _cases(draw: st.DrawFn) -> Given:
    names = "ABCD"[: draw(st.integers(1, 4))]
    slot_of = {name: draw(st.integers(0, 2)) for name in names}
    writers = draw(st.lists(st.sampled_from(names), unique=True, max_size=4))
    cached = draw(st.sets(st.integers(0, 2), max_size=2))
    return {"slot_of": slot_of, "writers": writers, "cached": cached}


def expected(slot_of: dict[str, int], writers: list[str], cached: set[int]) -> list[str]:
    """In a slot that somebody else goes on reading, every writer copies. In one that only writers
    hold, all but the last do."""
    may_stay = set()
    for slot in set(slot_of.values()) - cached:
        holders = [r for r in slot_of if slot_of[r] == slot]
        if all(r in writers for r in holders):
            may_stay.add(max(holders, key=writers.index))
    return [r for r in writers if r not in may_stay]


def picture(given: Given, expected: Any, got: Any) -> Picture:
    """Who holds which slot."""
    rows = []
    for slot in sorted({*given["slot_of"].values(), *given["cached"]}):
        names = [r for r, s in given["slot_of"].items() if s == slot]
        shared = slot in given["cached"]
        cells = [Cell(0, 1, "s", "cache")] if shared else []
        cells += [
            Cell(i, i + 1, "kv", f"{n} writes" if n in given["writers"] else f"{n} reads")
            for i, n in enumerate(names, start=len(cells))
        ]
        rows.append(Row(f"slot {slot}", tuple(cells)))
    for title, order in (("copy first", expected), ("yours", got)):
        if order is not None:
            cells = [Cell(i, i + 1, "free", name) for i, name in enumerate(order)]
            rows.append(Row(title, tuple(cells)))
    return Rows(tuple(rows), "holders")


EXERCISE = Exercise(
    number=12,
    title="Who must copy before writing",
    level=1,
    notebook="07_cow_snapshot_donate",
    function="needs_copy",
    statement="""
        The next token overwrites a recurrent state in place. Write
        `needs_copy(slot_of, writers, cached)`: which of the `writers` must copy their state into a
        slot of their own first, in the order in which they write.

        * A slot in `cached` is a checkpoint: shared and read-only, whoever reads it.
        * Several requests may hold one slot. A request may write in place only if nobody else holds
          the slot *at that moment*.
        * Who has copied holds the old slot no longer. So the last one may stay.
    """,
    cases=_cases,
    expected=expected,
    hints=(
        "Count how many requests hold each slot before the step; some of them may only read.",
        "Go through the writers in order. A copy lowers the count of the old slot.",
        "Copy if `slot in cached or readers[slot] > 1`; a checkpoint's count makes no difference.",
    ),
    picture=picture,
)
