"""Every scenario, run for real: what its sentence promises, and that a restore is exact."""

from __future__ import annotations

import dataclasses
import pickle

import pytest
import torch

from kdalab.engine import events as ev
from kdalab.engine.view import fold
from kdalab.lessons import RESTORE, cold_run, lesson_model, scenario
from kdalab.lessons.cold import RunState, max_difference, measure

NAMES = list(RESTORE)


def matched(run, name):
    return next(e for e in run.events if isinstance(e, ev.Matched) and e.request == name)


@pytest.mark.parametrize("name", NAMES)
def test_a_restored_run_is_bit_for_bit_the_run_from_zero(recorded, name):
    for measured in recorded(name).measured:
        assert measured.is_exact, measured
        assert measured.generated == measured.cold_generated
        assert measured.first_difference is None


@pytest.mark.parametrize("fault", ["skip_replay", "drop_conv"])
@pytest.mark.parametrize("name", ["fan-out", "edit", "again"])
def test_an_invariant_switched_off_shows_in_every_number(recorded, name, fault):
    (measured,) = recorded(name, fault).measured
    assert not measured.is_exact
    assert all(value > 0.01 for _, value in measured.rows()), measured.rows()


def test_the_known_text_of_the_fan_out_reaches_beyond_its_checkpoint(recorded):
    match = matched(recorded("fan-out"), "B")
    assert (match.token_match, match.restore, match.replay) == (320, 192, 128)


def test_an_edit_leaves_only_what_lies_before_it(recorded):
    run = recorded("edit")
    a, b = (p.text for p in run.scenario.prompts)
    differs = next(i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y)
    match = matched(run, "B")
    assert match.token_match == differs // 16 * 16
    assert match.restore == match.token_match // 128 * 128


def test_two_agents_read_one_checkpoint_and_write_two_slots(recorded):
    run = recorded("fork")
    copies = [e for e in run.events if isinstance(e, ev.CopiedOnWrite)]
    assert [c.request for c in copies] == ["B", "C"]
    assert copies[0].checkpoint_slot == copies[1].checkpoint_slot
    assert copies[0].active_slot != copies[1].active_slot
    views = [run.view(i) for i in range(len(run.steps))]
    assert any(
        v.readers(n) == ("B", "C") for v in views for n in v.nodes if v.nodes[n].state is not None
    )


def test_a_prompt_that_is_known_to_its_last_token_still_computes_one_stretch(recorded):
    match = matched(recorded("again"), "B")
    assert match.token_match == match.kv_reach == 384
    assert match.restore == 256
    assert "one token" in match.binding


def test_an_evicted_state_leaves_a_tombstone_and_no_restore_point(recorded):
    run = recorded("pressure")
    assert any(n.is_tombstone for i in range(len(run.steps)) for n in run.view(i).nodes.values())
    match = matched(run, "C")
    assert match.token_match == 320
    assert match.restore == 0


def test_a_different_first_word_leaves_nothing(recorded):
    assert matched(recorded("unrelated"), "B").token_match == 0


@pytest.mark.parametrize("name", NAMES)
def test_a_recording_survives_pickling_and_stays_small(recorded, name):
    run = recorded(name)
    data = pickle.dumps(run)
    again = pickle.loads(data)
    assert len(data) < 1_000_000
    assert again.events == run.events
    assert again.steps == run.steps
    assert again.view(len(run.steps) - 1) == run.view(len(run.steps) - 1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        run.seconds = 0.0


@pytest.mark.parametrize("name", NAMES)
def test_steps_cover_the_log_from_nothing_to_its_end(recorded, name):
    run = recorded(name)
    at = [s.event_index for s in run.steps]
    assert at == sorted(at)
    assert (at[0], at[-1]) == (0, len(run.events))
    assert 10 <= len(at) <= 30
    assert run.view(len(at) - 1) == fold(run.events, run.start)
    assert run.view(0) == run.start


@pytest.mark.parametrize("name", NAMES)
def test_every_step_says_one_plain_thing(recorded, name):
    for step in recorded(name).steps:
        assert step.sentence.endswith(".")
        assert "!" not in step.sentence
        assert len(step.sentence) < 240


def test_a_checkpoint_can_be_looked_at_and_is_the_state_from_zero(recorded):
    run = recorded("fan-out")
    image = run.image(0, len(run.steps) - 1)
    tokens = list(run.scenario.prompts[0].text.encode())[: image.boundary]
    cold = cold_run(lesson_model(), tokens, 1)
    assert torch.equal(torch.from_numpy(image.values), cold.recurrent)


def test_a_measurement_stops_comparing_where_the_inputs_part():
    logits = torch.zeros(6, 4)
    other = logits.clone()
    other[4, 0] = 2.0  # chose the second token differently
    other[5, 0] = 99.0  # read another token: says nothing about the restore
    zero = torch.zeros(1)
    run = RunState(zero, zero, zero, logits[2:], (1, 1, 1))
    cold = RunState(zero, zero, zero, other, (1, 0, 3))
    measured = measure("B", 4, 2, run, cold)
    assert measured.first_difference == 1
    assert measured.compared_logits == 3
    assert measured.logits == 2.0
    assert not measured.is_exact


def test_a_nan_is_a_difference():
    value = max_difference(torch.tensor([0.0, float("nan")]), torch.zeros(2))
    assert value != value
    with pytest.raises(ValueError, match="cannot be compared"):
        max_difference(torch.zeros(2), torch.zeros(3))


def test_faults_wait_for_the_last_arrivals(recorded):
    run = recorded("fan-out", "skip_replay")
    clean = recorded("fan-out")
    first = [e for e in run.events if e.request == "A"]
    assert first == [e for e in clean.events if e.request == "A"]
    assert run.faulty_at(len(run.steps) - 1) == {"B": "skip_replay"}
    assert run.scenario.name == scenario("fan-out").name


@pytest.mark.parametrize("name", ["fan-out", "fork"])
def test_a_step_of_a_request_never_gives_the_reasons_of_another(recorded, name):
    run = recorded(name)
    for index, step in enumerate(run.steps):
        match = run.match_at(index)
        if step.request and match is not None:
            assert match.request == step.request, step.sentence
