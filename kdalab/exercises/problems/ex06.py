"""Where can a prompt be restored, if each kind of state is available at its own boundaries?"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from kdalab.exercises.exercise import Exercise, Given
from kdalab.viz.answers import Cell, Flag, Picture, Row, Rows


@st.composite
def _cases(draw: st.DrawFn) -> Given:
    page = draw(st.sampled_from([1, 2, 4]))
    n = draw(st.integers(1, 16))
    places = st.lists(st.integers(1, 16), max_size=6, unique=True)
    return {
        "token_match": draw(st.integers(0, n)),
        "kv_boundaries": draw(places),
        "state_boundaries": draw(places),
        "n_tokens": n,
        "page": page,
    }


def expected(
    token_match: int,
    kv_boundaries: list[int],
    state_boundaries: list[int],
    n_tokens: int,
    page: int,
) -> int:
    """Go back from the last boundary that leaves a token, one token at a time."""
    for b in range(n_tokens - 1, 0, -1):
        if b in kv_boundaries and b in state_boundaries and b <= token_match and not b % page:
            return b
    return 0


def picture(given: Given, expected: int, got: Any) -> Picture:
    """The prompt, what each kind has, and both restore points."""
    n, match = given["n_tokens"], given["token_match"]
    flags = [Flag(expected, f"restore {expected}")]
    if isinstance(got, int) and got != expected:
        flags.append(Flag(got, f"yours {got}", good=False))
    known = (Cell(0, match, "kv", "known"),) if match else ()
    new = (Cell(match, n, "free", "new"),) if n > match else ()
    return Rows(
        (
            Row("prompt", known + new, flags=tuple(flags)),
            Row("latent KV at", flags=tuple(Flag(b, "KV") for b in given["kv_boundaries"])),
            Row("states at", states=tuple(given["state_boundaries"])),
        )
    )


EXERCISE = Exercise(
    number=6,
    title="The longest joint boundary",
    level=1,
    notebook="04_joint_boundaries",
    function="joint_boundary",
    statement="""
        Each kind of state is available at some boundaries. Write
        `joint_boundary(token_match, kv_boundaries, state_boundaries, n_tokens, page)`: the largest
        boundary b (tokens) with

        * b in `kv_boundaries` and b in `state_boundaries`,
        * b <= `token_match`: beyond it the text is another,
        * b < `n_tokens`: at least one token is computed, because a state gives no logits,
        * b a multiple of `page`.

        If nothing fits, the answer is 0: the empty prefix is always available.
    """,
    cases=_cases,
    expected=expected,
    hints=(
        "A boundary counts only if every kind has it: which operation on sets is that?",
        "Two limits cut the candidates: the match may be reached, the prompt's end may not.",
        "`max((b for b in ... if ...), default=0)` over the boundaries in both lists.",
    ),
    picture=picture,
)
