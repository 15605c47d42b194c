"""A conv state for another number of ranks. The specification is the project's op."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

from kdalab.exercises.exercise import Exercise, Given
from kdalab.viz.answers import Cell, Picture, Row, Rows

if TYPE_CHECKING:
    import torch


@st.composite
def _cases(draw: st.DrawFn) -> Given:
    import torch

    size = draw(st.integers(1, 4))
    q = size * draw(st.integers(1, 2))
    dims = (q, q, size * draw(st.integers(1, 3)))
    rows = draw(st.integers(1, 3))
    conv = torch.arange(1.0, 1 + rows * sum(dims)).reshape(rows, sum(dims))
    return {"conv": conv, "rank": draw(st.integers(0, size - 1)), "size": size, "dims": dims}


def expected(conv: torch.Tensor, rank: int, size: int, dims: tuple[int, int, int]) -> torch.Tensor:
    """:func:`kdalab_kernels.reslice_conv`, which moves states from any number of ranks to any."""
    from kdalab_kernels import reslice_conv

    return reslice_conv([conv], dims, size, rank)


def picture(given: Given, expected: Any, got: Any) -> Picture:
    """Channels of the first row, by the number that stands in them."""
    rows, at = [], 0
    for name, look, width in zip("qkv", ("kv", "s", "c"), given["dims"], strict=True):
        rows.append(Row(f"whole model, {name}", (Cell(at, at + width, look, name),)))
        at += width
    for title, found in (("the rank's", expected), ("yours", got)):
        if found is not None:
            numbers = found[0].tolist()
            cells = tuple(Cell(v - 1, v, "free", f"{v:g}") for v in numbers)
            rows.append(Row(title, cells))
    return Rows(tuple(rows), "channels")


EXERCISE = Exercise(
    number=22,
    title="One rank's conv state",
    level=2,
    notebook="13_moving_state",
    function="reslice",
    statement="""
        A rank holds some heads: the channels of q, of k and of v that belong to them. The conv
        state of the whole model is `[W - 1, D]`, a row being `q | k | v` with `dims` channels each.
        Write `reslice(conv, rank, size, dims)`: what rank `rank` of `size` holds,
        `[W - 1, D / size]`, again in the order q, k, v. A state that was cut in the wrong place has
        the right shape, and gives wrong text without an error.
    """,
    cases=_cases,
    expected=expected,
    hints=(
        "Cutting the row itself into `size` pieces would give rank 0 nothing but q.",
        "Split the row by `dims` first; then each part into `size` equal runs.",
        "`conv.split(dims, dim=-1)`, `part.chunk(size, dim=-1)[rank]`, `torch.cat`.",
    ),
    picture=picture,
)
