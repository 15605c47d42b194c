"""Kinds of faults that users of serving engines have reported, each as a scenario here.

Letters A to D are those of the collection that the project keeps: A a state at the wrong
position, B races and ownership, C tree, locks and eviction, D hit length. What the cache alone
can show is tested in ``tests/cache``.
"""

from __future__ import annotations

import dataclasses

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

from kdalab.cache import Bytes, Retention
from kdalab.engine import Engine, EngineConfig, Phase
from kdalab.engine import events as ev
from kdalab.errors import KdalabError
from kdalab.spec import IdentityMismatchError, StateIdentity

HOW = ["copy", "extra_buffer", "extra_buffer_lazy"]


def assert_keys_equal_states(e: Engine) -> None:
    for boundary, slot in cached_states(e).items():
        assert e.checkpoints.boundary(slot) == boundary
        assert boundary % e.config.grid == 0


# -- A. a state at the wrong position --------------------------------------------------------


@pytest.mark.parametrize("how", HOW)
def test_a_the_state_at_a_hit_is_the_recomputed_one_in_poisoned_slots(how: str) -> None:
    e = engine(strategy=how, chunk_tokens=128)
    e.submit((SHARED + SHARED)[:256], 0)
    e.run()
    b = e.submit((SHARED + SHARED)[:257], 1)
    e.step()
    recurrent, conv, _ = TINY.states((SHARED + SHARED)[:257])
    assert b.restore == 256
    e.run()
    for boundary, slot in cached_states(e).items():
        state = TINY.states((SHARED + SHARED)[:boundary])
        assert torch.equal(e.checkpoints.read(slot)[0], state[0])
        assert torch.equal(e.checkpoints.read(slot)[1], state[1])
    assert recurrent.isfinite().all()
    assert conv.isfinite().all()


