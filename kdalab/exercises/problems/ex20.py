"""Which state blocks stay? The specification runs a prompt through ``BlockStateCache``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from kdalab.cache import BlockConfig, BlockRetention, BlockStateCache, PrefixKey, plain_groups
from kdalab.exercises.exercise import Exercise, Given
from kdalab.viz.answers import Cell, Picture, Row, Rows


@st.composite
def _cases(draw: st.DrawFn) -> Given:
    block, n = draw(st.integers(1, 4)), draw(st.integers(1, 24))
    interval = draw(st.none() | st.integers(0, 4))
    return {
        "n_prompt": n,
        "block": block,
        "retention": None if interval is None else interval * block,
        "junction": draw(st.integers(0, n // block)) * block,
    }


def expected(n_prompt: int, block: int, retention: int | None, junction: int) -> list[int]:
    """Prefill a prompt, a block a step, and look which boundaries have a name."""
    groups = plain_groups(block, block)
    cache = BlockStateCache(BlockConfig(groups, 200, retention=BlockRetention(retention)))
    chain = cache.chain(PrefixKey.from_tokens(range(n_prompt), block))
    found = cache.lookup(chain)
    lease = cache.acquire(replace(found, branching=junction or None))
    at = 0
    while at < n_prompt:
        at = cache.chunk_end(lease, block)
        assert cache.allocate(lease, at) is not None
        lease = cache.advance(lease, at)
        cache.step_done()
    cache.release(lease)
    cache.check()
    table = cache.pool.tables[1]
    return [b for b in range(block, n_prompt + 1, block) if chain.at(b) in table]


def picture(given: Given, expected: list[int], got: Any) -> Picture:
    """The prompt's blocks, and the states that stay."""
    n, block = given["n_prompt"], given["block"]
    cells = tuple(Cell(at, min(at + block, n), "kv") for at in range(0, n, block))
    rows = [Row("stay", cells, tuple(expected))]
    if got is not None:
        rows.append(Row("yours", states=tuple(float(b) for b in got)))
    return Rows(tuple(rows))


EXERCISE = Exercise(
    number=20,
    title="Which states stay",
    level=2,
    notebook="12_retention_and_marconi",
    function="kept_blocks",
    statement="""
        A prompt is prefilled block by block, so every block boundary gets a state for a moment.
        Write `kept_blocks(n_prompt, block, retention, junction)`: the boundaries whose states stay.

        * `retention` None: all of them.
        * 0: only what a later lookup can reach. That is the *tail*, the last block boundary that
          leaves a token of this prompt to compute, and the *junction*, which a second prompt was
          seen to share.
        * N > 0: those two, and every multiple of N.

        There is no state at 0, and none beyond the last whole block.
    """,
    cases=_cases,
    expected=expected,
    hints=(
        "The tail of a prompt of 8 tokens in blocks of 4 is 4: at 8 nothing would be left.",
        "`(n_prompt - 1) // block * block` is the tail. List all boundaries, then choose.",
        "A boundary stays if it is the tail or the junction, or if `retention and b % retention == "
        "0`; and with None always.",
    ),
    picture=picture,
)
