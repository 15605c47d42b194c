"""Faults that users of such caches met, one by one: each is impossible here, or is refused.

The numbers name public issue threads of SGLang, vLLM and LMCache; the scenarios are ours.
"""

from __future__ import annotations

import pytest
from cache_cases import Book, text

from kdalab.cache import Bytes, HostTier, RadixStateCache, Retention, parse_placement
from kdalab.cache.grids import grid_of
from kdalab.errors import KdalabError
from kdalab.spec import StateKind
from kdalab.spec.checkpoint import Checkpoint

# -- A. A state at the wrong position ------------------------------------------------------------


@pytest.mark.parametrize("page", [16, 48, 64])
def test_every_key_is_as_long_as_its_state(page: int) -> None:
    # sglang#34808, #35412, #39115, #34780: the grid of pages is not that of states.
    grid = grid_of(64, page)
    book = Book(page, grid)
    prompt = text(1000)
    for n in (300, 577, 1000):
        found = book.cache.lookup(book.key(prompt[:n]))
        book.run(prompt[:n], *parse_placement("all").boundaries(n, found.restore, None, grid))
    nodes = [n for n in book.cache.nodes.values() if n.state is not None]
    assert sorted(n.end for n in nodes) == list(range(grid, 1001, grid))
    assert all(n.state is not None and n.state.boundary == n.end for n in nodes)


def test_a_state_off_its_key_cannot_be_entered() -> None:
    # A chunk that ends off a page published a state ahead of its key (20,416 for 19,968).
    book = Book(page=48, grid=192)
    lease = book.cache.acquire(book.cache.lookup(book.key(text(400))))
    for boundary in (64, 240, 256):
        with pytest.raises(KdalabError, match="off the grid of 192"):
            book.cache.commit(lease, book.key(text(400)), (), Checkpoint(0, boundary))


def test_states_evicted_kv_left_restores_nothing() -> None:
    # vllm#45238, #47491, #43090: attention hits, the state misses, and yet a state was assumed.
    book = Book()
    held = book.run(text(32), 16, 32, hold=True)
    book.cache.evict(Bytes(state=10))
    found = book.cache.lookup(book.key(text(33)))
    assert (found.token_match, found.reach[StateKind.MLA_KV], found.restore) == (32, 32, 0)
    lease = book.cache.acquire(found)
    assert (lease.state, lease.pages) == (None, ())
    book.cache.release(lease)
    book.cache.release(held)
    book.cache.check()


def test_the_longest_hit_leaves_one_token() -> None:
    # vllm#50235, #51094: a prompt of exactly one block, of k blocks: never the whole of it.
    for n in (8, 16, 24):
        book = Book()
        book.run(text(n), *range(8, n + 1, 8))
        assert book.restore(text(n)) == n - 8
        assert book.restore(text(n + 1)) == n


def test_a_state_of_130_tokens_stands_at_128() -> None:
    # flashinfer#4896.
    assert parse_placement("leaf").boundaries(130, 0, None, 64) == (128,)


# -- B. Ownership --------------------------------------------------------------------------------


def test_a_second_commit_leaves_the_first_nodes_slot_alone() -> None:
    # sglang#22542: slots used directly, the cached state overwritten at the next boundary.
    book = Book()
    lease = book.run(text(8), 8, hold=True)
    first = book.cache.nodes[lease.node].state
    moved = book.cache.commit(lease, book.key(text(24)), book.take(2), Checkpoint(900, 16)).lease
    assert book.cache.nodes[lease.node].state == first
    assert book.cache.nodes[moved.node].state == Checkpoint(900, 16)


def test_an_existing_state_leaves_the_slot_with_the_caller() -> None:
    # sglang#26941, #26770: a donated slot that the tree did not need was lost, or freed twice.
    book = Book()
    kept = book.run(text(16), 16)
    slot = book.cache.nodes[kept.node].state
    lease = book.cache.acquire(book.cache.lookup(book.key(text(16))))
    done = book.cache.commit(lease, book.key(text(16)), book.take(4), Checkpoint(901, 16))
    assert done.state_existed
    assert len(done.duplicate_pages) == 4
    assert book.cache.nodes[done.lease.node].state == slot
    assert book.cache.cached_states == 1
    book.cache.release(done.lease)
    with pytest.raises(KdalabError, match="not held"):
        book.cache.release(done.lease)
    book.cache.check()


