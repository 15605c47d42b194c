"""The second level in the engine: copied down when hot, brought back when a prompt needs it."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from engine_cases import (
    SHARED,
    TINY,
    assert_nothing_leaks,
    cached_states,
    engine,
    of_type,
    tail,
    tinier_model,
    worst,
)

from kdalab.cache import Bytes
from kdalab.engine import (
    Engine,
    EngineConfig,
    HostConfig,
    Phase,
    admission,
    fold,
    prefill,
    transfers,
)
from kdalab.engine import events as ev
from kdalab.engine import transfer_events as tr
from kdalab.errors import InvariantError, KdalabError
from kdalab.memory import CheckpointPool, LatentPool
from kdalab.memory.host import Level, copy_between, host_level

ALL = Bytes(kv=10**9, state=10**9)
FEATURES: list[dict[str, Any]] = [
    {},
    {"strategy": "extra_buffer"},
    {"checkpoint_dtype": "int8"},
    {"memory": "unified"},
    {"memory": "unified", "strategy": "extra_buffer_lazy", "lazy_compaction": True},
]
each_feature = pytest.mark.parametrize("features", FEATURES)


def hosted(pages: int = 64, states: int = 8, hits: int = 1, **changes: Any) -> Engine:
    """With a host of so many pages and checkpoints, and a copy after so many hits."""
    return engine(host=HostConfig(pages, states, hits), **changes)


def forget_device(e: Engine) -> None:
    """Evict all that the device holds and nobody reads; what has a copy stays in the tree."""
    e.give_back(e.cache.evict(ALL), "", "on purpose")


def stored(e: Engine) -> dict[int, list[torch.Tensor]]:
    """Boundary -> the stored form of each cached state, as copies."""
    pool = e.checkpoints
    places = {b: pool.slots.place(slot) for b, slot in cached_states(e).items()}
    return {b: [part[row].clone() for part in pool.parts] for b, row in places.items()}


def compute_without_landing(e: Engine) -> None:
    """A step's admission and prefill, while a transfer stays in the air."""
    with torch.inference_mode():
        admission.admit_waiting(e)
        prefill.run_chunk(e)
    e.check()


def assert_log_folds(e: Engine) -> None:
    e.say_moves()
    assert fold(e.events, e.empty_view()) == e.view()


# -- write-through ---------------------------------------------------------------------------


def test_a_prefix_is_copied_after_so_many_uses_and_not_before() -> None:
    e = hosted(hits=3, placement="leaf")
    for use in range(1, 4):
        e.submit(SHARED + tail(use), 0)
        e.run()
        assert bool(of_type(e, tr.BackedUp)) == (use >= 3)
    (done,) = of_type(e, tr.BackedUp)
    (node,) = [n for n in e.cache.nodes.values() if n.host_pages]
    assert (done.node, done.boundary, node.end) == (node.id, 192, 192)
    assert done.bytes == 12 * e.latents.page_bytes + e.checkpoints.slot_bytes
    assert e.host is not None
    there, here = e.host.latents.data[list(node.host_pages)], e.latents.data[list(node.pages)]
    assert torch.equal(there, here)
    assert_log_folds(e)


def test_a_request_that_waits_makes_its_prefix_no_hotter() -> None:
    e = hosted(hits=3, n_pages=24, placement="leaf")
    e.submit(SHARED, 0)
    e.run()
    e.submit([9] * 10, 120)  # 9 of 24 pages for a long while
    e.step()
    waiting = e.submit(SHARED + tail(1), 60)  # needs 19
    for _ in range(5):
        e.step()
    assert waiting.phase is Phase.WAITING
    assert not of_type(e, tr.BackupStarted)
    assert max(n.hits for n in e.cache.nodes.values()) == 1
    e.run()
    assert_nothing_leaks(e)


def test_a_backup_flies_for_a_step_and_holds_what_it_reads() -> None:
    e = hosted(chunk_tokens=64, placement="every:64")
    e.submit(SHARED, 0)
    e.step()  # 64 is cached
    e.step()  # and its copy starts, before the next cell is computed
    (start,) = of_type(e, tr.BackupStarted)
    assert not of_type(e, tr.BackedUp)
    assert e.view().host_pages.count("transfer") == 4
    node = e.cache.nodes[start.node]
    e.abort("A")
    forget_device(e)
    assert node.pages
    assert node.state is not None
    e.check()
    e.step()
    assert of_type(e, tr.BackedUp)[0].transfer == start.transfer
    assert e.view().host_pages.count("cache") == 4
    e.run()
    assert_nothing_leaks(e)


