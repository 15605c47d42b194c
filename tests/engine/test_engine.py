"""The engine, one rule at a time, with the real tiny model."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
import torch

from kdalab.cache import parse_placement
from kdalab.engine import Engine, EngineConfig, Faults, Phase, Request, fold
from kdalab.engine import events as ev
from kdalab.errors import InvariantError, KdalabError, OutOfSlotsError
from kdalab.memory import CACHE
from kdalab.model import tiny_model

MODEL = tiny_model()
SHARED = [(5 * i) % 251 for i in range(200)]


def engine(**changes: Any) -> Engine:
    if "placement" in changes:
        changes["placement"] = parse_placement(changes["placement"])
    defaults: dict[str, Any] = {
        "n_pages": 64,
        "n_active": 3,
        "n_checkpoints": 8,
        "keep_logits": True,
        "check_every_step": True,
    }
    return Engine(MODEL, EngineConfig(**{**defaults, **changes}))


def tail(seed: int, n: int = 30) -> list[int]:
    return [(seed * 31 + 3 * i) % 256 for i in range(n)]


def of_type(events: list[ev.Event], kind: type[ev.Event]) -> list[Any]:
    return [e for e in events if isinstance(e, kind)]


def free_counts(e: Engine) -> tuple[int, int, int]:
    return e.active.slots.n_free, e.checkpoints.slots.n_free, e.latents.slots.n_free


def worst(request: Request) -> float:
    """max |difference| of the request's prompt logits against a run from nothing."""
    full = MODEL.logits(request.tokens)[request.restore :]
    mine = torch.stack(request.logits[: request.n_tokens - request.restore])
    return float((mine - full).abs().max())


def test_restored_and_replayed_equals_straight_through() -> None:
    e = engine(placement="every:128")
    e.submit(SHARED + tail(1, 60), 3)
    e.run()
    b = e.submit(SHARED[:190] + tail(2), 3)
    e.run()
    assert (b.token_match, b.restore) == (176, 128)
    assert worst(b) == 0
    assert b.generated == MODEL.greedy(b.tokens, 3)


def test_the_events_of_a_restore_come_in_order() -> None:
    e = engine(placement="every:128")
    e.submit(SHARED + tail(1, 60), 1)
    e.run()
    e.submit(SHARED[:190] + tail(2), 2)
    names = [x.name for x in e.run() if x.request == "B"]
    assert names == [
        "Matched", "FellBack", "Admitted", "CopiedOnWrite", "Replayed", "Computed", "Decoded",
        "Decoded", "Finished",
    ]  # fmt: skip
    matched = of_type(e.events, ev.Matched)[-1]
    assert "restore 128, replay 48, compute 44 new tokens" in matched.why
    replayed = of_type(e.events, ev.Replayed)[-1]
    assert (replayed.start, replayed.end) == (128, 176)


def test_two_requests_that_part_never_see_each_others_state() -> None:
    e = engine()
    e.submit(SHARED, 1)
    e.run()
    b, c = e.submit(SHARED + tail(1), 4), e.submit(SHARED + tail(2), 4)
    e.step()
    assert b.lease is not None
    assert c.lease is not None
    assert b.lease.node == c.lease.node
    assert b.active_slot != c.active_slot
    assert set(b.pages[b.n_shared :]).isdisjoint(c.pages)
    e.run()
    for r in (b, c):
        assert worst(r) == 0
        assert r.generated == MODEL.greedy(r.tokens, 4)


def test_a_shared_checkpoint_never_changes() -> None:
    e = engine()
    e.submit(SHARED, 1)
    e.run()
    before = {
        n.state.slot: e.checkpoints.read(n.state.slot)
        for n in e.cache.nodes.values()
        if n.state is not None
    }
    for seed in range(3):
        e.submit(SHARED + tail(seed), 5)
    e.run()
    for slot, (recurrent, conv) in before.items():
        assert torch.equal(e.checkpoints.recurrent[slot], recurrent)
        assert torch.equal(e.checkpoints.conv[slot], conv)