def test_letting_go_after_a_failed_admission_gives_every_lock_back() -> None:
    # sglang#16067, #15840: slots leaked when scheduling failed after the copy on write.
    book = Book()
    book.run(text(24), 8, 16, 24)
    before = (book.cache.evictable_pages, book.cache.evictable_states)
    for copied in (False, True):
        lease = book.cache.acquire(book.cache.lookup(book.key(text(25))))
        if copied:
            book.cache.unlock_state(lease)
        book.cache.release(lease)
        assert (book.cache.evictable_pages, book.cache.evictable_states) == before
        book.cache.check()


def test_another_prompts_tokens_do_not_go_under_a_lease() -> None:
    # A commit that trusts its caller would hang B's tokens below A's prefix.
    book = Book()
    book.run(text(16), 16)
    lease = book.cache.acquire(book.cache.lookup(book.key(text(17))))
    other = [*text(12), *text(20, 1)]
    with pytest.raises(KdalabError, match="others from token 12 on"):
        book.cache.commit(lease, book.key(other), book.take(2), Checkpoint(902, 24))
    assert book.cache.lookup(book.key(other)).token_match == 12
    # The same tokens under another key, as when a prompt has grown by what was generated.
    grown = book.key([*text(16), *text(16, 2)])
    book.cache.commit(lease, grown, book.take(2), Checkpoint(903, 24))
    book.cache.check()


def test_token_ids_and_block_ids_do_not_mix() -> None:
    from kdalab.cache import PrefixKey

    book = Book()
    book.run(text(16), 16)
    with pytest.raises(KdalabError, match="do not mix"):
        book.cache.lookup(PrefixKey.from_blocks([1, 2], 4, 8))


# -- C. Tree, locks, eviction --------------------------------------------------------------------


def test_a_lock_that_was_not_taken_is_not_dropped() -> None:
    # sglang#21379, #27147: a lock skipped on a tombstone, the node revived, the lock decremented.
    book = Book()
    reader = book.run(text(16), 16, hold=True)  # holds the KV, no longer the state
    node = book.cache.nodes[reader.node]
    book.cache.evict(Bytes(state=1))
    assert node.state is None
    book.run(text(16), 16)  # revived
    second = book.cache.acquire(book.cache.lookup(book.key(text(17))))
    assert node.state_lock == 1
    book.cache.unlock_state(reader)
    book.cache.release(reader)
    assert node.state_lock == 1
    assert not book.cache.evict(Bytes(state=1)).states  # still read by the second
    book.cache.release(second)
    assert node.state_lock == 0
    book.cache.check()


def test_a_revived_state_is_not_the_one_that_was_leased() -> None:
    book = Book()
    reader = book.run(text(16), 16, hold=True)
    book.cache.evict(Bytes(state=1))
    with pytest.raises(KdalabError, match="has been evicted"):
        book.cache.lock_state(reader)
    book.run(text(16), 16)
    with pytest.raises(KdalabError, match="has been evicted"):
        book.cache.lock_state(reader)
    book.cache.release(reader)
    book.cache.check()


@pytest.mark.parametrize("at", [9, 10, 11, 13])
def test_a_split_hangs_the_lower_part_under_its_own_first_page(at: int) -> None:
    # sglang#36696: prompts that part inside a page.
    book = Book()
    book.run(text(24), 24)
    book.run([*text(at), *text(24 - at, 1)], 24)
    whole = at // 4 * 4
    ends = sorted(n.end for n in book.cache.nodes.values())
    assert ends == [0, whole, 24, 24]
    assert book.restore(text(25)) == 24
    assert book.cache.lookup(book.key([*text(at), 7, 7, 7, 7])).token_match == whole


def test_asking_for_what_is_all_locked_returns_nothing() -> None:
    # sglang#36770.
    book = Book()
    book.run(text(16), 16)
    lease = book.cache.acquire(book.cache.lookup(book.key(text(17))))
    for need in (Bytes(kv=1), Bytes(state=1), Bytes(either=1), Bytes(9, 9, 9)):
        gone = book.cache.evict(need)
        assert (gone.kv_bytes, gone.state_bytes, gone.dropped) == (0, 0, ())
    book.cache.release(lease)
    empty = RadixStateCache(4, 8)
    assert empty.evict(Bytes(1, 1, 1)).dropped == ()