# -- load-back -------------------------------------------------------------------------------


@each_feature
def test_restored_from_the_host_is_bit_for_bit_restored_from_the_device(
    features: dict[str, Any],
) -> None:
    e = hosted(states=12, n_checkpoints=12, **features)
    e.submit(SHARED, 0)
    e.run()
    lease = e.cache.acquire(e.cache.lookup(e.requests["A"].key))
    cached, pages = stored(e), e.latents.gather(lease.pages, 192)
    e.cache.release(lease)
    forget_device(e)
    assert not cached_states(e)
    assert e.cache.cached_pages == 0
    b = e.submit(SHARED + tail(1), 3)
    e.step()
    assert b.phase is Phase.WAITING
    (start,) = of_type(e, tr.LoadStarted)
    assert (start.request, start.boundary, len(start.pages)) == ("B", 192, 12)
    e.step()
    (done,) = of_type(e, tr.Loaded)
    assert (done.boundary, done.duplicate_pages, done.duplicate_state) == (192, (), None)
    assert done.bytes == 12 * e.latents.page_bytes + e.checkpoints.slot_bytes
    assert (b.restore, b.token_match) == (192, 192)
    # The last state only, in the very bytes that were stored, and every page.
    assert torch.equal(e.latents.gather(b.pages, 192), pages)
    back = stored(e)
    assert 64 not in back
    assert 128 not in back
    for mine, expected in zip(back[192], cached[192], strict=True):
        assert torch.equal(mine, expected)
    assert_log_folds(e)
    e.run()
    if "checkpoint_dtype" not in features:
        assert worst(b) == 0
        assert b.generated == TINY.greedy(b.tokens, 3)
    else:
        same = engine(n_checkpoints=12, **features)  # never left the device
        same.submit(SHARED, 0)
        same.run()
        other = same.submit(SHARED + tail(1), 3)
        same.run()
        assert other.generated == b.generated
        assert torch.equal(torch.stack(other.logits), torch.stack(b.logits))
    assert_log_folds(e)
    assert_nothing_leaks(e)


def test_only_what_is_missing_comes_back() -> None:
    e = hosted()
    e.submit(SHARED, 0)
    e.run()
    e.give_back(e.cache.evict(Bytes(kv=1)), "", "on purpose")  # the leaf: tokens 128..192
    e.give_back(e.cache.evict(Bytes(state=10**9)), "", "on purpose")
    b = e.submit(SHARED + tail(1), 1)
    e.step()
    (start,) = of_type(e, tr.LoadStarted)
    assert (len(start.pages), start.boundary) == (4, 192)
    e.run()
    assert b.restore == 192
    assert worst(b) == 0
    e.give_back(e.cache.evict(Bytes(state=10**9)), "", "on purpose")
    c = e.submit(SHARED[:129], 1)
    e.step()
    start = of_type(e, tr.LoadStarted)[-1]
    assert (len(start.pages), start.state is None, start.boundary) == (0, False, 128)
    e.run()
    assert c.restore == 128
    assert worst(c) == 0
    assert_nothing_leaks(e)


def test_room_for_a_load_may_take_more_of_its_own_prefix_and_that_comes_back_too() -> None:
    e = hosted(n_pages=19)
    e.submit(SHARED, 0)
    e.run()
    e.give_back(e.cache.evict(Bytes(kv=1)), "", "on purpose")
    e.give_back(e.cache.evict(Bytes(state=10**9)), "", "on purpose")
    e.submit(tail(5, 129), 0)  # younger than what is left of the first
    e.run()
    assert e.latents.slots.n_free == 3
    c = e.submit([*SHARED, 1], 1)
    e.step()
    (start,) = of_type(e, tr.LoadStarted)
    assert len(start.pages) == 12  # 4 were missing at first
    e.run()
    assert c.restore == 192
    assert worst(c) == 0
    assert_log_folds(e)
    assert_nothing_leaks(e)


