"""What does a prompt weigh in the cache, at a checkpoint every so many tokens?"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from kdalab.cache import parse_placement
from kdalab.exercises.exercise import Exercise, Given
from kdalab.viz.answers import Cell, Picture, Row, Rows


@st.composite
def _cases(draw: st.DrawFn) -> Given:
    return {
        "n_tokens": draw(st.integers(0, 40)),
        "latent_bytes_per_token": draw(st.integers(1, 9)),
        "checkpoint_bytes": draw(st.integers(1, 500)),
        "interval": draw(st.integers(1, 12)),
    }


def boundaries(n_tokens: int, interval: int) -> tuple[int, ...]:
    """Where the cache's own placement ``every:N`` puts checkpoints."""
    return parse_placement(f"every:{interval}").boundaries(n_tokens, 0, None, 1)


def expected(
    n_tokens: int, latent_bytes_per_token: int, checkpoint_bytes: int, interval: int
) -> int:
    """Token by token, checkpoint by checkpoint."""
    latent = sum(latent_bytes_per_token for _ in range(n_tokens))
    return latent + sum(checkpoint_bytes for _ in boundaries(n_tokens, interval))


def picture(given: Given, expected: int, got: Any) -> Picture:
    """The prompt with its checkpoints."""
    n = given["n_tokens"]
    cells = (Cell(0, n, "kv", f"latent KV, tokens: {n}"),) if n else ()
    at = boundaries(n, given["interval"])
    count = f"{len(at)} checkpoint{'' if len(at) == 1 else 's'}"
    rows = [
        Row("prompt", cells),
        Row(count, states=at),
        Row(f"expected: {expected:,} bytes"),
    ]
    if isinstance(got, int):
        rows.append(Row(f"yours: {got:,} bytes"))
    return Rows(tuple(rows))


EXERCISE = Exercise(
    number=2,
    title="Bytes of a request",
    level=1,
    notebook="01_mental_model",
    function="bytes_of_request",
    statement="""
        Write `bytes_of_request(n_tokens, latent_bytes_per_token, checkpoint_bytes, interval)`: the
        bytes that a prompt of `n_tokens` leaves in the cache. Latent KV grows with every token; a
        checkpoint is kept at `interval`, `2 * interval`, ... up to and including `n_tokens`. There
        is none at 0.
    """,
    cases=_cases,
    expected=expected,
    hints=(
        "How many multiples of the interval are there from 1 to n_tokens?",
        "A prompt of 10 tokens and an interval of 5 leave checkpoints at 5 and 10.",
        "`n_tokens // interval` checkpoints, and n_tokens tokens of latent KV.",
    ),
    picture=picture,
)
