"""How many tokens of latent KV weigh as much as one checkpoint?"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from kdalab.exercises.exercise import Exercise, Given
from kdalab.spec import PRESETS, state_sizes
from kdalab.viz.answers import Picture, number_rows


def cases() -> st.SearchStrategy[Given]:
    """Small numbers, and the real models."""
    sizes = [state_sizes(spec) for spec in PRESETS.values()]
    real = [(s.checkpoint_bytes, s.latent_bytes_per_token) for s in sizes]

    def pick(drawn: tuple[int, int, int]) -> Given:
        which, checkpoint, token = drawn
        pair = real[which - 6] if which > 5 and min(real[which - 6]) > 0 else (checkpoint, token)
        return {"checkpoint_bytes": pair[0], "latent_bytes_per_token": pair[1]}

    numbers = (st.integers(0, 5 + len(real)), st.integers(1, 400), st.integers(1, 40))
    return st.tuples(*numbers).map(pick)


def expected(checkpoint_bytes: int, latent_bytes_per_token: int) -> int:
    """Halve the range in which the number lies until one is left."""
    low, high = 0, checkpoint_bytes
    while low < high:
        middle = (low + high) // 2
        if middle * latent_bytes_per_token >= checkpoint_bytes:
            high = middle
        else:
            low = middle + 1
    return low


def _tokens(n: int) -> str:
    return f"{n:,} token{'' if n == 1 else 's'}"


def picture(given: Given, expected: int, got: Any) -> Picture:
    """The checkpoint, and both numbers of tokens, in bytes."""
    token = given["latent_bytes_per_token"]
    bars = [
        ("one checkpoint", given["checkpoint_bytes"]),
        (_tokens(expected), expected * token),
    ]
    if isinstance(got, int):
        bars.append((f"yours: {_tokens(got)}", got * token))
    return number_rows("bytes", *bars)


EXERCISE = Exercise(
    number=1,
    title="One checkpoint in tokens",
    level=1,
    notebook="01_mental_model",
    function="equal_tokens",
    statement="""
        A checkpoint has one size, whatever the boundary; latent KV grows by the token. Write
        `equal_tokens(checkpoint_bytes, latent_bytes_per_token)`: the number of tokens whose latent
        KV weighs as much as one checkpoint, rounded up to a whole token. All sizes are in bytes.
    """,
    cases=cases,
    expected=expected,
    hints=(
        "How many tokens fit into the checkpoint's bytes, and is there a rest?",
        "A rest, however small, takes one more token: divide and round up.",
        "`-(-a // b)` rounds up in whole numbers; `a // b + 1` is wrong when nothing is left over.",
    ),
    picture=picture,
)