def test_what_was_computed_anew_under_way_wins_over_what_is_loaded() -> None:
    e = hosted(placement="leaf")
    e.submit(SHARED, 0)
    e.run()
    forget_device(e)
    b = e.submit(SHARED + tail(1), 1)
    e.step()  # B waits for its load
    e.waiting.clear()
    c = e.submit(SHARED + tail(2, 50), 1)
    c.load = -1  # C does not ask the host, and computes the same prefix from nothing
    compute_without_landing(e)
    assert c.restore == 0
    e.waiting.append(b)
    e.step()
    (done,) = of_type(e, tr.Loaded)
    assert (len(done.duplicate_pages), done.changes) == (12, ())
    assert done.duplicate_state is not None
    assert_log_folds(e)
    e.run()
    assert b.restore == 192
    assert worst(b) == worst(c) == 0
    assert_nothing_leaks(e)


def test_a_node_split_under_way_is_backed_up_in_both_halves() -> None:
    e = hosted(chunk_tokens=256, placement="leaf", n_active=2)
    e.submit(SHARED, 0)
    e.step()
    assert e.cache.host is not None
    assert len(e.cache.host.flights) == 1
    b = e.submit(SHARED[:140] + tail(2, 100), 0)
    b.load = -1
    compute_without_landing(e)
    assert len(e.cache.host.flights) == 1
    e.step()
    changes = of_type(e, tr.BackedUp)[0].changes
    assert [len(c.pages) for c in changes] == [8, 4]
    assert_log_folds(e)
    e.run()
    forget_device(e)
    c = e.submit(SHARED + tail(5), 1)
    e.run()
    assert c.restore == 192
    assert worst(c) == 0
    assert_nothing_leaks(e)


# -- when it fails ---------------------------------------------------------------------------


def test_a_full_host_gives_up_its_oldest_copies() -> None:
    e = hosted(pages=8, states=4, placement="leaf")
    for seed in range(5):
        e.submit(tail(seed, 70), 0)
        e.run()
        assert_log_folds(e)
    assert e.host is not None
    assert e.host.checkpoints.slots.counts()["cache"] == 2
    gone = [x for x in of_type(e, ev.Evicted) if x.host_bytes]
    assert len(gone) == 3
    assert all(x.host_bytes == e.host.bytes_of(4, 1) for x in gone)
    assert "the host's copy of node 1 (a copy of node 3 on the host)" in gone[0].sentence()
    assert_nothing_leaks(e)


def test_room_for_a_copy_is_not_made_by_what_it_would_hang_below() -> None:
    e = hosted(pages=12, placement="leaf")
    texts = [tail(seed, 70) for seed in (1, 2, 3)]
    for text in texts:
        e.submit(text, 0)
        e.run()
    e.submit(texts[0][:64] + tail(9, 66), 4)  # goes on from the first, to 128
    e.step()
    for text in texts[1:]:
        e.submit(text, 0)  # both used after it, and before its copy starts
    e.step()
    (gone,) = [x for x in of_type(e, ev.Evicted) if x.host_bytes]
    e.run()
    held = {n.id for n in e.cache.nodes.values() if n.host_pages}
    long = e.cache.lookup(e.requests["D"].key).path
    assert held == {*long, 3}
    assert [d.node for d in gone.dropped] == [2]
    assert_nothing_leaks(e)


def test_what_cannot_fit_the_host_is_skipped_and_leaves_nothing() -> None:
    e = hosted(pages=7)
    e.submit(SHARED, 0)
    e.run()
    skipped = of_type(e, tr.BackupSkipped)
    assert skipped[0].reason == "its 8 pages exceed 7"
    assert [x.boundary for x in of_type(e, tr.BackedUp)] == [64]
    assert e.host is not None
    assert e.host.latents.slots.counts() == {"cache": 4, None: 3}
    e.run()
    assert len(of_type(e, tr.BackupSkipped)) == len(skipped)  # not asked again at once
    assert_nothing_leaks(e)


def test_a_host_whose_copies_are_all_in_use_skips_the_next() -> None:
    e = hosted(pages=6, states=4, placement="leaf")
    e.submit(tail(1, 70), 0, name="first")
    e.submit(tail(2, 70), 0, name="second")
    e.step()  # both are cached, and only one copy at a time fits
    e.run()
    assert len(of_type(e, tr.BackupStarted)) == 1
    assert of_type(e, tr.BackupSkipped)[0].reason == "what the host holds is in use"
    assert_nothing_leaks(e)


def test_no_room_on_the_device_starts_from_what_is_there() -> None:
    e = hosted(n_pages=14)
    e.submit(SHARED, 0)
    e.run()
    forget_device(e)
    e.submit([9] * 10, 40)  # 4 of 14 pages for a while; the prefix alone has 12
    e.step()
    b = e.submit(SHARED, 1)
    e.step()
    assert b.phase is Phase.WAITING
    assert not of_type(e, tr.LoadStarted)
    e.run()
    assert b.finish_reason == "length"
    assert worst(b) == 0
    assert_nothing_leaks(e)


