"""A checkpoint in INT8. The specification is the project's op."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

from kdalab.exercises.compare import first_difference
from kdalab.exercises.draws import tensor
from kdalab.exercises.exercise import Exercise, Given
from kdalab.viz.answers import Heats, Picture

if TYPE_CHECKING:
    import torch

_VALUES = (0.0, 1.0, -1.0, 0.3, -0.7, 12.5, -127.0, 1000.0)


@st.composite
def _cases(draw: st.DrawFn) -> Given:
    shape = [draw(st.integers(1, 2)), draw(st.integers(1, 3)), draw(st.integers(1, 3))]
    return {"state": tensor(draw, shape, _VALUES, "float32")}


def expected(state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """:func:`kdalab_kernels.quantize_states`."""
    import torch

    from kdalab_kernels import quantize_states

    kept = quantize_states(state, torch.float32, backend="reference")
    return kept.q, kept.scale, kept.scale / 2


def judge(given: Given, expected: Any, got: Any) -> str | None:
    """As the op; but a number in the middle between two steps may go either way."""
    import torch

    names = ("q", "scale", "bound")
    for name, mine, yours in zip(names, expected, got, strict=True):
        form = first_difference(torch.zeros_like(mine), torch.zeros_like(yours))
        if form is not None:
            return f"{name}: {form}"
    for name, mine, yours in zip(names[1:], expected[1:], got[1:], strict=True):
        if not bool(((mine - yours).abs() <= 1e-6 * mine).all()):
            return f"{name}: {first_difference(mine, yours) or 'not a number'}"
    q, scale, bound = got
    off = (given["state"] - q.float() * scale).abs()
    if bool((off > bound * (1 + 1e-4)).any()):
        return first_difference(expected[0], q) or "off by more than the bound"
    return None


def picture(given: Given, expected: Any, got: Any) -> Picture:
    """State and INT8 of the first head that differs, each over its largest number."""
    head = 0
    if got is not None:
        differ = (expected[0] != got[0]).flatten(1).any(dim=1).tolist()
        head = differ.index(True) if True in differ else 0
    parts = [("state [V, K] / largest", given["state"][head]), ("q / 127", expected[0][head])]
    if got is not None:
        parts.append(("your q / 127", got[0][head]))
    largest = float(given["state"][head].abs().max()) or 1.0
    return Heats(
        tuple((name, m.float() / (largest if i == 0 else 127)) for i, (name, m) in enumerate(parts))
    )


EXERCISE = Exercise(
    number=14,
    title="A state in INT8",
    level=2,
    notebook="08_int8_checkpoints",
    function="quantise",
    statement="""
        The decay acts on each k-channel of a head as a whole, so its V numbers are of one
        magnitude and share a scale. Write `quantise(state)` for a float32 state `[H, V, K]`:

            scale = max(max over V of |state|, 1e-8) / 127      [H, 1, K] float32
            q     = round(state / scale), -127 .. 127            [H, V, K] int8
            bound                                                [H, 1, K] float32

        `bound` is the smallest number such that `|state - q * scale| <= bound` whatever the state
        of that scale: the worst that rounding can do. A channel of zeros stays exactly 0.
    """,
    cases=_cases,
    expected=expected,
    hints=(
        "Which axis has one scale for all of its numbers? Keep it, with size 1.",
        "`state.abs().amax(dim=-2, keepdim=True).clamp(min=1e-8) / 127`.",
        "Rounding to the nearest is off by at most half a step, and a step is one scale.",
    ),
    picture=picture,
    judge=judge,
    examples=100,
)
