"""Two requests from one checkpoint: what is copied, what is given, who is poisoned."""

from __future__ import annotations

from functools import lru_cache

import pytest

from kdalab.engine import events as ev
from kdalab.errors import KdalabError
from kdalab.lessons import SHARING_STRATEGIES, SharingRun, play_sharing


@lru_cache
def played(strategy: str, cow: bool = True) -> SharingRun:
    return play_sharing(strategy, 12, cow)


@pytest.mark.parametrize("strategy", SHARING_STRATEGIES)
def test_every_request_is_exact_and_every_slot_has_one_use(strategy):
    found = played(strategy)
    assert all(m.is_exact for m in found.run.measured)
    assert found.spoiled == 0.0
    for step, slots in enumerate(found.slots):
        view = found.run.view(step)
        held = [s for s in slots if s.owner]
        for request in view.requests.values():
            mine = sum(s.owner == request.name for s in held)
            wanted = 1 + len(request.spare_slots) + (request.kept_slot >= 0)
            assert mine == (wanted if request.is_running else 0)
        cached = sum(s.role == "cached" for s in slots)
        assert cached == sum(n.state is not None for n in view.nodes.values())


def test_after_a_donation_the_next_slot_holds_nothing_until_it_is_written():
    found = played("extra_buffer")
    ends = [found.run.events[: s.event_index] for s in found.run.steps]
    given = next(i for i, e in enumerate(ends) if any(isinstance(x, ev.Donated) for x in e))
    assert isinstance(ends[given + 1][-1], ev.Computed)
    for step, role, tokens in ((given, "waiting", 0), (given + 1, "active", 109)):
        own = [s for s in found.slots[step] if s.owner == "A" and s.role != "spare"]
        assert [(s.role, s.tokens) for s in own] == [(role, tokens)]


def test_donating_copies_only_what_a_hit_needs():
    copy, give = played("copy").ledgers[-1], played("extra_buffer").ledgers[-1]
    hits = 3  # B, C and D
    assert (give.copied, copy.given) == (hits, 0)
    assert copy.copied == hits + give.given  # each donation saves one copy
    assert copy.bytes_copied == copy.copied * played("copy").run.checkpoint_bytes


def test_a_copy_is_queued_at_admission_and_made_with_the_first_forward():
    found = played("extra_buffer")
    kinds = [s.kind for s in found.run.steps]
    second = [i for i, k in enumerate(kinds) if k == "CopiedOnWrite"][1]
    assert found.queued[second] == ("B", "C")
    after = next(i for i in range(second, len(kinds)) if kinds[i] == "Computed")
    assert found.queued[after] == ("C",)


def test_without_copy_on_write_each_poisons_the_other_and_the_next_one():
    found = played("copy", cow=False)
    said = [e.what for e in found.run.events if isinstance(e, ev.FaultInjected)]
    pairs = {(w[0], w.split(" as ")[1][0]) for w in said if "overwritten" in w}
    assert pairs == {("C", "B"), ("B", "C"), ("D", "C")}
    assert all(not m.is_exact for m in found.run.measured)
    assert found.run.measured[0].recurrent == 0.0  # B's prompt came first and was its own
    assert found.spoiled > 0.01
    assert "belongs to cache; B must not write it" in found.refusal
    last = found.slots[-1]
    assert [s.owner for s in last if s.role == "overwritten"] == ["D"]


def test_a_pool_too_small_is_refused():
    with pytest.raises(KdalabError, match="one request under extra_buffer needs"):
        play_sharing("extra_buffer", 4)
    with pytest.raises(KdalabError, match="use 2 or more"):
        play_sharing("copy", 1)
