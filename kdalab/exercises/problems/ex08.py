"""The restore point of a path. The specification is a lookup in ``RadixStateCache``."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from kdalab.cache import Checkpoint, PrefixKey, RadixStateCache
from kdalab.exercises.exercise import Exercise, Given
from kdalab.exercises.values import PathNode
from kdalab.viz.answers import Cell, Flag, Picture, Row, Rows


@st.composite
def _cases(draw: st.DrawFn) -> Given:
    page = draw(st.sampled_from([1, 2, 4]))
    n_nodes = draw(st.integers(1, 4))  # drawn apart: that fewer nodes are drawn is tried first
    sizes = [draw(st.integers(1, 3)) for _ in range(n_nodes)]
    path, start = [], 0
    for i, pages in enumerate(sizes):
        tokens = pages * page
        part = draw(st.integers(1, tokens)) if i == len(sizes) - 1 else tokens
        path.append(PathNode(start + tokens, part, draw(st.booleans())))
        start += tokens
    matched = sum(n.matched for n in path)
    return {"path": path, "n_tokens": matched + draw(st.integers(0, 2 * page)), "page": page}


def expected(path: list[PathNode], n_tokens: int, page: int) -> int:
    """Build the path in a cache, take the tombstones' states away, and look the prompt up."""
    end = path[-1].end
    known = list(range(1, end + 1))
    cache = RadixStateCache(page, page)
    key = PrefixKey.from_tokens(known, page)
    lease = cache.acquire(cache.lookup(key))
    for slot, node in enumerate(path):
        pages = tuple(range(lease.boundary // page, node.end // page))
        lease = cache.commit(lease, key, pages, Checkpoint(slot, node.end)).lease
    cache.release(lease)
    has_state = {n.end for n in path if n.has_state}
    for kept in list(cache.nodes.values()):
        if kept is not cache.root and kept.end not in has_state:
            cache.drop_state(kept)
    same = sum(n.matched for n in path)
    prompt = known[:same] + [0] * (n_tokens - same)
    return cache.lookup(PrefixKey.from_tokens(prompt, page)).restore


def picture(given: Given, expected: int, got: Any) -> Picture:
    """The path's nodes with their states, and the prompt."""
    path, start, cells = given["path"], 0, []
    for i, node in enumerate(path):
        cells.append(Cell(start, node.end, "kv", f"node {i + 1}"))
        start = node.end
    same = sum(n.matched for n in path)
    flags = [Flag(expected, f"restore {expected}")]
    if isinstance(got, int) and got != expected:
        flags.append(Flag(got, f"yours {got}", good=False))
    new = (Cell(same, given["n_tokens"], "free", "new"),) if given["n_tokens"] > same else ()
    ends = [(n.end, n.has_state) for n in path]
    return Rows(
        (
            Row("prompt", (Cell(0, same, "c", "known"), *new), flags=tuple(flags)),
            Row(
                "path",
                tuple(cells),
                tuple(e for e, has in ends if has),
                tuple(e for e, has in ends if not has),
            ),
        )
    )


EXERCISE = Exercise(
    number=8,
    title="Where the path can be restored",
    level=2,
    notebook="05_radix_tree",
    function="restore_node",
    statement="""
        A prompt walks down the radix tree. Write `restore_node(path, n_tokens, page)`: the boundary
        (tokens) of the deepest node at which it can be restored. `path` are `PathNode`s, top first:
        `end` is a node's boundary, `matched` how many tokens of its edge the prompt shares,
        `has_state` whether a checkpoint stands at its end (without one it is a tombstone).

        A node serves if the prompt shares its edge *completely*, if it has a state, and if at least
        one of the prompt's `n_tokens` is left to compute. Tombstones on the way do no harm. If no
        node serves, the answer is 0.
    """,
    cases=_cases,
    expected=expected,
    hints=(
        "Do not stop at the first tombstone: there may be a state below it.",
        "A state stands at the end of an edge. What if the prompt parts in the middle of it?",
        "Remember the last node with `matched == end - start`, a state, and `end < n_tokens`.",
    ),
    picture=picture,
)
