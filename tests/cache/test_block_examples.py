"""The examples that articles and reports give, by name and by number."""

from __future__ import annotations

import pytest
from block_cases import Bench, text

from kdalab.cache import (
    BlockStateCache,
    Bytes,
    CacheMode,
    Checkpoint,
    ExtraKeys,
    HashChain,
    PrefixKey,
    StateCache,
)
from kdalab.cache.block_pool import BlockPool, Key
from kdalab.errors import InvariantError, KdalabError

NEW = tuple(range(10**6, 10**6 + 300))


def test_400_shared_tokens_in_blocks_of_256_with_a_unit_of_64_restore_at_384() -> None:
    bench = Bench(256, unit=64, states=3)
    bench.run(text(400))
    assert bench.restore(text(400) + NEW) == 384
    coarse = Bench(256, states=3)
    coarse.run(text(400))
    assert coarse.restore(text(400) + NEW) == 256


def test_4480_tokens_in_a_block_of_8192_are_a_hit() -> None:
    bench = Bench(8192, 40, unit=128)
    bench.run(text(4500))
    found = bench.lookup(text(4500) + NEW)
    assert found.restore == 4480
    assert Bench(8192, 40).restore(text(4500)) == 0


def test_a_96_token_hit_lies_in_a_block_of_128() -> None:
    bench = Bench(128, unit=32)
    bench.run(text(100))
    assert bench.restore(text(100) + NEW) == 96


def test_15k_shared_tokens_with_states_every_10k_replay_5k() -> None:
    bench = Bench(1000, 200, retention=10_000)
    bench.run(text(20_500))
    found = bench.lookup(text(15_000) + NEW)
    assert (found.token_match, found.restore, found.replay) == (15_000, 10_000, 5_000)
    assert found.branching == 15_000


@pytest.mark.parametrize(("interval", "restore"), [(100_000, 900_000), (400_000, 800_000)])
def test_905k_shared_tokens_restore_where_the_last_state_is(interval: int, restore: int) -> None:
    bench = Bench(5_000, 1_000, retention=interval)
    chunk = 100_000
    cache, key = bench.cache, bench.key(range(950_000))
    lease = cache.acquire(cache.lookup(key))
    while lease.boundary < 950_000:
        end = cache.chunk_end(lease, chunk)
        assert cache.allocate(lease, end) is not None
        lease = cache.advance(lease, end)
        cache.step_done()
    cache.release(lease)
    cache.check()
    found = bench.lookup([*range(905_000), *NEW])
    assert (found.token_match, found.restore) == (905_000, restore)
    assert found.replay == 905_000 - restore


@pytest.mark.parametrize("unit", [None, 128])
def test_a_prompt_of_exactly_one_block_never_hits_all_of_itself(unit: int | None) -> None:
    bench = Bench(1536, 60, unit=unit)
    bench.run(text(1536))
    assert bench.restore(text(1536)) == (1536 - 128 if unit else 0)


def test_a_prompt_shorter_than_a_block_hits_only_with_a_fine_unit() -> None:
    coarse, fine = Bench(528), Bench(528, unit=16)
    for bench in (coarse, fine):
        bench.run(text(500))
    assert coarse.restore(text(500)) == 0
    assert fine.restore(text(500)) == 496


def test_a_speculative_drop_of_one_unit_still_leaves_95_tokens_a_hit() -> None:
    """Only reachable boundaries are kept, so the one that is left after the drop must be one."""
    bench = Bench(16, speculative=True)
    bench.run(text(95))
    assert bench.restore(text(95)) == 64
    inside = Bench(256, unit=64, speculative=True)
    inside.run(text(400))
    found = inside.lookup(text(400))
    assert (found.restore, found.dropped) == (320, 64)


def test_the_second_prompt_leaves_a_state_at_the_junction_and_the_third_restores_there() -> None:
    bench = Bench(64)
    shared = text(640)
    bench.run(shared + NEW)
    second = bench.lookup(shared + text(200, 5))
    assert (second.restore, second.branching) == (0, 640)
    bench.run(shared + text(200, 5))
    third = bench.lookup(shared + text(200, 6))
    assert (third.restore, third.branching) == (640, None)


def test_states_that_went_alone_leave_no_hit() -> None:
    bench = Bench(16)
    bench.run(text(100))
    gone = bench.cache.evict(Bytes(state=10))
    assert gone.states
    assert not gone.pages
    found = bench.lookup(text(100))
    assert (found.token_match, found.restore) == (96, 0)
    assert found.binding == "no state block on the way"


