"""What the sharing page says of a copy: queued, then made, as its numbers have it."""

from __future__ import annotations

import pytest

from demos.sharing import LESSON


@pytest.mark.parametrize("lang", ["en", "zh", "ko"])
def test_a_copy_is_said_to_be_made_in_the_step_that_counts_it(lang):
    film = LESSON.play(LESSON.default)
    for step in range(1, film.last + 1):
        before, here = film.found.ledgers[step - 1], film.found.ledgers[step]
        made = film.made(step)
        assert len(made) == here.copied - before.copied  # donations copy nothing
        told = film.sentence(step, lang)
        for who in made:
            assert who in told
            assert film.sentence(step, lang).startswith(who)
    queued = film.run.steps[film.opening]
    assert queued.kind == "CopiedOnWrite"
    assert film.found.ledgers[film.opening].copied == 0
