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


def test_the_sweep_s_table_stars_what_no_other_row_beats(run):
    rows = _lab_tables.sweep_table(run, "en").rows
    assert len(rows) == len(run.rows)
    for row, cells in zip(run.rows, rows, strict=True):
        beaten = any(
            other["memory"] <= row["memory"]
            and other["hit_rate"] >= row["hit_rate"]
            and (other["memory"], -other["hit_rate"]) != (row["memory"], -row["hit_rate"])
            for other in run.rows
            if not other["error"]
        )
        assert not (cells[0] and (beaten or row["error"]))
    assert sum(bool(cells[0]) for cells in rows) == len(run.best) > 0


@pytest.mark.parametrize("lang", LANGUAGES)
def test_captions_name_the_replay_and_the_requests_they_rest_on(run, lang):
    account = _lab_tables.account_table(run, lang).caption
    assert run.setup.model in account
    assert format_bytes(run.setup.memory) in account
    assert run.setup.checkpoints in account
    assert f"{run.requests:,}" in _lab_tables.bounds_table(run, lang).caption