def test_what_a_step_caches_cannot_be_read_in_that_step() -> None:
    bench = Bench(16)
    cache, tokens = bench.cache, text(60)
    lease = cache.acquire(bench.lookup(tokens))
    assert cache.allocate(lease, 48) is not None
    lease = cache.advance(lease, 48)
    found = bench.lookup(tokens)
    assert found.deferred
    assert "wait" in found.binding
    with pytest.raises(KdalabError, match="computed in this step"):
        cache.acquire(found)
    cache.step_done()
    assert not bench.lookup(tokens).deferred
    assert bench.restore(tokens) == 48


def test_what_a_request_gives_back_in_a_step_is_taken_by_nobody_before_its_end() -> None:
    bench = Bench(16, n_blocks=8)
    cache = bench.cache
    lease = cache.acquire(bench.lookup(text(60)))
    assert cache.allocate(lease, 48) is not None
    lease = cache.advance(lease, 48)
    cache.release(lease)
    other = cache.acquire(bench.lookup(text(60, 3)))
    assert cache.allocate(other, 60) is None
    cache.check()
    cache.step_done()
    assert cache.allocate(other, 60) is not None


def test_the_owner_keeps_its_block_and_the_entry_moves() -> None:
    bench = Bench(256, unit=64)
    tokens = text(400)
    lease = bench.start(tokens)
    moved = bench.prefill(lease, tokens, 384)
    assert moved is not None
    assert moved.state is not None
    entry = moved.state.slot
    step = bench.cache.allocate(moved, 400)
    assert step is not None
    (work,) = step.states
    assert work.writes == {400: entry}  # the owner writes where it wrote before
    (copy,) = step.copies
    assert copy.source == entry
    assert bench.lookup(tokens).deferred  # until the copy is made
    bench.copies(step)
    bench.forward(moved, tokens, step)
    bench.cache.advance(moved, 400)
    bench.cache.step_done()
    bench.check()
    assert bench.restore(tokens + NEW) == 384


def test_an_entry_that_others_hold_is_left_to_them() -> None:
    bench = Bench(256, unit=64)
    tokens = text(400)
    owner = bench.prefill(bench.start(tokens), tokens, 384)
    assert owner is not None
    reader = bench.start(tokens + NEW)
    assert (reader.boundary, reader.state) == (384, owner.state)
    assert bench.prefill(owner, tokens, 400) is not None
    assert bench.prefill(reader, tokens + NEW, 600) is not None
    bench.check()


def test_a_chunk_through_a_boundary_gives_the_older_state_no_name() -> None:
    """Resumed inside a block, and run through the block's end: the state of 512 tokens that still
    stands in the slot must not be known as one of 1,536."""
    bench = Bench(1536, 60, unit=128)
    bench.run(text(600))
    tokens = text(600) + NEW * 8
    lease = bench.start(tokens)
    assert lease.boundary == 512
    moved = bench.prefill(lease, tokens, 2000)  # not where the split would end it
    assert moved is not None
    assert bench.restore(tokens[:1600]) == 512


def test_no_budget_for_a_block_means_progress_inside_it() -> None:
    bench = Bench(1536, 60, unit=128)
    bench.run(text(4000), budget=500)
    assert bench.restore(text(4000)) == 3968


def test_rejected_drafts_leave_the_state_as_it_was() -> None:
    bench = Bench(16)
    tokens = text(40)
    lease = bench.run(tokens, hold=True)
    for accept in (0, 3, 1, 3, 3, 0, 2):
        n = lease.boundary
        longer = text(n + 8)
        moved = bench.step(lease, longer, n + 1, drafts=3, accept=accept)
        assert moved is not None
        assert moved.boundary == n + 1 + accept
        assert moved.state is not None
        assert bench.memory[moved.state.slot] == longer[: n + 1 + accept]
        lease = moved


def test_a_state_under_a_key_of_another_length_cannot_be_made() -> None:
    pool = BlockPool(4, 1)
    (block,) = pool.take(1, 0)
    block.length = 512
    with pytest.raises(InvariantError, match="key length equals state length"):
        pool.name(block, Key(b"x", 1536), is_state=True)


