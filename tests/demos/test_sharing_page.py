"""What the sharing page says of a copy: queued, then made, as its numbers have it."""

from __future__ import annotations

import pytest

from demos._text import t
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


@pytest.mark.parametrize("lang", ["en", "zh", "ko"])
def test_the_step_that_reads_a_spoiled_state_says_whose_tokens_are_wrong(lang):
    film = LESSON.play(LESSON.settings({"breaks": ("cow",)}))
    tokens = film.data()["measured"]
    wrong = [m["request"] for m in tokens if m["first_difference"] is not None]
    assert wrong == ["B", "C", "D"]
    said = t(lang, "sharing.wrong-tokens", names="B, C, D")
    assert said in film.why(film.opening, lang)
    whole = LESSON.play(LESSON.default)
    assert not any(said in whole.why(s, lang) for s in range(whole.last + 1))


def test_an_overwritten_slot_tells_what_has_been_written_over_it():
    film = LESSON.play(LESSON.settings({"breaks": ("cow",)}))
    shared = [next(s for s in film.found.slots[i] if s.role == "overwritten") for i in (17, 18)]
    b, c = (len(film.run.texts[name]) - 64 for name in "BC")
    assert [s.over for s in shared] == [b, b + c]
    assert f"64 + {b}" in film.picture(17, "en")
    last = film.found.slots[-1]
    run = sum(m.n_tokens - 64 for m in film.run.measured)
    made = sum(p.max_new_tokens - 1 for p in film.run.scenario.prompts[1:])  # D after B and C
    assert next(s.over for s in last if s.role == "overwritten") == run + made
    assert "share_checkpoint" not in film.picture(17, "en")


@pytest.mark.parametrize(
    ("strategy", "slots", "waits", "skipped"),
    [("copy", 5, False, 1), ("copy", 6, False, 0), ("extra_buffer", 5, True, 0),
     ("extra_buffer", 10, False, 0)],
)  # fmt: skip
def test_the_sum_of_slots_ends_with_what_it_meant(strategy, slots, waits, skipped):
    film = LESSON.play(LESSON.settings({"strategy": strategy, "slots": slots}))
    said = film.why(1, "en")
    assert ("C waits until B has ended" in said) == waits
    assert f"skipped for want of a slot: {skipped}" in said


def test_a_slot_of_two_pools_has_one_name_in_the_sentence_and_over_the_steps():
    film = LESSON.play(LESSON.settings({"strategy": "copy", "slots": 5}))
    assert "checkpoint slot 0" in film.sentence(film.opening, "en")
    assert ">checkpoint 0<" in film.picture(film.opening, "en")
