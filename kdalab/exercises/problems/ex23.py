"""Send a state, or compute it again? The specification compares exact times."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from hypothesis import strategies as st

from kdalab.exercises.exercise import Exercise, Given
from kdalab.spec import preset, state_sizes
from kdalab.viz.answers import Picture, number_rows


@st.composite
def _cases(draw: st.DrawFn) -> Given:
    if draw(st.integers(0, 4)) < 4:
        numbers = (draw(st.integers(0, 60)), draw(st.integers(0, 50)), draw(st.integers(0, 9)))
        rates = (draw(st.integers(1, 40)), draw(st.integers(1, 9)))
    else:
        sizes = state_sizes(preset("kimi-linear-48b"))
        numbers = (
            draw(st.integers(0, 60_000)),
            sizes.checkpoint_bytes,
            sizes.latent_bytes_per_token,
        )
        rates = (draw(st.sampled_from([10**9, 10**10, 5 * 10**7])), 20_000)
    names = (
        "tokens",
        "state_bytes",
        "latent_bytes_per_token",
        "bandwidth",
        "prefill_rate",
    )
    return dict(zip(names, (*numbers, *rates), strict=True))


def seconds(given: Given, n: int) -> tuple[Fraction, Fraction]:
    """Seconds to send n tokens and the state, and to compute them."""
    nbytes = given["state_bytes"] + n * given["latent_bytes_per_token"]
    return Fraction(nbytes, given["bandwidth"]), Fraction(n, given["prefill_rate"])


def expected(**given: int) -> tuple[str, int]:
    """Find a length at which sending is quicker by doubling, then halve the range."""
    token = Fraction(given["latent_bytes_per_token"], given["bandwidth"])
    if token >= Fraction(1, given["prefill_rate"]):
        return "replay", -1  # every token more costs sending at least as much

    def ships(n: int) -> bool:
        send, compute = seconds(given, n)
        return send < compute

    low, high = 0, 1
    while not ships(high):
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if ships(middle) else (middle, high)
    return ("ship" if ships(given["tokens"]) else "replay"), high


def picture(given: Given, expected: tuple[str, int], got: Any) -> Picture:
    """Both times for these tokens."""
    send, compute = seconds(given, given["tokens"])
    return number_rows("seconds", ("ship", float(send)), ("replay", float(compute)))


EXERCISE = Exercise(
    number=23,
    title="Ship or replay",
    level=1,
    notebook="13_moving_state",
    function="ship_or_replay",
    statement="""
        Sending a prefix of n tokens takes `(state_bytes + n * latent_bytes_per_token) / bandwidth`
        seconds; computing it again takes `n / prefill_rate`. Write
        `ship_or_replay(tokens, state_bytes, latent_bytes_per_token, bandwidth, prefill_rate)`. It
        returns "ship" or "replay" for these `tokens` ("replay" if both take equally long), and the
        fewest tokens for which sending is quicker, -1 if there are none however long the prefix.
    """,
    cases=_cases,
    expected=expected,
    hints=(
        "The state is sent once, whatever the length: a fixed cost. What does each token gain?",
        "Multiply the inequality by bandwidth and prefill_rate: all numbers stay whole.",
        "n * (bandwidth - prefill_rate * latent) > prefill_rate * state: the fewest such n is the "
        "quotient rounded down, plus 1; there is none if the factor is not above 0.",
    ),
    picture=picture,
)
