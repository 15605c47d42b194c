"""The modes page keeps a state at every block in mode all, unless its visitor says otherwise."""

from __future__ import annotations

import pytest

from demos.modes import LESSON


@pytest.mark.parametrize(
    ("given", "states"),
    [
        ({"mode": "all"}, (256, 512, 768)),
        ({"mode": "all", "shared": 90}, (256, 512, 768)),
        ({"mode": "all", "retention": "reachable"}, (768,)),
        ({}, (960,)),
        ({"retention": "dense"}, (512, 768, 960)),
    ],
)
def test_what_is_kept_follows_the_mode_until_it_is_chosen(given, states):
    film = LESSON.play(LESSON.settings(given))
    assert film.run.results[0].states == states
    told = " ".join(film.sentence(i, "en") + film.why(i, "en") for i in range(film.last + 1))
    assert ("asked for or not" in told) == (states == (256, 512, 768))
    assert ("Kept by retention 0" in told) == (given.get("retention") == "reachable")
