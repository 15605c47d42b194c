"""The triangular solve inside a chunk, as a Triton kernel, run by Triton's interpreter."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

from kdalab.errors import KdalabError, shown
from kdalab.exercises.draws import WHOLE, tensor
from kdalab.exercises.exercise import Exercise, Given
from kdalab.viz.answers import Heats, Picture

if TYPE_CHECKING:
    import torch

_GUARD = 64  # numbers before and after X that nobody may touch
_MARK = 12345.0


@st.composite
def _cases(draw: st.DrawFn) -> Given:
    G, N, D = (
        draw(st.integers(1, 2)),
        draw(st.sampled_from([2, 4])),
        draw(st.sampled_from([1, 2])),
    )
    return {
        "A": tensor(draw, (G, N, N), WHOLE, "float32"),
        "B": tensor(draw, (G, N, D), WHOLE, "float32"),
    }


def larger() -> tuple[Given, ...]:
    """A chunk of 16 tokens with numbers everywhere, and 32 tokens of one key, written in full.

    In the second the inverse holds nothing but 1 and -1, and the powers of L reach 10^8: who adds
    them up loses every digit of float32.
    """
    import torch

    i, j = torch.arange(16.0)[:, None], torch.arange(16.0)[None, :]
    mixed = ((3 * i + 5 * j) % 7 - 3) / 8
    return (
        {"A": mixed[None].clone(), "B": ((i + 2 * j[:, :2]) % 5 - 2)[None].clone()},
        {"A": torch.ones(1, 32, 32), "B": torch.ones(1, 32, 1)},
    )


def expected(A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
    """torch's own solver, in float64."""
    import torch

    L = A.double().tril(-1)
    unit = torch.eye(A.shape[-1], dtype=torch.float64)
    found: torch.Tensor = torch.linalg.solve(unit + L, B.double())
    return found.float()


def launched(kernel: Any) -> Callable[..., Any]:
    """The kernel as a function of A and B; None as long as it writes nothing."""
    if not hasattr(kernel, "__getitem__"):
        raise KdalabError(f"{shown(kernel)} is no Triton kernel; write @triton.jit above it")

    def solve(A: torch.Tensor, B: torch.Tensor) -> torch.Tensor | None:
        import torch

        G, N, D = B.shape
        buffer = torch.full((B.numel() + 2 * _GUARD,), _MARK)
        X = buffer[_GUARD:-_GUARD].view(G, N, D)
        X.fill_(float("nan"))
        kernel[(G,)](A, B, X, N, D)
        if (buffer[:_GUARD] != _MARK).any() or (buffer[-_GUARD:] != _MARK).any():
            raise IndexError("the kernel wrote outside of X: check the offsets and the mask")
        return None if bool(X.isnan().all()) else X.clone()

    return solve


def missing() -> str:
    """Triton has wheels for Linux only."""
    if find_spec("triton") is not None:
        return ""
    return "needs Triton, which is not installed here (Linux: pip install 'triton>=3.6')"


def picture(given: Given, expected: Any, got: Any) -> Picture:
    """The first system, and both solutions."""
    parts = [("A", given["A"][0]), ("B", given["B"][0]), ("X", expected[0])]
    if got is not None:
        parts.append(("your X", got[0]))
    return Heats(tuple(parts))


EXERCISE = Exercise(
    number=5,
    title="The solve inside a chunk",
    level=3,
    notebook="03_triton_kernel",
    function="solve_chunk",
    statement="""
        Inside a chunk every token corrects what the tokens before it have written. This is a
        triangular system, one a chunk and head:

            (I + L_g) X_g = B_g         L_g: A_g strictly below the diagonal

        Write the Triton kernel `solve_chunk(A, B, X, N, D)`. It is launched on a grid of (G,);
        program g solves system g. A is `[G, N, N]`, B and X are `[G, N, D]`, float32, contiguous,
        N and D powers of two and compile-time numbers. On the diagonal of A and above it stand
        numbers that do not belong to L. Write X completely, and nothing else.

        The kernel runs in Triton's interpreter, in a process of its own: no GPU is needed.
    """,
    cases=_cases,
    expected=expected,
    hints=(
        "Row 0 of X is row 0 of B. Row i is row i of B less the sum over j < i of A[i, j] X[j].",
        "Keep all of X in one block of registers `[N, D]`, begin with B, and correct row i in step "
        "i of a loop. Load row i of A with `mask=o_n < i, other=0.0`.",
        "A row of a block is picked by `tl.where(o_n[:, None] == i, new, old)`; the sum over j is "
        "`tl.sum(b_l[:, None] * b_x, axis=0)`.",
    ),
    picture=picture,
    tolerance=1e-4,
    examples=20,
    larger=larger,
    adapt=launched,
    environment={"TRITON_INTERPRET": "1"},
    missing=missing,
)