@pytest.mark.parametrize(("refresh", "survivor"), [("consumed", 8), ("path", 0)])
def test_refreshing_the_whole_path_keeps_useless_shallow_states(
    refresh: str, survivor: int
) -> None:
    # sglang#31643, #31648: a chain of three, its deepest state hit again and again.
    book = Book(retention=Retention(refresh=refresh))
    book.run(text(24), 8, 16, 24)
    book.run(text(8, 1), 8)
    for _ in range(3):
        book.run([*text(24), 1])
    for _ in range(2):
        book.cache.evict(Bytes(state=1))
    # By the first rule the shallow states of the chain have gone and the other prompt stays.
    assert book.restore(text(9, 1)) == survivor
    assert book.restore(text(25)) == 24


def test_the_upward_cascade_stops_at_locks_and_at_the_root() -> None:
    # sglang#22592, #23696.
    book = Book()
    book.run(text(32), 32)
    middle = book.run([*text(16), *text(16, 1)], 16, hold=True)  # locks the node [0, 16)
    book.cache.evict(Bytes(state=2))
    assert book.cache.nodes[middle.node].state is None
    book.cache.evict(Bytes(kv=100))
    assert {n.end for n in book.cache.nodes.values()} == {0, 16}
    book.cache.release(middle)
    assert list(book.cache.nodes) == [0]


def test_ten_turns_with_a_cap_of_two_keep_two_states() -> None:
    # sglang#31230, #39853: one path monopolises the pool.
    book = Book(retention=Retention(max_states_per_path=2))
    for turn in range(1, 11):
        book.run(text(8 * turn), 8 * turn)
    assert book.cache.cached_states == 2
    assert book.restore(text(81)) == 80
    assert book.restore(text(80)) == 72
    assert book.cache.cached_pages == 20  # KV stays: the states alone were too many


def test_the_cap_spares_forks_and_what_is_being_read() -> None:
    book = Book(retention=Retention(max_states_per_path=1))
    book.run(text(8), 8)
    for seed in (1, 2):
        book.run([*text(8), *text(8, seed)], 16)
    assert book.restore([*text(8), 5]) == 0  # gone before the second prompt made it a fork
    book.run([*text(8), 5], 8)
    reader = book.cache.acquire(book.cache.lookup(book.key([*text(8), *text(8, 1), 5])))
    book.run([*text(8), *text(16, 1)], 24)
    assert book.restore([*text(8), *text(8, 1), 5]) == 16
    assert book.restore([*text(8), 5]) == 8  # a fork serves other paths too
    book.cache.release(reader)
    book.run([*text(8), *text(24, 1)], 32)
    assert book.restore([*text(8), *text(8, 1), 5]) == 8
    book.cache.check()


@pytest.mark.parametrize("cap", [0, -1, 1.5, True])
def test_a_cap_below_one_is_refused(cap: object) -> None:
    with pytest.raises(KdalabError, match="keeps at least its last state"):
        Retention(max_states_per_path=cap)  # type: ignore[arg-type]


def test_full_of_kv_a_state_can_still_be_had() -> None:
    # sglang#34441, #36713: asked in its own slots, the state side starves beside cached KV.
    book = Book(page_bytes=1, state_bytes=10)
    for seed in range(20):
        book.run(text(16, seed), 16)
    book.cache.evict(Bytes(state=10 * 19))  # states gone, and with each its leaf
    kv = book.cache.kv_bytes
    assert kv == 4
    for seed in range(40, 60):
        held = book.run(text(16, seed), 16, hold=True)
        book.cache.evict(Bytes(state=0))
        book.cache.release(held)
    gone = book.cache.evict(Bytes(either=30))
    assert gone.kv_bytes + gone.state_bytes >= 30


def test_a_hit_that_is_locked_survives_the_allocation_that_follows() -> None:
    # vllm#33775: an external allocation evicted another group's just-found hit.
    book = Book()
    book.run(text(16), 16)
    lease = book.cache.acquire(book.cache.lookup(book.key(text(17))))
    book.cache.evict(Bytes(kv=10**6, state=10**6))
    assert book.cache.nodes[lease.node].state == lease.state
    book.cache.release(lease)


def test_a_state_that_goes_between_lookup_and_acquire_is_noticed() -> None:
    # vllm#53803: the grid's checkpoint was nulled before it was cached.
    book = Book()
    held = book.run(text(16), 16, hold=True)
    found = book.cache.lookup(book.key(text(17)))
    book.cache.evict(Bytes(state=1))
    with pytest.raises(KdalabError, match="look up again"):
        book.cache.acquire(found)
    book.cache.release(held)


