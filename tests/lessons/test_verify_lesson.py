"""Verify steps against plain decoding, state by state."""

from __future__ import annotations

from functools import lru_cache

import pytest

from kdalab.engine import events as ev
from kdalab.errors import KdalabError
from kdalab.lessons import KnowingDrafter, VerifyRun, play_verify


@lru_cache
def played(*args: object) -> VerifyRun:
    return play_verify(*args)


@pytest.mark.parametrize("case", [(4, 30), (7, 0), (2, 100), (1, 50)])
def test_every_right_state_and_the_committed_one_are_plain_decoding_s(case):
    found = played(*case)
    assert found.generated == found.truth
    for step in found.verifies.values():
        for t, state in enumerate(step.kept):
            assert state.seen == step.position + t + 1
            if t <= step.accepted:
                assert state.off == 0.0
            elif state.seen in range(122, 140):
                assert state.off > 0.01
        assert step.committed_off == 0.0
        committed = [k for k in step.kept if k.fate == "committed"]
        assert [k.seen for k in committed] == [step.position + step.accepted + 1]


def test_a_boundary_inside_an_accepted_run_is_caught_exactly():
    found = played(4, 30)
    ((index, caught),) = [
        (i, k) for i, v in found.verifies.items() for k in v.kept if k.fate == "boundary"
    ]
    step = found.verifies[index]
    assert step.position + 1 < caught.seen == 128 < step.position + step.accepted + 1
    assert found.caught_off == 0.0
    taken = [e.boundary for e in found.run.events if isinstance(e, ev.Snapshotted)]
    assert taken == [64, 128]


def test_fewer_forwards_with_better_drafts_and_none_saved_with_wrong_ones():
    best, worst = played(7, 0), played(2, 100)
    assert worst.forwards == len(worst.truth) - 1
    assert best.forwards == -(-(len(best.truth) - 1) // 8)


def test_a_kept_rejected_state_spoils_the_text_and_no_checkpoint():
    found = played(4, 30, True)
    assert found.first_wrong is not None
    first = next(v for v in found.verifies.values() if v.accepted < len(v.drafted))
    assert first.committed_off > 0.01
    assert all(k.fate != "boundary" for k in first.kept)
    assert not any(isinstance(e, ev.Snapshotted) and e.boundary == 128 for e in found.run.events)


def test_steps_cover_the_log_and_each_token_once():
    for case in [(4, 30), (1, 50)]:
        found = played(*case)
        ends = [s.event_index for s in found.run.steps]
        assert ends == sorted(ends)
        assert ends[-1] == len(found.run.events)
        plain = sum(s.kind == "Decoded" for s in found.run.steps)
        made = sum(v.accepted + 1 for v in found.verifies.values()) + plain
        assert made == len(found.truth) - 1  # the prompt's own forward made the first
        assert found.forwards == len(found.verifies) + plain


def test_the_drafter_is_wrong_at_the_same_places_whoever_asks():
    drafter = KnowingDrafter(tuple(range(1000)), 30)
    first, later = drafter.propose([0] * 10, 20), drafter.propose([0] * 15, 15)
    assert first[5:] == later
    wrong = sum(drafter.is_wrong(p) for p in range(1000))
    assert 250 < wrong < 350


def test_what_cannot_run_is_refused():
    with pytest.raises(KdalabError, match="use 1 to 7"):
        play_verify(8, 0)
    with pytest.raises(KdalabError, match="0 to 100"):
        play_verify(3, 101)