def test_a_prompt_longer_than_the_pools_takes_nothing() -> None:
    e = engine(n_pages=10)
    before = free_counts(e)
    with pytest.raises(KdalabError, match=r"need 11 latent pages of 16 tokens; the pool has 10"):
        e.submit(SHARED[:150], 20)
    assert free_counts(e) == before
    assert not e.requests
    assert not e.events
    e.submit(SHARED[:150], 11)  # 160 tokens of KV: the last generated one is never fed back
    e.run()
    e.check()


@pytest.mark.parametrize(
    ("tokens", "new", "name", "message"),
    [
        ([], 1, None, "empty prompt"),
        ([1, 999], 1, None, r"token id 999 is outside the vocabulary 0\.\.319"),
        ([1, -1], 1, None, "token id -1"),
        ([1], -1, None, "max_new_tokens = -1"),
        ([1], 1, "A", "a request named 'A' exists"),
        ([1], 1, "cache", "cannot be named"),
        ([1], 1, "", "cannot be named"),
    ],
)
def test_a_bad_request_is_refused_and_takes_nothing(
    tokens: list[int], new: int, name: str | None, message: str
) -> None:
    e = engine()
    e.submit([1, 2, 3], 1)
    before = free_counts(e), len(e.events)
    with pytest.raises(KdalabError, match=message):
        e.submit(tokens, new, name)
    assert (free_counts(e), len(e.events)) == before


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_active": 0}, "n_active = 0"),
        ({"chunk_tokens": 63}, "one cell of 64"),
        ({"placement": "every:100"}, r"interval 100 is not a multiple of lcm\(64, 16\) = 64"),
        ({"page_tokens": 48}, r"interval 64 is not a multiple of lcm\(64, 48\) = 192"),
    ],
)
def test_a_config_that_cannot_work_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(KdalabError, match=message):
        engine(**changes)


@pytest.mark.parametrize("steps", range(7))
def test_aborting_at_any_step_gives_everything_back(steps: int) -> None:
    e = engine(chunk_tokens=64)
    e.submit(SHARED, 4)
    e.submit(SHARED[:100] + tail(3), 4)
    for _ in range(steps):
        e.step()
    e.abort("A")
    e.abort("A")  # ended already: nothing happens
    e.check()
    e.run()
    assert e.active.slots.n_free == e.config.n_active
    assert not e.cache.leases
    assert len(e.latents.slots.owned_by(CACHE)) == e.config.n_pages - e.latents.slots.n_free
    assert fold(e.events, e.empty_view()) == e.view()


def test_a_request_cancelled_while_it_waits_never_runs() -> None:
    e = engine(n_active=1)
    e.submit(SHARED, 3)
    waiting = e.submit(SHARED[:70], 3)
    e.step()
    e.abort("B")
    e.run()
    assert (waiting.phase, waiting.generated) == (Phase.CANCELLED, [])
    assert e.view().requests["B"].phase == "cancelled"
    assert not [x for x in e.events if x.request == "B" and isinstance(x, ev.Admitted)]


def test_a_checkpoint_may_go_as_soon_as_it_has_been_copied() -> None:
    e = engine(n_checkpoints=1)
    e.submit(SHARED[:64], 1)
    e.run()
    reader, other = e.submit(SHARED[:70], 8), e.submit(tail(4, 80), 1)
    e.run()
    assert reader.restore == 64
    assert [x.request for x in of_type(e.events, ev.Snapshotted)] == ["A", "C"]
    assert worst(reader) == worst(other) == 0


def test_requests_wait_their_turn_when_slots_run_out() -> None:
    e = engine(n_active=1)
    first, second = e.submit(SHARED[:70], 3), e.submit(SHARED[:70], 3)
    e.step()
    assert (first.is_running, second.phase) == (True, Phase.WAITING)
    e.run()
    assert second.restore == 64
    assert worst(second) == 0