def test_a_lookup_survives_a_split_above_its_restore_point() -> None:
    book = Book()
    first = book.run(text(32), 32)
    found = book.cache.lookup(book.key(text(33)))
    book.run([*text(16), *text(16, 1)], 32)
    lease = book.cache.acquire(found)
    assert lease.node == first.node
    book.cache.check()
    assert lease.pages == first.pages
    book.cache.release(lease)


# -- D. Hit length and economics -----------------------------------------------------------------


def test_the_boundary_before_the_prompts_end_is_what_the_same_prompt_restores() -> None:
    # vllm#53945, #53923: only the last boundary retained, and one unit dropped: 0 hits.
    for placement, hit in (("leaf", 0), ("all", 56)):
        book = Book(page=8, grid=8)
        found = parse_placement(placement).boundaries(64, 0, None, 8)
        book.run(text(64), *found)
        assert book.restore(text(64)) == hit


def test_each_kind_has_its_own_reach() -> None:
    # vllm#46453: groups with different hits.
    book = Book()
    book.run(text(32), 16, 32)
    found = book.cache.lookup(book.key([*text(28), *text(8, 1)]))
    assert found.reach[StateKind.MLA_KV] == 28
    assert found.reach[StateKind.KDA_RECURRENT] == found.reach[StateKind.KDA_CONV] == 16
    assert found.restore == min(found.reach.values())


def test_a_prompt_shorter_than_the_grid_says_why_it_never_hits() -> None:
    # vllm#40696, #51198: silent 0 % with prompts of 500 tokens and blocks of 528.
    book = Book(page=48, grid=528)
    assert parse_placement("all").boundaries(500, 0, None, 528) == ()
    book.run(text(500))
    assert book.cache.lookup(book.key(text(500))).binding == "no cached prefix"
    book.run(text(1100), 528, 1056)
    found = book.cache.lookup(book.key(text(500)))
    assert (found.token_match, found.restore) == (480, 0)
    assert found.binding == "no checkpoint on the path"


def test_dense_checkpoints_fill_the_pool_and_sparse_ones_do_not() -> None:
    # vllm#45845: about 80 % of the blocks held states.
    held = {}
    for placement in ("all", "every:64", "leaf"):
        book = Book(page=8, grid=8)
        book.run(text(256), *parse_placement(placement).boundaries(256, 0, None, 8))
        held[placement] = book.cache.cached_states
    assert held == {"all": 32, "every:64": 4, "leaf": 1}


def test_tokens_lost_to_missing_checkpoints_are_counted_and_named() -> None:
    # vllm#52527.
    book = Book()
    book.run(text(64), 8, 64)
    found = book.cache.lookup(book.key([*text(60), 9, 9, 9, 9]))
    assert (found.restore, found.replay, found.new) == (8, 52, 4)
    assert "binding constraint: recurrent and conv state: the deepest checkpoint on the path" in (
        found.why
    )


# -- beyond one level ----------------------------------------------------------------------------


def test_a_load_brings_the_state_with_the_pages() -> None:
    # LMCache#4247: a shared prefix gave nonsense after a load without the state of its group.
    book = Book(host=HostTier(1))
    book.run(text(16), 16)
    book.back_up()
    book.cache.evict(Bytes(kv=100))
    assert book.restore(text(17)) == 0
    job = book.load(text(17))
    assert len(job.sources) == 4
    assert job.state is not None
    assert book.restore(text(17)) == 0  # not before all of it is there
    host = book.cache.host
    assert host is not None
    host.ack(job.id)
    lease = book.cache.acquire(book.cache.lookup(book.key(text(17))))
    assert lease.pages == job.targets
    assert lease.state == Checkpoint(job.state[1], 16)
    book.cache.release(lease)
    book.cache.check()


def test_a_long_prompt_is_written_through_like_a_short_one() -> None:
    # sglang#33712, #36345.
    book = Book(host=HostTier(2))
    long = text(400)
    book.run(long, *range(8, 401, 8))
    assert book.back_up() == 0
    book.run([*long, 1])
    assert book.back_up() == 50
    host = book.cache.host
    assert host is not None
    assert (host.cached_pages, host.cached_states) == (100, 50)