@pytest.mark.parametrize("page", [8, 16, 32, 48, 64])
def test_a_key_length_equals_state_length_on_every_page_size(page: int) -> None:
    grid = {48: 192}.get(page, 64)
    e = engine(page_tokens=page, n_pages=1200 // page, placement=f"every:{grid}")
    for cut in (64, 100, 130, 199):
        e.submit(SHARED[:cut] + tail(cut, 140), 2)
        e.run()
        assert_keys_equal_states(e)
    assert cached_states(e)


def test_a_a_boundary_off_the_grid_cannot_enter_the_cache() -> None:
    e = engine()
    e.submit(SHARED, 1)
    e.step()
    r = e.requests["A"]
    from kdalab.spec.checkpoint import Checkpoint

    lease = e.cache.acquire(e.cache.lookup(r.key))
    with pytest.raises(KdalabError, match="off the grid"):
        e.cache.commit(lease, r.key, (0,) * 7, Checkpoint(0, 100))
    e.cache.release(lease)


@pytest.mark.parametrize("n", [1, 2, 63, 64, 65, 127, 128, 129, 130, 196])
def test_a_odd_lengths_have_the_state_at_the_last_grid_point(n: int) -> None:
    e = engine()
    r = e.submit(SHARED[:n], 2)
    e.run()
    assert worst(r) == 0
    expected = TINY.states(SHARED[: n // 64 * 64]) if n >= 64 else None
    if expected is not None:
        slot = cached_states(e)[n // 64 * 64]
        assert torch.equal(e.checkpoints.read(slot)[0], expected[0])


def test_a_the_same_prompt_twice_leaves_one_token_to_compute() -> None:
    for n in (64, 128):
        e = engine()
        e.submit(SHARED[:n], 1)
        e.run()
        b = e.submit(SHARED[:n], 1)
        e.run()
        assert b.restore == n - 64
        assert b.token_match == n
        assert worst(b) == 0


def test_a_a_used_slot_is_cleared_before_a_new_request_reads_it() -> None:
    e = engine(n_active=1, poison=False, reuse=False)  # the old bytes are still there
    e.submit(tail(1, 100), 2)
    e.run()
    assert e.active.conv[0].isfinite().all()
    r = e.submit(SHARED[:70], 2)
    e.run()
    assert worst(r) == 0


def test_a_with_states_gone_and_text_known_nothing_is_restored() -> None:
    e = engine(n_active=2)
    e.submit(SHARED, 0)
    e.run()
    reader = e.submit(SHARED + tail(1), 30)
    e.step()
    e.give_back(e.cache.evict(Bytes(state=10**9)), "", "a test")
    e.check()
    b = e.submit(SHARED[:190], 1)
    e.run()
    assert b.restore == 0
    assert b.token_match >= 128
    assert worst(b) == worst(reader) == 0


@pytest.mark.parametrize("n_drafts", [1, 2, 3])
def test_a_drafts_never_enter_the_cache_beyond_what_was_accepted(n_drafts: int) -> None:
    from kdalab.engine.drafters import Scripted

    prompt = SHARED[:120]
    out = TINY.greedy(prompt, 20)
    script = Scripted((tuple(prompt + out),), miss=4)
    e = engine(draft_tokens=n_drafts, drafter=script, decode_interval=64)
    e.submit(prompt, 20)
    e.run()
    plain = engine(decode_interval=64)
    plain.submit(prompt, 20)
    plain.run()
    assert set(cached_states(e)) == set(cached_states(plain)) == {64, 128}
    for boundary, slot in cached_states(e).items():
        mine, other = e.checkpoints.read(slot), cached_states(plain)[boundary]
        assert torch.equal(mine[0], plain.checkpoints.read(other)[0])


# -- B. races, ownership, copies -------------------------------------------------------------


def test_b_a_deferred_copy_never_sees_what_a_later_forward_writes() -> None:
    e = engine(n_active=4, chunk_tokens=64, strategy="extra_buffer", n_checkpoints=12)
    e.submit(SHARED, 0)
    e.run()
    late = [e.submit(SHARED[:n] + tail(n), 4) for n in (135, 150, 195)]
    while not e.is_idle:
        e.step()
    for r in late:
        assert worst(r) == 0


@pytest.mark.parametrize("how", HOW)
def test_b_ending_twice_frees_once(how: str) -> None:
    e = engine(strategy=how, decode_interval=64)
    r = e.submit(SHARED[:120], 20)
    while r.computed < 130:
        e.step()
    e.abort("A")
    free = e.active.slots.n_free
    e.abort("A")
    assert e.active.slots.n_free == free
    assert r.slots == ()
    assert_nothing_leaks(e)


@pytest.mark.parametrize("how", HOW)
def test_b_no_room_after_the_hit_was_locked_leaks_nothing(how: str) -> None:
    e = engine(strategy=how, n_pages=16, n_active=3)
    e.submit(SHARED[:100], 0)
    e.run()
    holder = e.submit(tail(5, 150), 20)
    e.step()
    blocked = e.submit(SHARED[:100] + tail(6, 100), 2)
    for _ in range(3):
        e.step()
        assert blocked.phase is Phase.WAITING
        assert blocked.lease is None
        e.check()
    e.run()
    assert worst(blocked) == worst(holder) == 0
    assert_nothing_leaks(e)


def test_b_the_leak_check_does_not_cry_wolf_while_requests_wait() -> None:
    e = engine(n_active=1)
    for seed in range(4):
        e.submit(tail(seed, 80), 2)
    while not e.is_idle:
        e.step()  # check() runs after every step
    assert_nothing_leaks(e)


# -- C. tree, locks, eviction ----------------------------------------------------------------


def test_c_asked_when_all_is_locked_eviction_gives_nothing() -> None:
    e = engine(n_active=1)
    e.submit(SHARED, 0)
    e.run()
    e.submit(SHARED + tail(1), 8)
    e.step()
    e.give_back(e.cache.evict(Bytes(kv=10**9, state=10**9)), "", "all that is free")
    assert e.cache.evict(Bytes(kv=1, state=1, either=1)).dropped == ()
    e.run()
    assert worst(e.requests["B"]) == 0


def test_c_a_conversation_keeps_to_its_cap_of_states() -> None:
    e = engine(retention=Retention(max_states_per_path=2), n_pages=128, placement="every:64")
    text = list(SHARED[:64])
    for turn in range(6):
        text += tail(turn, 64)
        r = e.submit(text, 1)
        e.run()
        assert worst(r) == 0
        assert len(cached_states(e)) <= 2
    assert_nothing_leaks(e)


def test_c_a_state_finds_room_in_a_unified_buffer_full_of_cached_pages() -> None:
    model = tinier_model()
    e = engine(model, memory="unified", n_pages=24, n_active=2, n_checkpoints=2, placement="leaf")
    assert e.buffer is not None
    for seed in range(12):
        e.submit([(seed * 7 + i) % 64 for i in range(64 + 16 * (seed % 5))], 0)
        e.run()
    free = e.buffer.gap // e.buffer.pages.entry_bytes
    hog = e.latents.slots.allocate("cache", free) if free else ()
    e.latents.free(hog, "cache")
    r = e.submit([3] * 200, 2)
    e.run()
    assert r.finish_reason == "length"
    assert of_type(e, ev.Evicted)
    assert_nothing_leaks(e)


def test_c_cached_states_yield_to_pages_as_well() -> None:
    model = tinier_model()
    e = engine(model, memory="unified", n_pages=40, n_active=1, n_checkpoints=8)
    for seed in range(8):
        e.submit([(seed * 7 + i) % 64 for i in range(64)], 0)
        e.run()
    assert e.cache.cached_states > 2
    big = e.page_limit * e.config.page_tokens - 2
    r = e.submit([5] * big, 1)
    e.run()
    assert r.finish_reason == "length"
    assert any(d.state is not None for x in of_type(e, ev.Evicted) for d in x.dropped)
    assert_nothing_leaks(e)


def test_c_nothing_moves_while_a_transfer_holds_the_gate() -> None:
    e = engine(memory="unified", n_active=4)
    for seed in range(3):
        e.submit(tail(seed, 80), 3)
    e.run()
    assert e.buffer is not None
    slot = min(cached_states(e).values())
    with e.buffer.gate():
        at = e.buffer.states.address(slot)
        e.submit(SHARED, 4)
        e.step()
        assert e.buffer.states.address(slot) == at
        assert not e.buffer.moved
    e.run()
    assert_nothing_leaks(e)


def test_c_every_move_is_an_event() -> None:
    e = engine(memory="unified", n_active=3, n_checkpoints=3, n_pages=30)
    for seed in range(6):
        e.submit(tail(seed, 100 + seed), 3)
        e.submit(SHARED[:90], 2)
    e.run()
    moves = of_type(e, ev.Moved)
    assert moves
    for x in moves:
        assert x.source != x.target
        assert x.bytes > 0
    assert {x.pool for x in moves} <= {"states", "latent pages"}


def test_c_what_a_request_has_just_found_is_not_evicted_for_it() -> None:
    e = engine(n_pages=14, n_active=1, placement="leaf")
    e.submit(SHARED[:100], 0)
    e.run()
    b = e.submit(SHARED[:100] + tail(1, 100), 1)
    e.run()
    assert b.restore == 64
    assert worst(b) == 0


# -- D. hit length ---------------------------------------------------------------------------


def test_d_a_prompt_of_95_tokens_hits_64() -> None:
    e = engine(draft_tokens=3)
    e.submit(SHARED[:95], 2)
    e.run()
    b = e.submit(SHARED[:95], 2)
    e.run()
    assert b.restore == 64


def test_d_a_prompt_shorter_than_a_large_page_says_why_it_hits_nothing() -> None:
    e = engine(page_tokens=512, n_pages=8, placement="every:512")
    e.submit(SHARED[:150], 1)
    e.run()
    b = e.submit(SHARED[:150], 1)
    e.run()
    assert b.restore == 0
    assert "no cached prefix" in of_type(e, ev.Matched)[-1].binding


def test_d_lost_tokens_are_told_with_their_reason() -> None:
    e = engine(placement="every:128")
    e.submit(SHARED, 0)
    e.run()
    e.submit(SHARED[:120] + tail(1), 1)
    e.run()
    fell = of_type(e, ev.FellBack)[-1]
    assert (fell.token_match, fell.restore) == (112, 0)
    assert fell.binding
    assert sum(x.end - x.start for x in of_type(e, ev.Replayed) if x.request == "B") == 112


def test_a_request_of_another_identity_is_refused_and_takes_nothing() -> None:
    mine = StateIdentity("tiny", "seed 0", "bytes")
    e = Engine(TINY, EngineConfig(), identity=mine)
    with pytest.raises(IdentityMismatchError, match="model_version: 'seed 0' and 'seed 1'"):
        e.submit([1], 1, identity=dataclasses.replace(mine, model_version="seed 1"))
    with pytest.raises(KdalabError, match="has no identity"):
        engine().submit([1], 1, identity=mine)
    assert not e.requests
    assert not e.events
    e.submit([1], 1, identity=dataclasses.replace(mine))
