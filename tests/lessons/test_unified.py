"""The unified buffer against a fixed split of the same bytes."""

from __future__ import annotations

from functools import lru_cache

import pytest

from kdalab.engine import events as ev
from kdalab.errors import KdalabError
from kdalab.lessons import UnifiedRun, play_unified


@lru_cache
def played(*args: object) -> UnifiedRun:
    return play_unified(*args)


CASES = [("mixed",), ("mixed", True), ("mixed", False, 70, "second"), ("decode", False, 80)]


@pytest.mark.parametrize("case", CASES)
def test_nothing_overlaps_and_every_byte_is_used_free_or_padding(case):
    found = played(*case)
    for layout in found.layouts:
        spans = [(p.byte, p.byte + found.page_bytes) for p in layout.pages]
        spans += [(s.byte, s.byte + found.state_bytes) for s in layout.states]
        spans.sort()
        ends = [0] + [b for _, b in spans]
        assert all(a >= end for (a, _), end in zip(spans, ends[:-1], strict=True))
        assert all(b <= layout.low or a >= layout.high for a, b in spans)
        used = sum(b - a for a, b in spans)
        assert used + layout.holes + layout.gap + found.padding == found.total


def test_each_move_keeps_its_virtual_number_and_changes_its_row():
    found = played("mixed")
    sizes = {"latent pages": found.page_bytes, "states": found.state_bytes}
    for step, here in enumerate(found.run.steps):
        first = found.run.steps[step - 1].event_index if step else 0
        last = {}
        for e in found.run.events[first : here.event_index]:
            if isinstance(e, ev.Moved):
                last[e.pool, e.slot] = e.target
        layout = found.layouts[step]
        rows = {("latent pages", p.slot): p.byte for p in layout.pages}
        rows |= {("states", s.slot): s.byte for s in layout.states}
        for key, target in last.items():
            if key in rows:
                assert rows[key] == target * sizes[key[0]]


def test_the_long_prompt_runs_only_where_states_have_given_bytes_back():
    found = played("mixed")
    ended = [e.request for e in found.run.events if isinstance(e, ev.Finished)]
    assert ended == ["A", "B", "C", "D"]
    (refusal,) = found.refusals
    assert refusal[1].startswith("D: the prompt of 420 tokens")
    assert found.tallies[-1][1].refused == 1


def test_a_split_that_favours_pages_runs_out_of_states_instead():
    mine, other = played("fan-out", False, 30).tallies[-1]
    assert (mine.skipped, mine.refused, other.refused) == (0, 0, 0)
    assert other.skipped > 0
    assert other.tokens > mine.tokens  # what was not kept is computed again


def test_growing_answers_are_retracted_by_a_split_with_few_pages():
    mine, other = played("decode", False, 80).tallies[-1]
    assert (mine.retracted, mine.refused, other.refused) == (0, 0, 0)
    assert other.retracted > 0


def test_nothing_moves_while_the_gate_is_held_and_all_holes_go_when_it_opens():
    found = played("mixed", False, 70, "second")
    moves = [a.moves for a, _ in found.tallies]
    kinds = [s.kind for s in found.run.steps]
    held, released = kinds.index("Held"), kinds.index("Released")
    assert len(set(moves[held:released])) == 1
    assert found.layouts[released - 1].holes > 0
    assert found.layouts[released].holes == 0
    assert moves[released] > moves[held]


def test_a_gate_that_never_opens_costs_states_and_leaves_bytes_unused():
    mine, shut = (played("mixed", False, 70, g) for g in ("none", "forever"))
    assert shut.tallies[-1][0].moves == 0
    assert shut.tallies[-1][0].evicted_states > mine.tallies[-1][0].evicted_states
    assert shut.tallies[-1][0].free_bytes > mine.tallies[-1][0].free_bytes


def test_lazy_compaction_moves_less():
    eager, lazy = played("mixed").tallies[-1][0], played("mixed", True).tallies[-1][0]
    assert lazy.moved_bytes < eager.moved_bytes


def test_what_cannot_run_is_refused():
    with pytest.raises(KdalabError, match="use one of"):
        play_unified("nothing")
    with pytest.raises(KdalabError, match="the split needs 3 states"):
        play_unified("mixed", False, 10)
