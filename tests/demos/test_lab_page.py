"""The lab's page says of each number what it rests on."""

from __future__ import annotations

import pytest

from demos import _lab_tables, lab
from demos._lab_film import LabFilm
from kdalab.units import format_bytes
from kdalab.words import LANGUAGES


@pytest.fixture(scope="module")
def run():
    film = lab.LESSON.play(lab.LESSON.default)
    assert isinstance(film, LabFilm)
    return film.run


@pytest.mark.parametrize("lang", LANGUAGES)
def test_flags_from_a_part_of_a_file_say_so_directly_above_them(run, lang):
    part = LabFilm(run, False, "mine.jsonl", run.requests, 12_031, False)
    shown = part.picture(part.opening, lang)
    before = shown[: shown.index('<div class="kd-copybox">')]
    assert f"{run.requests:,}" in before[before.index('class="kd-bad"') :]
    assert "12,031" in before
    whole = LabFilm(run, False, "mine.jsonl", run.requests, run.requests, False)
    assert 'class="kd-bad"' not in whole.picture(whole.opening, lang)
