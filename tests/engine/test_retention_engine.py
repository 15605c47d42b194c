"""What the engine keeps: the cap of states a path, the refresh rule, placements with room."""

from __future__ import annotations

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
    worst,
)

from kdalab.cache import MarconiOrder, PrefillFlops, PrefixKey, Retention
from kdalab.engine import EngineConfig, fold, room
from kdalab.engine import events as ev
from kdalab.errors import KdalabError
from kdalab.spec import PRESETS

LONG = (SHARED + SHARED)[:384]


def test_a_retention_is_given_by_its_text_or_as_an_object() -> None:
    assert EngineConfig(retention="lru+cap:4").kept == Retention(max_states_per_path=4)
    assert EngineConfig(retention="lru-path").kept == Retention(refresh="path")
    assert EngineConfig(retention=Retention()).kept == EngineConfig().kept
    assert engine(retention="lru+cap:3").cache.retention.max_states_per_path == 3


def test_a_cap_of_0_is_refused_with_the_reason() -> None:
    with pytest.raises(KdalabError, match="= 0; a path keeps at least its last state"):
        EngineConfig(retention="lru+cap:0")


@pytest.mark.parametrize("wrong", ["fifo", "lru+cap", "", 4, None])
def test_other_retentions_are_refused_and_the_forms_listed(wrong: object) -> None:
    with pytest.raises(KdalabError, match=r"lru, lru-path, either with \+cap:N"):
        EngineConfig(retention=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("features", [{}, {"strategy": "extra_buffer"}, {"memory": "unified"}])
@pytest.mark.parametrize("cap", [1, 2, 4])
def test_a_cap_frees_the_shallowest_states_inside_the_path(features: dict, cap: int) -> None:
    e = engine(retention=f"lru+cap:{cap}", **features)
    before = e.checkpoints.slots.n_free
    e.submit(LONG, 0)
    e.run()
    # 64, 128, ... 384 were taken; the deepest of them are left, and the others' slots are free.
    kept = [64 * i for i in range(1, 7)][-cap:]
    assert sorted(cached_states(e)) == kept
    if not features:
        assert e.checkpoints.slots.n_free == before - cap
    gone = of_type(e, ev.Evicted)
    assert [x.reason for x in gone] == ["the cap of states a path"] * (6 - cap)
    assert all(x.state_bytes == e.cache.checkpoint_bytes and x.kv_bytes == 0 for x in gone)
    assert fold(e.events, e.empty_view()) == e.view()
    for boundary, slot in cached_states(e).items():
        assert torch.equal(e.checkpoints.read(slot)[0], TINY.states(LONG[:boundary])[0])
    b = e.submit(LONG + tail(1), 2)
    e.run()
    assert b.restore == 384
    assert worst(b) == 0
    assert_nothing_leaks(e)


def test_a_cap_spares_the_fork_that_two_prompts_share() -> None:
    e = engine(retention="lru+cap:1", placement="leaf+branch")
    for seed in (1, 2, 3):
        e.submit(SHARED[:128] + tail(seed, 140), 0)
        e.run()
    assert sorted({n.end for n in e.cache.nodes.values() if n.state}) == [128, 256]
    b = e.submit(SHARED[:128] + tail(9, 40), 1)
    e.run()
    assert b.restore == 128
    assert worst(b) == 0


def test_the_whole_path_rule_keeps_a_shallow_state_that_the_consumed_rule_gives_up() -> None:
    for rule in ("lru", "lru-path"):
        e = engine(retention=rule, n_checkpoints=3, placement="every:64")
        prompts = SHARED[:128], tail(7, 64), SHARED[:129], tail(8, 64)
        for prompt in prompts:  # the third consumes 128; does that make 64 younger too?
            e.submit(prompt, 0)
            e.run()
        found = e.cache.lookup(PrefixKey.from_tokens(SHARED[:65], 16))
        assert found.restore == (64 if rule == "lru-path" else 0)
        assert_nothing_leaks(e)


# -- placements that take what there is room for ---------------------------------------------


@pytest.mark.parametrize(
    ("placement", "slots", "expected"),
    [
        ("both", 8, [128, 192]),
        ("both", 1, [192]),  # as tail-first: the branch lies in the prompt's second half
        ("branch-first", 8, [128]),
        ("tail-first", 8, [192]),
    ],
)
def test_both_states_of_an_extend_are_kept_when_there_is_room_for_two(
    placement: str, slots: int, expected: list[int]
) -> None:
    e = engine(placement=placement, n_checkpoints=slots)
    e.submit(SHARED[:192] + tail(1, 66), 0)
    e.run()
    assert sorted(cached_states(e)) == [256]
    b = e.submit(SHARED[:140] + tail(2, 100), 0)
    e.run()
    assert b.lookup.branching == 128
    assert [x.boundary for x in of_type(e, ev.Snapshotted) if x.request == b.name] == expected
    assert worst(b) == 0
    assert_nothing_leaks(e)


def test_a_state_that_is_read_leaves_no_room_for_a_second() -> None:
    e = engine(placement="both", n_checkpoints=2, n_active=2, chunk_tokens=64)
    e.submit(SHARED[:192] + tail(1, 66), 0)
    e.run()
    assert room.for_checkpoints(e) == 2
    e.submit(SHARED[:192] + tail(1, 140), 0)  # reads the state at 256
    b = e.submit(SHARED[:140] + tail(2, 100), 0)
    e.step()
    assert b.boundaries == (192,)
    e.run()
    assert_nothing_leaks(e)


def test_marconis_order_learns_its_costs_from_the_engines_own_model_and_pools() -> None:
    eng = engine(retention="marconi:1.5+cap:3", n_checkpoints=2)
    order = eng.cache.retention.order
    assert isinstance(order, MarconiOrder)
    assert order.flops == PrefillFlops.of(PRESETS["tiny"])
    assert (order.page_bytes, order.state_bytes) == (
        eng.cache.page_bytes,
        eng.cache.checkpoint_bytes,
    )
    for seed in range(4):
        eng.submit([(7 * seed + i) % 250 for i in range(200)], 2)
        eng.run()
        eng.check()
    assert of_type(eng, ev.Evicted)
