"""Which layers share a block table? The specification is the project's own grouping."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from kdalab.cache import CacheSpec, GroupKind, group_layers
from kdalab.exercises.exercise import Exercise, Given
from kdalab.viz.answers import Cell, Picture, Row, Rows

Answer = tuple[list[list[int]], int]
_SPECS = (("full", 576), ("state", 4096), ("state", 2048))


def _mix(drawn: tuple[list[int], bool]) -> list[tuple[str, int]]:
    """So many layers of each spec, one after the other or in turn."""
    counts, in_turn = drawn
    each = [[spec] * n for spec, n in zip(_SPECS, counts, strict=True)]
    if not in_turn:
        return [spec for layers in each for spec in layers]
    return [layers[i] for i in range(8) for layers in reversed(each) if i < len(layers)]


def cases() -> st.SearchStrategy[Given]:
    """Mixtures of up to three specs, and Kimi K3's 69 KDA and 24 MLA layers."""
    counts = st.lists(st.integers(0, 8), min_size=3, max_size=3)
    k3 = [_SPECS[0] if i % 4 == 3 or i == 92 else _SPECS[1] for i in range(93)]
    return st.tuples(counts, st.booleans(), st.integers(0, 19)).map(
        lambda drawn: {"specs": k3 if drawn[2] == 19 else _mix(drawn[:2]) or [_SPECS[0]]}
    )


def expected(specs: list[tuple[str, int]]) -> Answer:
    """:func:`kdalab.cache.group_layers`; places are counted layer by layer."""
    made = tuple(
        CacheSpec(GroupKind.FULL, 1, token_bytes=size)
        if kind == "full"
        else CacheSpec(GroupKind.STATE, 1, recurrent_bytes=size)
        for kind, size in specs
    )
    groups = [list(g.layers) for g in group_layers(made)]
    most = max(map(len, groups))
    return groups, len(groups) * most - len(specs)


def picture(given: Given, expected: Answer, got: Any) -> Picture:
    """A row a group, a cell a layer."""
    rows = []
    for title, answer in (("group", expected), ("yours", got)):
        for i, layers in enumerate(answer[0] if answer else []):
            kinds = [given["specs"][layer][0] for layer in layers]
            cells = tuple(
                Cell(n, n + 1, "kv" if kind == "full" else "s", str(layer))
                for n, (layer, kind) in enumerate(zip(layers, kinds, strict=True))
            )
            rows.append(Row(f"{title} {i}", cells))
    return Rows(tuple(rows), "places")


EXERCISE = Exercise(
    number=16,
    title="Cache groups",
    level=2,
    notebook="10_groups_and_layouts",
    function="group_layers",
    statement="""
        A block table serves layers that keep the same. Write `group_layers(specs)`, which returns
        `(groups, empty)`. `specs` are `(kind, page_bytes)`, one a layer.

        1. Put layers of equal spec together.
        2. A block takes the bytes of the largest group, so groups should be of about one size. The
           size is the smallest set's number of layers; but if the largest set has fewer than 1.25
           times as many, it is the largest's.
        3. Cut each set into as few groups as hold that size, and deal its layers out in turn: with
           two groups, layers 0, 2, 4, ... of the set and 1, 3, 5, ...
        4. Attention ("full") comes first, then states; within a kind, in order of appearance.

        `empty` is the number of places without a layer when every group has as many places as the
        largest has layers. (vLLM's rule: 69 KDA and 24 MLA layers make groups of 24, 23, 23, 23.)
    """,
    cases=cases,
    expected=expected,
    hints=(
        "A dict from spec to layers keeps the order of appearance; sorting by kind keeps it too.",
        "The number of groups of a set is its layers over the size, rounded up. Dealing out is "
        "`layers[i::count]`.",
        "`size = most if most < 1.25 * least else least`.",
    ),
    picture=picture,
)
