"""Where mode ``align`` stops. The specification is the block cache's own ``Stops``."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from kdalab.cache import BlockConfig, BlockRetention, BlockStateCache, plain_groups
from kdalab.exercises.exercise import Exercise, Given
from kdalab.viz.answers import Cell, Picture, Row, Rows


@st.composite
def _cases(draw: st.DrawFn) -> Given:
    n = draw(st.integers(1, 30))
    start = draw(st.integers(0, n - 1))
    block, budget = draw(st.integers(1, 8)), draw(st.integers(1, 20))
    return {"n_prompt": n, "start": start, "block": block, "budget": budget}


def expected(n_prompt: int, start: int, block: int, budget: int) -> list[int]:
    """Ask a :class:`~kdalab.cache.BlockStateCache` for one chunk's end after the other."""
    groups = plain_groups(block, block)
    cache = BlockStateCache(BlockConfig(groups, 2, retention=BlockRetention(None)))
    stops, ends, at = cache.stops(n_prompt, None), [], start
    while at < n_prompt:
        at = stops.chunk_end(at, budget)
        ends.append(at)
    return ends


def _row(title: str, start: int, ends: list[int], block: int) -> Row:
    begins = [start, *ends]
    cells = tuple(Cell(a, b, "kv", f"to {b}") for a, b in zip(begins, ends, strict=False))
    return Row(title, cells, tuple(e for e in ends if e % block == 0))


def picture(given: Given, expected: list[int], got: Any) -> Picture:
    """The chunks, with a state wherever one ends on a block."""
    n, start, block = given["n_prompt"], given["start"], given["block"]
    blocks = tuple(Cell(at, min(at + block, n), "tomb", "") for at in range(0, n, block))
    rows = [Row("blocks", blocks), _row("chunks", start, expected, block)]
    if got is not None:
        rows.append(_row("yours", start, list(got), block))
    return Rows(tuple(rows))


EXERCISE = Exercise(
    number=19,
    title="Where chunks stop",
    level=2,
    notebook="11_partial_hits",
    function="chunk_stops",
    statement="""
        A state exists only where a forward ends, and can be cached only at a multiple of `block`.
        Write `chunk_stops(n_prompt, start, block, budget)`: the ends of all prefill chunks, from
        `start` on. A chunk ends after `budget` tokens or at the prompt's end; but

        1. if it does not reach the prompt's end, it is floored to a block boundary, unless that
           would leave it empty: then it makes progress inside the block;
        2. if it begins inside a block, it stops at the next block boundary at the latest;
        3. it stops at the last block boundary that leaves a token of this prompt to compute: the
           place where just this prompt could be restored.
    """,
    cases=_cases,
    expected=expected,
    hints=(
        "Write the end of one chunk first, and then a loop that goes on from there.",
        "The marks are `(n_prompt - 1) // block * block`, and the next boundary if `start % block`."
        " Only those strictly between start and end matter.",
        "`end = min([end, *(m for m in marks if start < m < end)])`, after flooring.",
    ),
    picture=picture,
)
