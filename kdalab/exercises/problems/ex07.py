"""What goes where when a node of the radix tree is cut? The specification is the project's tree."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from kdalab.cache import Checkpoint
from kdalab.cache.node import Node
from kdalab.cache.tree import RadixTree
from kdalab.exercises.exercise import Exercise, Given
from kdalab.exercises.values import Edge
from kdalab.viz.answers import Cell, Picture, Row, Rows


@st.composite
def _cases(draw: st.DrawFn) -> Given:
    page = draw(st.sampled_from([1, 2, 4]))
    count = draw(st.integers(2, 4))
    cut = draw(st.integers(1, count - 1))
    start = page * draw(st.integers(0, 2))
    first = draw(st.integers(1, 100))
    state = draw(st.none() | st.integers(0, 7))
    kv_lock = draw(st.integers(0, 3))
    state_lock = draw(st.integers(0, kv_lock)) if state is not None else 0
    children = draw(st.lists(st.integers(150, 200), max_size=2, unique=True))
    edge = Edge(
        start,
        tuple(range(first, first + count * page)),
        tuple(range(10, 10 + count)),
        state,
        kv_lock,
        state_lock,
        tuple(children),
    )
    return {"node": edge, "n": cut * page}


def expected(node: Edge, n: int) -> tuple[Edge, Edge]:
    """Build the node in a :class:`~kdalab.cache.tree.RadixTree`, let it split, and read both."""
    page = len(node.tokens) // len(node.pages)
    tree = RadixTree(page, page)
    tree.key_width = page  # one byte a token here
    parent = tree.root
    if node.start:
        parent = tree.add_node(parent, bytes(node.start), range(node.start // page), node.start)
        parent.kv_lock = 1
    lower = tree.add_node(parent, bytes(node.tokens), node.pages, node.end)
    if node.state is not None:
        tree.set_state(lower, Checkpoint(node.state, node.end))
    for first in node.children:
        tree.add_node(lower, bytes([first]) * page, (0,), node.end + page)
    lower.kv_lock, lower.state_lock = node.kv_lock, node.state_lock
    upper, _ = tree.split(lower, n // page)
    return _edge(upper), _edge(lower)


def _edge(node: Node) -> Edge:
    state = None if node.state is None else node.state.slot
    first = tuple(key[0] for key in node.children)
    pages = tuple(node.pages)
    return Edge(node.start, tuple(node.key), pages, state, node.kv_lock, node.state_lock, first)


def _row(name: str, edge: Edge) -> Row:
    page = max(1, len(edge.tokens) // max(1, len(edge.pages)))
    cells = tuple(
        Cell(edge.start + i * page, edge.start + (i + 1) * page, "kv", f"page {p}")
        for i, p in enumerate(edge.pages)
    )
    locks = f"{name}, locks {edge.kv_lock}/{edge.state_lock}"
    end = (edge.end,)
    has_state = edge.state is not None
    return Row(locks, cells, end if has_state else (), () if has_state else end)


def picture(given: Given, expected: tuple[Edge, Edge], got: Any) -> Picture:
    """The edge before, and both halves; locks of KV / of the state."""
    rows = [_row("before", given["node"])]
    rows += [_row(n, e) for n, e in zip(("upper", "lower"), expected, strict=True)]
    if got is not None:
        rows += [_row(n, e) for n, e in zip(("your upper", "your lower"), got, strict=True)]
    return Rows(tuple(rows))


EXERCISE = Exercise(
    number=7,
    title="Split a node",
    level=2,
    notebook="05_radix_tree",
    function="split_node",
    statement="""
        A new prompt agrees with the first `n` tokens of an edge and then parts. The edge is cut.
        Write `split_node(node, n)`, which returns `(upper, lower)`, two `Edge`s:

        An `Edge` has `start` (tokens), `tokens`, `pages`, `state` (a slot, None for a tombstone),
        `kv_lock`, `state_lock` and `children`.

        * tokens and pages are cut after `n` tokens (a whole number of pages), `start` is a position
          in the prompt;
        * the state summarises everything up to the *end* of the old edge;
        * `kv_lock` counts those who read a path *through* a node, `state_lock` those who read its
          state;
        * `children` are the first tokens of the edges below.
    """,
    cases=_cases,
    expected=expected,
    hints=(
        "At which boundary is the old state valid, and which half ends there?",
        "The upper half ends where nobody kept a state: it is a tombstone, with no state lock. Its "
        "only child is the lower half.",
        "Every reader of the lower half reads the upper one on the way: `kv_lock` is copied, "
        "`state` and `state_lock` stay below, and so do the old children.",
    ),
    picture=picture,
)