def test_a_load_starts_only_when_its_request_could_start_too() -> None:
    e = hosted(n_pages=24)
    e.submit(SHARED, 0)
    e.run()
    forget_device(e)
    e.submit([9] * 10, 120)  # 9 of 24 pages
    e.step()
    c = e.submit(SHARED, 60)  # needs 17, 12 of them from the host
    for _ in range(5):
        e.step()
    assert c.phase is Phase.WAITING
    assert not of_type(e, tr.LoadStarted)
    e.run()
    assert c.restore == 192
    assert worst(c) == 0
    assert_nothing_leaks(e)


def test_a_loaded_state_must_not_take_the_slot_that_its_request_needs() -> None:
    e = hosted(strategy="extra_buffer", n_active=3, n_checkpoints=5)
    e.submit(SHARED, 0)
    e.run()
    forget_device(e)
    e.submit([9] * 10, 20)  # 3 of 8 slots; 5 are needed to start another beside it
    e.step()
    c = e.submit(SHARED, 1)
    e.step()
    assert c.computed > 0
    assert c.restore == 0
    e.run()
    assert not of_type(e, tr.LoadStarted)
    assert worst(c) == 0
    assert_nothing_leaks(e)


def test_a_load_that_nobody_waits_for_any_more_gives_everything_back() -> None:
    e = hosted()
    e.submit(SHARED, 0)
    e.run()
    forget_device(e)
    free = e.latents.slots.n_free, e.checkpoints.slots.n_free
    e.submit(SHARED, 1)
    e.step()
    assert e.latents.slots.n_free == free[0] - 12
    assert e.view().pages.count("transfer") == 12
    e.abort("B")
    (failed,) = of_type(e, tr.TransferFailed)
    assert (failed.direction, len(failed.pages), failed.request) == ("load", 12, "B")
    assert (e.latents.slots.n_free, e.checkpoints.slots.n_free) == free
    e.check()
    assert_log_folds(e)
    c = e.submit(SHARED, 1)
    e.run()
    assert c.restore == 192
    assert worst(c) == 0
    assert_nothing_leaks(e)


