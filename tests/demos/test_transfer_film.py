"""The transfer page: a token stands in the picture from the moment that decode has begun."""

from __future__ import annotations

import pytest

from demos.transfer import LESSON


@pytest.mark.parametrize(
    ("breaks", "begins"), [((), "whole"), (("early",), "early"), (("order",), "late")]
)
def test_the_first_token_is_there_when_decode_begins_and_not_before(breaks, begins):
    film = LESSON.play(LESSON.settings({"breaks": breaks}))
    keys = [key for key, _ in film.steps]
    first = f">[{film.run.generated[0]}]<"
    shown = [first in film.picture(step, "en") for step in range(film.last + 1)]
    assert shown == [step >= keys.index(begins) for step in range(film.last + 1)]
