"""Hits inside a block. The specification is the reader of ``BlockStateCache``."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from kdalab.cache import BlockConfig, BlockStateCache, HashChain, PrefixKey, plain_groups
from kdalab.cache.block_pool import Key
from kdalab.exercises.exercise import Exercise, Given
from kdalab.viz.answers import Cell, Flag, Picture, Row, Rows


@st.composite
def _cases(draw: st.DrawFn) -> Given:
    unit, per = draw(st.sampled_from([1, 4])), draw(st.sampled_from([1, 2, 4]))
    hashes = [f"h{i}" for i in range(draw(st.integers(0, 10)))]
    known = draw(st.lists(st.booleans(), min_size=len(hashes), max_size=len(hashes)))
    cached = {h for h, is_known in zip(hashes, known, strict=True) if is_known}
    return {"hashes": hashes, "cached": cached, "block": unit * per, "unit": unit}


def expected(hashes: list[str], cached: set[str], block: int, unit: int) -> int:
    """Give blocks the real names of these hashes, and let the cache look them up."""
    cache = BlockStateCache(BlockConfig(plain_groups(block, block), 40, unit=unit))
    chain = HashChain(PrefixKey.from_tokens(range(len(hashes) * unit), unit), unit)
    for i, name in enumerate(hashes):
        if name in cached:
            (held,) = cache.pool.take(1, 0)
            held.length = (i + 1) * unit
            cache.pool.name(held, Key(chain.hashes[i], (i + 1) * unit), False)
    return cache.reader.full_reach(0, chain)[0]


def picture(given: Given, expected: int, got: Any) -> Picture:
    """The units, known and not, and both answers."""
    unit, block = given["unit"], given["block"]
    units = tuple(
        Cell(i * unit, (i + 1) * unit, "kv" if h in given["cached"] else "free", h)
        for i, h in enumerate(given["hashes"])
    )
    end = len(given["hashes"]) * unit
    blocks = tuple(Cell(at, at + block, "tomb", "block") for at in range(0, end, block))
    flags = [Flag(expected, f"known to {expected}")]
    if isinstance(got, int) and got != expected:
        flags.append(Flag(got, f"yours {got}", good=False))
    return Rows((Row("hashes in the cache", units, flags=tuple(flags)), Row("blocks", blocks)))


EXERCISE = Exercise(
    number=18,
    title="A hit inside a block",
    level=2,
    notebook="11_partial_hits",
    function="fine_probe",
    statement="""
        The KV of a prompt is kept in blocks of `block` tokens; hashes stand for prefixes at every
        `unit` tokens. Write `fine_probe(hashes, cached, block, unit)`: the number of tokens known.

        1. From the left, whole blocks as long as the hash of a block's *last* unit is in `cached`.
        2. Inside the first block that is missing, or cut off by the prompt's end: the highest unit
           whose hash is in `cached`. A hash stands for everything before it, so those below it in
           the block need not be asked.

        Blocks after the first missing one do not count, whatever is known of them.
    """,
    cases=_cases,
    expected=expected,
    hints=(
        "A block has `block // unit` hashes; which of them is its name?",
        "After the last whole block, go through the units of the next one from high to low.",
        "Mind the prompt's end: the last block may have fewer units than others.",
    ),
    picture=picture,
)
