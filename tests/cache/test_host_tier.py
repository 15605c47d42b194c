"""The second level, one named rule at a time."""

from __future__ import annotations

import pytest
from cache_cases import Book, text

from kdalab.cache import Bytes, HostTier, Retention
from kdalab.errors import InvariantError, KdalabError
from kdalab.spec import StateKind
from kdalab.spec.checkpoint import Checkpoint


def two_levels(write_through: int = 1, retention: Retention | None = None) -> tuple[Book, HostTier]:
    host = HostTier(write_through)
    return Book(host=host, retention=retention), host


def test_a_copy_is_due_after_so_many_uses() -> None:
    book, host = two_levels(write_through=3)
    for use in range(4):
        assert len(host.due()) == (use >= 3)
        book.run([*text(16), use], *([16] if use == 0 else []))
    assert host.due() == ((1, 16, 4, True),)


def test_what_leaves_the_device_comes_back_from_the_host() -> None:
    book, host = two_levels()
    book.run(text(32), 16, 32)
    book.back_up()
    gone = book.cache.evict(Bytes(kv=100))
    assert (len(gone.pages), len(gone.states), gone.host_pages) == (8, 2, ())
    assert not any(d.removed for d in gone.dropped)
    found = book.cache.lookup(book.key(text(33)))
    assert (found.token_match, found.restore, found.host_restore) == (32, 0, 32)
    assert found.reach[StateKind.MLA_KV] == 0
    assert "with what the host holds: restore 32" in found.why
    assert found.binding == "the checkpoint at 32 or its latent KV is on the host"
    job = book.load(text(33))
    assert len(job.sources) == 8  # all pages,
    assert book.cache.nodes[1].state is None
    landed = host.ack(job.id)
    assert not landed.duplicate_pages
    assert book.restore(text(33)) == 32
    assert book.restore(text(32)) == 0  # and only the last state: 16 stays below
    assert book.cache.lookup(book.key(text(32))).host_restore == 16
    job = book.load(text(32))
    assert (job.sources, job.state is None) == ((), False)  # a state alone
    host.ack(job.id)
    assert book.restore(text(32)) == 16
    book.cache.check()


def test_a_node_split_under_way_gets_its_ack_for_both_halves() -> None:
    book, host = two_levels()
    book.run(text(32), 32)
    wish = host.due()[0]
    pages = book.take(wish.pages)
    job = host.start_backup(wish.node, pages, book.take(1)[0])
    book.run([*text(16), *text(16, 1)], 32)
    book.cache.check()
    landed = host.ack(job.id)
    upper = next(n for n in book.cache.nodes.values() if n.end == 16)
    lower = book.cache.nodes[wish.node]
    assert (tuple(upper.host_pages), tuple(lower.host_pages)) == (pages[:4], pages[4:])
    assert upper.host_state is None
    assert lower.host_state == Checkpoint(job.state[1], 32)  # type: ignore[index]
    assert (
        [(c.node, c.pages) for c in landed.changes]
        == [  # type: ignore[union-attr]
            (upper.id, pages[:4]),
            (lower.id, pages[4:]),
        ]
    )
    book.cache.check()


def test_a_transfer_keeps_what_it_reads_and_where_it_goes() -> None:
    book, host = two_levels()
    book.run(text(16), 16)
    wish = host.due()[0]
    job = host.start_backup(wish.node, book.take(wish.pages), book.take(1)[0])
    assert not book.cache.evict(Bytes(kv=100, state=100)).dropped
    assert host.due() == ()  # not twice
    with pytest.raises(KdalabError, match="a copy of its path is under way"):
        host.start_backup(wish.node, book.take(wish.pages), book.take(1)[0])
    host.ack(job.id)
    assert book.cache.evict(Bytes(kv=100)).pages
    job = book.load(text(17))
    assert not host.evict(Bytes(kv=100, state=100)).dropped
    host.fail(job.id)
    assert host.evict(Bytes(kv=100)).host_pages
    assert list(book.cache.nodes) == [0]


def test_host_references_stop_the_cascade_until_the_transfer_ends() -> None:
    book, host = two_levels()
    lease = book.run(text(16), 16, hold=True)
    wish = host.due()[0]
    book.cache.evict(Bytes(state=1))  # a tombstone now, held by its reader only
    assert host.due()[0].state is False
    job = host.start_backup(wish.node, book.take(4), None)
    assert not book.cache.release(lease).dropped  # useless, but being copied
    gone = host.fail(job.id)
    assert gone.pages == lease.pages
    assert list(book.cache.nodes) == [0]


def test_a_failed_backup_leaves_nothing_behind() -> None:
    book, host = two_levels(write_through=2)
    for _ in range(2):
        book.run([*text(16), 1], *([16] if _ == 0 else []))
    job = host.start_backup(host.due()[0].node, book.take(4), book.take(1)[0])
    host.fail(job.id)
    book.cache.check()
    assert (host.cached_pages, host.cached_states, host.due()) == (0, 0, ())
    with pytest.raises(KdalabError, match="ended already"):
        host.fail(job.id)
    book.run([*text(16), 1])
    assert host.due() == ()
    book.run([*text(16), 1])
    assert book.back_up() == 1  # hot again


def test_pages_computed_while_a_load_was_under_way_make_its_own_duplicates() -> None:
    book, host = two_levels()
    book.run(text(32), 32)
    book.back_up()
    book.cache.evict(Bytes(kv=100))
    job = book.load(text(33))
    held = book.run(text(32), 16, hold=True)  # cuts the node and refills its upper half
    assert held.pages
    landed = host.ack(job.id)
    assert landed.duplicate_pages == job.targets[:4]
    assert not landed.state_existed
    book.cache.release(held)
    lease = book.cache.acquire(book.cache.lookup(book.key(text(33))))
    assert lease.pages == held.pages + job.targets[4:]
    book.cache.release(lease)
    book.cache.check()


