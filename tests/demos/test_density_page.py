"""What the density page says of the interval that is chosen, against the best of those tried."""

from __future__ import annotations

import pytest

from demos.density import LESSON


@pytest.mark.parametrize("lang", ["en", "zh", "ko"])
@pytest.mark.parametrize(("interval", "is_best"), [(8192, True), (4096, False)])
def test_the_best_interval_is_not_compared_with_itself(lang, interval, is_best):
    film = LESSON.play(LESSON.settings({"interval": interval}))
    points = {p.interval: p.hit_share for p in film.run.tight}
    assert (points[interval] == max(points.values())) is is_best
    said = film.sentence(film.last, lang) + film.why(film.last, lang)
    assert ("18.7" in said) is not is_best
    assert "0.0" not in said.replace("16.00", "")
