"""One step of the recurrence. The specification is that of the kernels, in float64."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

from kdalab.exercises.draws import WHOLE, tensor
from kdalab.exercises.exercise import Exercise, Given
from kdalab.viz.answers import Heats, Picture

if TYPE_CHECKING:
    import torch


@st.composite
def _cases(draw: st.DrawFn) -> Given:
    K, V = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    return {
        "S": tensor(draw, (K, V), WHOLE),
        "q": tensor(draw, (K,), WHOLE),
        "k": tensor(draw, (K,), WHOLE),
        "v": tensor(draw, (V,), WHOLE),
        "decay": tensor(draw, (K,), (1.0, 0.5, 0.25)),
        "beta": draw(st.sampled_from([0.0, 1.0, 0.5])),
    }


def expected(
    S: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    decay: torch.Tensor,
    beta: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """:func:`kdalab_kernels.naive_recurrent_kda` on one token of one head."""
    import torch

    from kdalab_kernels import naive_recurrent_kda

    o, after = naive_recurrent_kda(
        q[None, None, None],
        k[None, None, None],
        v[None, None, None],
        decay.log()[None, None, None],
        torch.tensor([[[beta]]], dtype=torch.float64),
        scale=1.0,
        initial_state=S[None, None],
        output_final_state=True,
    )
    assert after is not None
    return o[0, 0, 0], after[0, 0]


def picture(given: Given, expected: Any, got: Any) -> Picture:
    """The state before, and after it as it should be and as it is."""
    parts = [("S before", given["S"]), ("S after", expected[1]), ("o", expected[0][None])]
    if got is not None:
        parts += [("your S", got[1]), ("your o", got[0][None])]
    return Heats(tuple(parts))


EXERCISE = Exercise(
    number=3,
    title="One step of the recurrence",
    level=2,
    notebook="02_recurrence_and_chunks",
    function="kda_step",
    statement="""
        Write `kda_step(S, q, k, v, decay, beta)`, one token of one head in float64, with the state
        S a matrix `[K, V]`:

            S~ = Diag(decay) S                 every k-channel fades by its own factor
            d  = beta * (v - S~^T k)           what the state does not yet say about k
            S' = S~ + k d^T                    write it
            o  = S'^T q                        read

        Return `(o, S')`, shapes `[V]` and `[K, V]`. Leave the S that you were given as it is.
    """,
    cases=_cases,
    expected=expected,
    hints=(
        "Four lines, in the order of the formula: what is written depends on the decayed state.",
        "`decay` belongs to the rows of S: `decay[:, None] * S`. S~^T k is `k @ S`.",
        "The token reads the state after its own write: `q @ S` comes last.",
    ),
    picture=picture,
    tolerance=1e-9,
    parts=("o", "S"),
    examples=100,
)