def test_the_cache_makes_room_for_a_new_request() -> None:
    e = engine(n_pages=16, n_checkpoints=4)
    for seed in range(4):
        r = e.submit(tail(seed, 200), 1)
        e.run()
        assert worst(r) == 0
    assert of_type(e.events, ev.Evicted)


def test_what_runs_is_never_evicted() -> None:
    e = engine(n_pages=30, n_checkpoints=2, n_active=2)
    e.submit(SHARED[:130], 1)
    e.run()
    held = e.submit(SHARED[:130] + tail(1, 20), 6)
    e.step()
    shared = held.pages[: held.n_shared]
    e.submit(tail(9, 250), 1)
    gone: set[int] = set()
    while held.is_running:
        for x in of_type(e.step(), ev.Evicted):
            if held.is_running:
                gone |= {p for d in x.dropped for p in d.pages}
    assert held.n_shared == 0  # given back at the end, and not before
    assert shared
    assert gone.isdisjoint(shared)
    e.run()
    assert worst(held) == 0


def test_a_checkpoint_that_finds_no_slot_is_skipped() -> None:
    e = engine(n_checkpoints=1, check_every_step=False)  # a lease is held by hand below
    e.submit(SHARED[:64], 1)
    e.run()
    lease = e.cache.acquire(e.cache.lookup(e.requests["A"].key))
    assert lease.boundary == 0  # one token must be computed: use a longer prompt to hold it
    e.cache.release(lease)
    b = e.submit(SHARED[:65], 1)
    hold = e.cache.acquire(e.cache.lookup(b.key))
    c = e.submit(tail(4, 80), 1)
    e.run()
    assert [x.request for x in of_type(e.events, ev.SnapshotSkipped)] == ["C"]
    assert worst(c) == 0
    e.cache.release(hold)
    e.check()


@pytest.mark.parametrize("fault", ["skip_replay", "drop_conv"])
def test_a_fault_makes_the_restored_run_wrong(fault: str) -> None:
    e = engine(placement="every:128")
    e.submit(SHARED + tail(1, 60), 1)
    e.run()
    e.config = dataclasses.replace(e.config, faults=Faults.named([fault]))
    b = e.submit(SHARED[:190] + tail(2), 2)
    e.run()
    assert b.restore == 128
    assert worst(b) > 1e-3
    assert [x.fault for x in of_type(e.events, ev.FaultInjected)] == [fault]
    assert len(of_type(e.events, ev.Snapshotted)) == 2  # none was taken of the wrong state


def test_an_unknown_fault_lists_the_known_ones() -> None:
    with pytest.raises(KdalabError, match="known: skip_replay, drop_conv"):
        Faults.named(["nonsense"])


def test_a_stop_token_ends_a_request() -> None:
    e = engine()
    expected = MODEL.greedy(SHARED, 3)
    r = e.submit(SHARED, 10, stop_tokens=[expected[1]])
    e.run()
    assert r.generated == expected[: expected.index(expected[1]) + 1]
    assert r.finish_reason == "stop token"


def test_no_new_tokens_prefills_only() -> None:
    e = engine()
    r = e.submit(SHARED, 0)
    e.run()
    assert r.generated == []
    assert e.cache.lookup(e.submit([*SHARED, 1], 0).key).restore == 192


def test_names_go_on_after_z() -> None:
    e = engine()
    names = [e.submit([1], 0).name for _ in range(28)]
    assert names[:2] == ["A", "B"]
    assert names[25:] == ["Z", "AA", "AB"]


def test_without_reuse_nothing_is_shared() -> None:
    e = engine(reuse=False)
    for _ in range(2):
        r = e.submit(SHARED, 2)
        e.run()
        assert worst(r) == 0
    assert not e.cache.nodes.keys() - {0}


def test_events_are_plain_data_with_a_sentence() -> None:
    e = engine(n_pages=20, n_checkpoints=2)
    for seed in range(3):
        e.submit(SHARED[:80] + tail(seed, 100), 2)
        e.run()
    e.submit([1], 1)
    e.abort("D")
    for event in e.events:
        row = json.loads(json.dumps(event.as_dict()))
        assert row["event"] == event.name
        assert row["sentence"].endswith(".")