@pytest.mark.parametrize("direction", ["backup", "load"])
def test_a_copy_that_breaks_leaves_nothing_behind(
    direction: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    e = hosted()

    def broken(*_: object) -> None:
        raise OSError("the link is down")

    if direction == "load":
        e.submit(SHARED, 0)
        e.run()
        forget_device(e)
    with monkeypatch.context() as patch:
        patch.setattr(transfers, "copy_between", broken)
        b = e.submit(SHARED, 1)
        e.run()
    failed = of_type(e, tr.TransferFailed)
    assert failed
    assert {(x.direction, x.reason) for x in failed} >= {(direction, "the link is down")}
    assert b.restore == 0  # it was computed instead
    assert worst(b) == 0
    assert_log_folds(e)
    assert_nothing_leaks(e)
    c = e.submit(SHARED, 1)
    e.run()
    assert worst(c) == 0
    assert not of_type(e, tr.TransferFailed)[len(failed) :]


# -- at random -------------------------------------------------------------------------------

RANDOM: list[dict[str, Any]] = [
    {"retention": "lru+cap:2"},
    {"strategy": "extra_buffer", "placement": "leaf+branch"},
    {"checkpoint_dtype": "int8", "retention": "lru-path"},
    {"memory": "unified", "strategy": "extra_buffer_lazy", "reserve_output": False},
    {"memory": "unified", "lazy_compaction": True, "placement": "leaf"},
]


@pytest.mark.parametrize("features", RANDOM)
def test_random_requests_over_two_levels_lose_and_change_nothing(features: dict[str, Any]) -> None:
    model, chance, loads = tinier_model(), random.Random(len(str(features))), 0
    for _ in range(6):
        e = hosted(
            chance.randint(16, 60),
            chance.randint(2, 9),
            chance.randint(1, 2),
            model=model,
            n_pages=48,
            n_checkpoints=7,
            **features,
        )
        roots = [[chance.randrange(60) for _ in range(330)] for _ in range(3)]
        for _ in range(40):
            if len(e.waiting) < 3:
                prompt = chance.choice(roots)[: chance.randint(60, 320)]
                fresh = [chance.randrange(60) for _ in range(5)]
                e.submit(prompt + fresh, chance.choice([0, 1, 3]))
            e.step()
            fate, tier = chance.random(), e.cache.host
            assert tier is not None
            if fate < 0.4:
                e.give_back(e.cache.evict(chance.choice([ALL, Bytes(kv=1)])), "", "on purpose")
            elif fate < 0.45 and tier.flights:
                transfers.fail(e, chance.choice(list(tier.flights.values())).job, "on purpose")
            elif fate < 0.5 and e.waiting:
                e.abort(chance.choice(list(e.waiting)).name)
            elif fate < 0.55 and e.running:
                e.retract(chance.choice(e.running), "on purpose")
            e.check()
        e.run()
        assert_log_folds(e)
        assert_nothing_leaks(e)
        loads += len(of_type(e, tr.Loaded))
        for r in e.requests.values():
            assert not r.finish_reason.startswith("failed")
            if r.logits and r.restore < r.n_tokens and not e.config.int8:
                assert worst(r, model) == 0
    assert loads > 10


# -- conservation, and what the check sees ---------------------------------------------------


@pytest.mark.parametrize("what", ["page", "slot", "bytes", "boundary"])
def test_the_check_sees_what_goes_wrong_on_the_host(what: str) -> None:
    e = hosted(states=4)
    e.submit(SHARED, 0)
    e.run()
    assert e.host is not None
    e.check()
    if what == "page":
        e.host.latents.slots.allocate("cache")
    elif what == "slot":
        e.host.checkpoints.slots.allocate("transfer")
    elif what == "bytes":
        free = e.host.latents.slots.owners().index(None)
        e.host.latents.data[free, 0, 0, 0] = 0.0
    else:
        slot = e.host.checkpoints.slots.owned_by("cache")[0]
        e.host.checkpoints._boundary[slot] = 65
    rules = {
        "page": "free [+] in flight [+] cached host pages = total",
        "slot": "what is in flight belongs to a transfer under way",
        "bytes": "free memory stays poisoned",
        "boundary": "holds a state of 65 tokens",
    }
    with pytest.raises(InvariantError, match=rules[what]):
        e.check()


def test_numbers_below_1_are_refused() -> None:
    for field in ("n_pages", "n_checkpoints", "write_through"):
        with pytest.raises(KdalabError, match=rf"host.{field} = 0; it must be a whole number"):
            HostConfig(**{field: 0})
    with pytest.raises(KdalabError, match=r"use HostConfig\(...\), or None"):
        EngineConfig(host=100)  # type: ignore[arg-type]
    e = hosted()
    with pytest.raises(KdalabError, match="cannot be named 'transfer'"):
        e.submit([1], 1, name="transfer")


def levels() -> tuple[Level, Level]:
    device = Level(LatentPool(4, 1, 2, 3), CheckpointPool(3, (1, 1, 2, 2), (1, 3, 6)))
    return device, host_level(2, 2, device)


def test_a_copy_reads_the_caches_and_writes_only_what_its_transfer_owns() -> None:
    device, host = levels()
    pages, _ = device.reserve(2, False)
    targets, slot = host.reserve(2, True)
    assert slot is not None
    with pytest.raises(KdalabError, match="belongs to transfer, not to cache"):
        copy_between(device, host, (pages, targets), None)
    device.accept(pages, None, 0)
    device.latents.data[list(pages)] = torch.arange(12.0).reshape(2, 1, 2, 3)
    copy_between(device, host, (pages, targets), None)
    assert torch.equal(host.latents.data[list(targets)], device.latents.data[list(pages)])
    host.accept(targets, None, 0)
    with pytest.raises(KdalabError, match=r"host pages: slot \d belongs to cache, not to transfer"):
        copy_between(device, host, (pages, targets), None)
    host.discard((), slot)
    assert host.free_is_poisoned()
    assert host.nbytes == host.bytes_of(2, 2)


def test_reserving_takes_all_or_nothing() -> None:
    _, host = levels()
    with pytest.raises(KdalabError, match="3 host pages wanted, 2 of 2 are free"):
        host.reserve(3, True)
    assert host.checkpoints.slots.n_free == 2
    assert host.free_is_poisoned()


def test_without_a_host_nothing_is_said_about_one() -> None:
    e = engine(tinier_model())
    e.submit([1] * 200, 2)
    e.run()
    assert e.host is None
    assert not [x for x in e.events if type(x).__module__.endswith("transfer_events")]
