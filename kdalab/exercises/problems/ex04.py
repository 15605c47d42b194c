"""Two pieces of text as one. The specification asks what both do to states, one after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

from kdalab.exercises.draws import WHOLE, tensor
from kdalab.exercises.exercise import Exercise, Given
from kdalab.viz.answers import Heats, Picture

if TYPE_CHECKING:
    import torch

    Summary = tuple[torch.Tensor, torch.Tensor]


@st.composite
def _cases(draw: st.DrawFn) -> Given:
    K, V = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    return {
        name: (tensor(draw, (K, K), WHOLE), tensor(draw, (K, V), WHOLE))
        for name in ("first", "second")
    }


def expected(first: Summary, second: Summary) -> Summary:
    """What becomes of the zero state is b; what becomes of each unit vector, less b's, is M."""
    import torch

    def both(S: torch.Tensor, b1: torch.Tensor, b2: torch.Tensor) -> torch.Tensor:
        once = torch.einsum("ij,jv->iv", first[0], S) + b1
        return torch.einsum("ij,jv->iv", second[0], once) + b2

    K = first[0].shape[0]
    none = first[1].new_zeros(K, K)
    M = both(torch.eye(K, dtype=first[0].dtype), none, none)
    return M, both(torch.zeros_like(first[1]), first[1], second[1])


def picture(given: Given, expected: Any, got: Any) -> Picture:
    """M and b, as they should be and as they are."""
    parts = [("M", expected[0]), ("b", expected[1])]
    if got is not None:
        parts += [("your M", got[0]), ("your b", got[1])]
    return Heats(tuple(parts))


EXERCISE = Exercise(
    number=4,
    title="Join two summaries",
    level=2,
    notebook="02_recurrence_and_chunks",
    function="compose",
    statement="""
        A piece of text does one thing to any state S `[K, V]`: it turns it into `M S + b`, with M
        `[K, K]` and b `[K, V]`. Write `compose(first, second)`, which takes two such pairs `(M, b)`
        of neighbouring pieces and returns the pair of both together: for every S

            M S + b  =  M2 (M1 S + b1) + b2
    """,
    cases=_cases,
    expected=expected,
    hints=(
        "Put the first map into the second, and multiply out.",
        "What stands before S is the new M. What is left, without S, is the new b.",
        "Matrices do not commute: `M2 @ M1`, and `M2 @ b1 + b2`.",
    ),
    picture=picture,
    tolerance=1e-9,
    parts=("M", "b"),
    examples=100,
)