@pytest.mark.parametrize(
    ("damage", "rule"),
    [
        (lambda e: e.checkpoints._boundary.__setitem__(0, 128), "key length equals state length"),
        (lambda e: e.latents.data[-1].zero_(), "free memory stays poisoned"),
        (lambda e: e.checkpoints.recurrent[-1].zero_(), "free memory stays poisoned"),
        (lambda e: e.active.conv[-1].zero_(), "free memory stays poisoned"),
        (lambda e: e.latents.slots.free([0], CACHE), "cached pages = total"),
        (lambda e: e.checkpoints.slots.allocate(CACHE), "boundary is None"),
        (lambda e: e.active.slots.allocate("ghost"), "belongs to a running request"),
        (lambda e: setattr(e.cache.root, "kv_lock", 0), "KV locks equal the leases"),
        (lambda e: e.active.slots._free.append(0), "in the free list twice"),
    ],
)
def test_check_names_the_broken_rule(damage: Any, rule: str) -> None:
    e = engine()
    e.submit(SHARED[:64], 1)
    e.run()
    assert e.cache.nodes[1].pages[0] == 0  # the page and slots that the damage names
    damage(e)
    with pytest.raises(InvariantError, match=rule):
        e.check()


def test_running_out_of_slots_takes_none() -> None:
    e = engine()
    with pytest.raises(OutOfSlotsError, match=r"65 latent pages wanted, 64 of 64 are free"):
        e.latents.slots.allocate("A", 65)
    assert e.latents.slots.n_free == 64


@pytest.mark.parametrize(
    ("tokens", "new", "name", "message"),
    [
        ([1], 1.5, None, "max_new_tokens = 1.5; it must be a whole number"),
        ([1], float("nan"), None, "max_new_tokens = nan"),
        ([1], True, None, "max_new_tokens = True"),
        ([1.7], 1, None, "a list of whole numbers"),
        ("12", 1, None, "not str"),
        (b"\x01", 1, None, "not bytes"),
        ([None], 1, None, "a list of whole numbers"),
        ([1], 1, 5, "a request's name is text"),
    ],
)
def test_a_request_of_the_wrong_type_is_refused(
    tokens: Any, new: Any, name: Any, message: str
) -> None:
    e = engine()
    with pytest.raises(KdalabError, match=message):
        e.submit(tokens, new, name)
    assert not e.requests
    assert not e.cache.leases


@pytest.mark.parametrize(
    "changes",
    [{"page_tokens": 16.0}, {"n_pages": 1.5}, {"n_active": "3"}, {"chunk_tokens": float("nan")}],
)
def test_sizes_are_whole_numbers(changes: dict[str, Any]) -> None:
    with pytest.raises(KdalabError, match="a whole number of at least 1"):
        engine(**changes)


def test_a_placement_is_an_object_with_boundaries() -> None:
    with pytest.raises(KdalabError, match="use parse_placement"):
        EngineConfig(placement=None)  # type: ignore[arg-type]


def test_a_lease_that_no_request_holds_is_found() -> None:
    e = engine()
    e.submit(SHARED[:70], 1)
    e.run()
    e.cache.acquire(e.cache.lookup(e.requests["A"].key))
    with pytest.raises(InvariantError, match="every lease belongs to a running request"):
        e.check()


def test_a_request_whose_numbers_overflow_ends_and_the_others_go_on() -> None:
    from kdalab.model.tiny import tiny_config, tiny_weights
    from kdalab.model.weights import build

    weights = tiny_weights()
    weights["model.embed_tokens.weight"][7] = float("inf")
    e = Engine(build(tiny_config(), weights), EngineConfig(check_every_step=True))
    bad, good = e.submit([7] * 100, 3), e.submit(SHARED[:100], 3)
    e.run(50)
    assert bad.finish_reason.startswith("failed: ")
    assert good.generated == MODEL.greedy(SHARED[:100], 3)
    assert good.finish_reason == "length"
