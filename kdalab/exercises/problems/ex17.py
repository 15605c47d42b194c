"""How large must a block be so that its attention page holds a state?"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from kdalab.cache import CacheSpec, Group, GroupKind, attention_block, padded_layout
from kdalab.exercises.exercise import Exercise, Given
from kdalab.viz.answers import Picture, number_rows


def cases() -> st.SearchStrategy[Given]:
    """Small numbers, and Kimi K3 on 8 ranks."""
    names = ("attention_bytes_per_token", "state_bytes", "multiple")
    small = st.tuples(st.integers(1, 20), st.integers(1, 600), st.sampled_from([1, 4, 16]))
    return st.tuples(small, st.integers(0, 9)).map(
        lambda drawn: dict(
            zip(names, (576, 814_080, 128) if drawn[1] == 9 else drawn[0], strict=True)
        )
    )


def expected(attention_bytes_per_token: int, state_bytes: int, multiple: int) -> tuple[int, int]:
    """The project's padded layout of two layers, and the padding that it counts."""
    tokens = attention_block(state_bytes, attention_bytes_per_token, multiple)
    full = Group("full", CacheSpec(GroupKind.FULL, tokens, token_bytes=attention_bytes_per_token))
    state = CacheSpec(GroupKind.STATE, tokens, recurrent_bytes=state_bytes)
    layout = padded_layout((full, Group("state", state, (1,))))
    return tokens, layout.page_padding(1)


def picture(given: Given, expected: tuple[int, int], got: Any) -> Picture:
    """The state, and the pages that should hold it."""
    token = given["attention_bytes_per_token"]
    bars = [("a state", given["state_bytes"]), (f"{expected[0]} tokens", expected[0] * token)]
    if got is not None:
        bars.append((f"yours: {got[0]} tokens", got[0] * token))
    return number_rows("bytes", *bars)


EXERCISE = Exercise(
    number=17,
    title="A block that holds a state",
    level=1,
    notebook="10_groups_and_layouts",
    function="padded_block",
    statement="""
        In the padded layout all pages have one size. An attention page grows by taking more tokens,
        so the block grows until its page holds a state; then the state's page is padded up to that.
        Write `padded_block(attention_bytes_per_token, state_bytes, multiple)`:

            tokens  the fewest tokens, a multiple of `multiple`, with
                    tokens * attention_bytes_per_token >= state_bytes
            wasted  tokens * attention_bytes_per_token - state_bytes, in bytes
    """,
    cases=cases,
    expected=expected,
    hints=(
        "How many bytes does the page grow by when the block takes `multiple` more tokens?",
        "Round the number of such steps up, not the number of tokens.",
        "`steps = -(-state_bytes // (multiple * attention_bytes_per_token))`.",
    ),
    picture=picture,
)