def test_it_keeps_the_protocol_and_holds_a_commit_to_what_it_says() -> None:
    cache: StateCache = Bench(16).cache
    assert isinstance(cache, BlockStateCache)
    key = PrefixKey.from_tokens(text(40), 16)
    lease = cache.acquire(cache.lookup(key))
    step = cache.allocate(lease, 32)
    assert step is not None
    pages, block = step.kv_blocks[0], step.states[0].writes[32]
    for wrong_pages, wrong in (
        (pages[:1], Checkpoint(block, 32)),
        (pages, Checkpoint(block + 1, 32)),
        (pages, Checkpoint(block, 31)),
    ):
        with pytest.raises(KdalabError, match="given"):
            cache.commit(lease, key, wrong_pages, wrong)
    done = cache.commit(lease, key, pages, Checkpoint(block, 32))
    assert (done.lease.pages, done.lease.state) == (pages, Checkpoint(block, 32))
    cache.step_done()
    cache.release(done.lease)
    cache.check()
    assert cache.lookup(key).restore == 32


@pytest.mark.parametrize("mode", list(CacheMode))
def test_modes_keep_states_nowhere_everywhere_and_where_steps_end(mode: CacheMode) -> None:
    bench = Bench(16, mode=mode, retention=None)
    bench.run(text(100), budget=48)
    states = {len(bench.memory[b.id]) for b in bench.cache.pool.tables[1].values()}
    expected = {
        CacheMode.NONE: set(),
        CacheMode.ALL: {16, 32, 48, 64, 80, 96},
        CacheMode.ALIGN: {48, 96},
    }
    assert states == expected[mode]
    assert bench.restore(text(100)) == max(states, default=0)


def test_the_kernel_s_own_checkpoint_saves_the_stop_at_the_tail() -> None:
    ends: dict[int, int] = {}
    for grid in (0, 64):
        bench = Bench(256, unit=64, kernel_grid=grid)
        ends[grid] = bench.cache.chunk_end(bench.start(text(400)), 1000)
        bench = Bench(256, unit=64, kernel_grid=grid)
        bench.run(text(400))
        assert bench.restore(text(400)) == 384
    assert ends == {0: 384, 64: 400}


def test_prompts_of_another_salt_or_adapter_share_nothing() -> None:
    cache = Bench(16).cache
    key = PrefixKey.from_tokens(text(40), 16)
    mine = HashChain(key, 16, ExtraKeys(salt="mine"))
    lease = cache.acquire(cache.lookup(mine))
    assert cache.allocate(lease, 32) is not None
    lease = cache.advance(lease, 32)
    cache.step_done()
    cache.release(lease)
    assert cache.lookup(mine).restore == 32
    for extra in (ExtraKeys(), ExtraKeys(salt="yours"), ExtraKeys(salt="mine", adapter="a")):
        found = cache.lookup(HashChain(key, 16, extra))
        assert (found.token_match, found.restore) == (0, 0)
    with pytest.raises(KdalabError, match="this cache's unit is 16"):
        cache.lookup(HashChain(PrefixKey.from_tokens(text(40), 8), 8))


def test_the_reasons_name_each_group_and_the_junction() -> None:
    bench = Bench(64, states=2)
    bench.run(text(640) + NEW)
    assert bench.lookup(text(640) + text(200, 5)).why == (
        "text known to 640 of 840 tokens",
        "group full: KV to 640",
        "group state 0: no state on the way",
        "group state 1: no state on the way",
        "binding constraint: no state block on the way",
        "restore 0, replay 640, compute 200 new tokens",
        "junction: shared by a second prompt to 640",
    )


def test_blocks_taken_for_rejected_drafts_serve_the_next_tokens() -> None:
    bench = Bench(4, n_blocks=12)
    lease = bench.run(text(3), hold=True)
    moved = bench.step(lease, text(8), 4, drafts=3, accept=0)  # drafts reach into a second block
    assert moved is not None
    assert len(moved.pages) == 2
    step = bench.cache.allocate(moved, 5)
    assert step is not None
    assert step.kv_blocks[0] == ()
    bench.cache.release(moved)
    bench.cache.check()


def test_a_step_shorter_than_the_drafts_before_it_takes_no_blocks_back() -> None:
    bench = Bench(4, n_blocks=14)
    lease = bench.run(text(2), hold=True)
    moved = bench.step(lease, text(12), 3, drafts=6, accept=0)
    assert moved is not None
    again = bench.step(moved, text(12), 4)
    assert again is not None
    assert len(again.pages) == 3
    bench.check()