def test_a_state_made_while_a_load_was_under_way_leaves_the_loads_slot_with_the_caller() -> None:
    book, host = two_levels()
    book.run(text(16), 16)
    book.back_up()
    book.cache.evict(Bytes(kv=100))
    job = book.load(text(17))
    held = book.run(text(16), 16, hold=True)
    landed = host.ack(job.id)
    assert landed.state_existed
    assert landed.duplicate_pages == job.targets
    assert landed.changes == ()
    assert book.cache.nodes[held.node].state == held.state
    book.cache.release(held)
    book.cache.check()


def test_the_last_copy_below_a_tombstone_takes_it_along() -> None:
    book, host = two_levels()
    book.run(text(32), 32)
    book.run([*text(16), *text(16, 1)], 32)
    book.back_up()
    book.cache.evict(Bytes(kv=100))
    assert len(book.cache.nodes) == 4
    assert len(host.evict(Bytes(kv=1)).host_pages) == 4
    assert len(host.evict(Bytes(kv=1)).host_pages) == 8  # the leaf, and what it shared
    assert list(book.cache.nodes) == [0]


def test_a_request_that_computes_what_the_host_holds_refills_the_node() -> None:
    book, _ = two_levels()
    book.run(text(16), 16)
    book.back_up()
    book.cache.evict(Bytes(kv=100))
    lease = book.run(text(16), 16, hold=True)
    assert len(lease.pages) == 4
    assert len(book.cache.nodes) == 2  # the same node
    book.cache.release(lease)


def test_the_host_gives_up_the_least_recently_used_and_leaves_first() -> None:
    book, host = two_levels()
    for seed in range(3):
        book.run(text(16, seed), 8, 16)
    book.back_up()
    book.cache.evict(Bytes(kv=100))
    book.run([*text(16, 0), 1])  # no state on the device: restores nothing and is no use
    job = book.load([*text(16, 0), 1])
    host.ack(job.id)
    order = []
    while host.cached_pages:
        order += [d.node for d in host.evict(Bytes(kv=1)).dropped]
        book.cache.check()
    # The prompts in the order of their copies, the leaf before its parent; the loaded one last.
    assert [n for n in order if n in (3, 4)] == [4, 3]
    assert set(order[-2:]) == {1, 2}
    assert book.restore([*text(16, 0), 1]) == 16  # still on the device


def test_a_host_state_alone_goes_before_the_kv_that_leads_further() -> None:
    book, host = two_levels()
    book.run(text(24), 8, 24)
    book.back_up()
    gone = host.evict(Bytes(state=1))
    assert (len(gone.host_states), len(gone.host_pages)) == (1, 0)
    assert (host.cached_states, host.cached_pages) == (1, 6)
    book.cache.check()


def test_the_cap_spares_a_state_that_is_being_copied_to_the_host() -> None:
    book, host = two_levels(retention=Retention(max_states_per_path=1))
    book.run(text(8), 8)
    job = host.start_backup(host.due()[0].node, book.take(2), book.take(1)[0])
    book.run(text(16), 16)
    assert book.cache.cached_states == 2
    host.ack(job.id)
    book.run(text(24), 24)
    assert book.cache.cached_states == 1


def test_a_copied_state_can_leave_the_device_without_its_kv() -> None:
    book, host = two_levels()
    book.run(text(16), 16)
    book.back_up()
    gone = book.cache.evict(Bytes(state=1))
    assert (gone.pages, len(gone.states)) == ((), 1)
    found = book.cache.lookup(book.key(text(17)))
    assert (found.restore, found.host_restore, found.reach[StateKind.MLA_KV]) == (0, 16, 16)
    host.ack(book.load(text(17)).id)
    assert book.restore(text(17)) == 16


@pytest.mark.parametrize("pages", [0, 3, 5])
def test_wrong_numbers_for_a_transfer_are_refused_and_nothing_is_locked(pages: int) -> None:
    book, host = two_levels()
    book.run(text(16), 16)
    node = host.due()[0].node
    with pytest.raises(KdalabError, match="needs 4 host pages and one slot"):
        host.start_backup(node, range(pages), 1)
    with pytest.raises(KdalabError, match="given: 4 and none"):
        host.start_backup(node, range(4), None)
    with pytest.raises(KdalabError, match="nothing to load"):
        host.start_load(book.cache.lookup(book.key(text(17))), (), None)
    book.back_up()
    book.cache.evict(Bytes(kv=100))
    with pytest.raises(KdalabError, match="needs 4 device pages and one slot"):
        host.start_load(book.cache.lookup(book.key(text(17))), range(pages), 7)
    book.cache.check()
    assert not host.flights


def test_thresholds_and_second_caches_are_refused() -> None:
    with pytest.raises(KdalabError, match="use 1"):
        HostTier(0)
    _, host = two_levels()
    with pytest.raises(KdalabError, match="serves a cache already"):
        Book(host=host)
    with pytest.raises(KdalabError, match="serves no cache yet"):
        HostTier().evict(Bytes(kv=1))


def test_check_names_a_copy_without_the_copies_before_it() -> None:
    book, _ = two_levels()
    book.run(text(16), 8, 16)
    book.back_up()
    first = next(n for n in book.cache.nodes.values() if n.end == 8)
    first.host_pages, first.host_state = (), None
    with pytest.raises(InvariantError, match="a copy has copies of all KV before it"):
        book.cache.check()
