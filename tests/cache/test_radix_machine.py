"""Random life of the radix cache against a brute-force model: dictionaries of prefixes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kdalab.cache import (
    Bytes,
    Evicted,
    HostTier,
    Lease,
    PrefixKey,
    RadixStateCache,
    Retention,
    Transfer,
    Wish,
)
from kdalab.errors import KdalabError
from kdalab.spec import StateKind
from kdalab.spec.checkpoint import Checkpoint

PAGE, GRID, PAGE_BYTES, STATE_BYTES = 2, 4, 10, 37

Tokens = tuple[int, ...]

# Two pages to build from, the first far more likely, and now and then a loose token: prompts
# that share much, part at odd places, and end on and off the page.
_page = st.sampled_from([(0, 0), (0, 0), (0, 0), (0, 1)])
prompts = st.builds(
    lambda pages, loose: tuple(t for page in pages for t in page) + loose,
    st.lists(_page, min_size=1, max_size=12),
    st.sampled_from([(), (), (0,), (1,)]),
)


def pages_before(tokens: Tokens, end: int) -> list[Tokens]:
    """The prefixes that end with each page of tokens[:end]."""
    return [tokens[:n] for n in range(PAGE, end + 1, PAGE)]


class RadixMachine(RuleBasedStateMachine):
    """``kv`` maps a page-aligned prefix to its page, ``states`` a prefix to its slot; ``host_kv``
    and ``host_states`` the same for the second level."""

    retention = Retention()
    write_through: int | None = None

    def __init__(self) -> None:
        super().__init__()
        self.host = HostTier(self.write_through) if self.write_through else None
        self.cache = RadixStateCache(
            PAGE, GRID, PAGE_BYTES, STATE_BYTES, retention=self.retention, host=self.host
        )
        self.kv: dict[Tokens, int] = {}
        self.states: dict[Tokens, int] = {}
        self.host_kv: dict[Tokens, int] = {}
        self.host_states: dict[Tokens, int] = {}
        self.leases: dict[int, tuple[Lease, Tokens, bool]] = {}
        # job id -> job, its whole prefix, the prefixes it copies, how far it locks the device
        self.jobs: dict[int, tuple[Transfer, Tokens, list[Tokens], int]] = {}
        self.n = 0

    def take(self, count: int) -> tuple[int, ...]:
        """Numbers that nobody has."""
        self.n += count
        return tuple(range(self.n - count, self.n))

    # -- the model's own answers -------------------------------------------------------------

    def token_match(self, tokens: Tokens, *levels: dict[Tokens, int]) -> int:
        n = 0
        while n + PAGE <= len(tokens) and any(tokens[: n + PAGE] in at for at in levels):
            n += PAGE
        return n

    def deepest(self, tokens: Tokens, end: int, *levels: dict[Tokens, int]) -> int:
        return max([n for n in range(end + 1) if any(tokens[:n] in at for at in levels)] + [0])

    def restore(self, tokens: Tokens) -> int:
        return self.deepest(tokens, len(tokens) - 1, self.states)

    def forget(self, evicted: Evicted) -> None:
        for numbers, level in (
            (evicted.pages, self.kv),
            (evicted.states, self.states),
            (evicted.host_pages, self.host_kv),
            (evicted.host_states, self.host_states),
        ):
            gone = set(numbers)
            assert len(gone) == len(numbers)
            assert gone <= set(level.values())
            for prefix in [p for p, number in level.items() if number in gone]:
                del level[prefix]

    def locked(self) -> tuple[set[int], set[int], set[Tokens]]:
        """Pages and state slots in use on the device, and prefixes in use on the host."""
        pages: set[int] = set()
        slots: set[int] = set()
        on_host: set[Tokens] = set()
        for lease, tokens, holds_state in self.leases.values():
            pages |= {self.kv[p] for p in pages_before(tokens, lease.boundary)}
            if holds_state and lease.boundary:
                slots.add(self.states[tokens[: lease.boundary]])
        for job, prefix, _, anchor in self.jobs.values():
            pages |= {self.kv[p] for p in pages_before(prefix, anchor)}
            on_host |= set(pages_before(prefix, len(prefix)))
            backs_up_state = job.direction == "backup" and job.state is not None
            if backs_up_state or (job.direction == "load" and job.state is None):
                slots.add(self.states[prefix])
        return pages, slots, on_host

    # -- rules -------------------------------------------------------------------------------

    @rule(tokens=prompts)
    def look_up(self, tokens: Tokens) -> None:
        found = self.cache.lookup(PrefixKey.from_tokens(tokens, PAGE))
        assert found.token_match == self.token_match(tokens, self.kv, self.host_kv)
        assert found.restore == self.restore(tokens)
        assert found.reach[StateKind.MLA_KV] == self.token_match(tokens, self.kv)
        on_device = self.deepest(tokens, len(tokens), self.states)
        assert found.reach[StateKind.KDA_RECURRENT] == on_device
        assert found.reach[StateKind.KDA_CONV] == on_device
        back = self.deepest(tokens, len(tokens) - 1, self.states, self.host_states)
        assert found.host_restore == (back if back > found.restore else None)
        shared = found.token_match // GRID * GRID
        known = self.deepest(tokens, len(tokens), self.states, self.host_states)
        assert found.branching == (shared if shared > known else None)
        assert len(found.why) >= 6

    @rule(tokens=prompts)
    def acquire(self, tokens: Tokens) -> None:
        lease = self.cache.acquire(self.cache.lookup(PrefixKey.from_tokens(tokens, PAGE)))
        n = self.restore(tokens)
        assert lease.boundary == n
        assert lease.pages == tuple(self.kv[p] for p in pages_before(tokens, n))
        assert (lease.state.slot if lease.state else None) == self.states.get(tokens[:n])
        self.leases[lease.id] = (lease, tokens, n > 0)

    def some_lease(self, data: st.DataObject) -> tuple[Lease, Tokens, bool]:
        return self.leases[data.draw(st.sampled_from(sorted(self.leases)))]

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def unlock_state(self, data: st.DataObject) -> None:
        lease, tokens, _ = self.some_lease(data)
        self.cache.unlock_state(lease)
        self.leases[lease.id] = (lease, tokens, False)

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def lock_state(self, data: st.DataObject) -> None:
        lease, tokens, _ = self.some_lease(data)
        if lease.state is None:
            return
        slot = self.states.get(tokens[: lease.boundary])
        if slot == lease.state.slot:
            self.cache.lock_state(lease)
            self.leases[lease.id] = (lease, tokens, True)
        else:
            with pytest.raises(KdalabError, match="has been evicted"):
                self.cache.lock_state(lease)

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        lease, tokens, _ = self.some_lease(data)
        choices = range(lease.boundary + GRID, len(tokens) + 1, GRID)
        if choices:
            self.commit_at(lease, tokens, data.draw(st.sampled_from(list(choices))))

    def commit_at(self, lease: Lease, tokens: Tokens, boundary: int) -> Lease:
        pages = self.take((boundary - lease.boundary) // PAGE)
        (slot,) = self.take(1)
        known = max(self.token_match(tokens[:boundary], self.kv), lease.boundary)
        locked = self.locked()[1]
        done = self.cache.commit(
            lease, PrefixKey.from_tokens(tokens, PAGE), pages, Checkpoint(slot, boundary)
        )
        assert done.duplicate_pages == pages[: (known - lease.boundary) // PAGE]
        assert done.state_existed == (tokens[:boundary] in self.states)
        self.states.setdefault(tokens[:boundary], slot)
        for i, page in enumerate(pages):
            self.kv.setdefault(tokens[: lease.boundary + (i + 1) * PAGE], page)
        del self.leases[lease.id]
        self.leases[done.lease.id] = (done.lease, tokens, False)
        assert done.lease.boundary == boundary
        assert done.lease.pages == tuple(self.kv[p] for p in pages_before(tokens, boundary))
        assert self.retention.max_states_per_path or not done.dropped
        for gone in done.dropped:
            prefix = next(p for p, s in self.states.items() if s == gone.state)
            assert len(prefix) < boundary  # never the tail
            assert prefix == tokens[: len(prefix)]
            assert gone.state not in locked - {lease.state.slot if lease.state else None}
            del self.states[prefix]
        return done.lease

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), other=prompts)
    def commit_under_another_prompts_lease(self, data: st.DataObject, other: Tokens) -> None:
        lease, tokens, _ = self.some_lease(data)
        boundary = len(other) // GRID * GRID
        if boundary <= lease.boundary or other[: lease.boundary] == tokens[: lease.boundary]:
            return
        pages = self.take((boundary - lease.boundary) // PAGE)
        with pytest.raises(KdalabError, match="does not continue the lease"):
            self.cache.commit(
                lease, PrefixKey.from_tokens(other, PAGE), pages, Checkpoint(10**6, boundary)
            )

    @rule(tokens=prompts, dense=st.booleans())
    def run_to_the_end(self, tokens: Tokens, dense: bool) -> None:
        """A whole request: acquire, a checkpoint at each boundary or at the last, release."""
        lease = self.cache.acquire(self.cache.lookup(PrefixKey.from_tokens(tokens, PAGE)))
        boundaries = list(range(lease.boundary + GRID, len(tokens) + 1, GRID))
        self.leases[lease.id] = (lease, tokens, lease.boundary > 0)
        for boundary in boundaries if dense else boundaries[-1:]:
            lease = self.commit_at(lease, tokens, boundary)
        self.leases.pop(lease.id)
        self.forget(self.cache.release(lease))

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        """Finished or aborted: to the cache it is the same."""
        lease, _, _ = self.some_lease(data)
        del self.leases[lease.id]
        self.forget(self.cache.release(lease))
        with pytest.raises(KdalabError, match="not held"):
            self.cache.release(lease)

    @rule(
        kv=st.integers(0, 60),
        state=st.integers(0, 120),
        either=st.one_of(st.just(0), st.integers(0, 150)),
    )
    def evict(self, kv: int, state: int, either: int) -> None:
        pages, slots, on_host = self.locked()
        gone = self.cache.evict(Bytes(kv, state, either))
        assert not pages & set(gone.pages)
        assert not slots & set(gone.states)
        assert not {self.host_kv.get(p) for p in on_host} & set(gone.host_pages)
        assert gone.kv_bytes == len(gone.pages) * PAGE_BYTES
        assert gone.state_bytes == len(gone.states) * STATE_BYTES
        self.forget(gone)
        free_pages = set(self.kv.values()) - pages
        free_slots = set(self.states.values()) - slots
        # Asked for more than it gave: then nothing that was asked for is left unlocked.
        if gone.kv_bytes < kv:
            assert not free_pages
        if gone.state_bytes < state:
            assert not free_slots
        if gone.kv_bytes + gone.state_bytes < either:
            assert not free_pages
            assert not free_slots

    # -- always ------------------------------------------------------------------------------

    @invariant()
    def holds(self) -> None:
        self.cache.check()
        assert self.cache.cached_pages == len(self.kv)
        assert self.cache.cached_states == len(self.states)
        assert self.cache.kv_bytes == len(self.kv) * PAGE_BYTES
        pages, slots, _ = self.locked()
        assert self.cache.evictable_pages == len(self.kv) - len(pages)
        assert self.cache.evictable_states == len(self.states) - len(slots)
        if self.host is not None:
            assert self.host.cached_pages == len(self.host_kv)
            assert self.host.cached_states == len(self.host_states)

    def teardown(self) -> None:
        for lease, _, _ in list(self.leases.values()):
            self.forget(self.cache.release(lease))
        self.leases.clear()
        for job_id in list(self.jobs):
            assert self.host is not None
            self.forget(self.host.fail(job_id))
            del self.jobs[job_id]
        self.forget(self.cache.evict(Bytes(either=10**9)))
        if self.host is not None:
            self.forget(self.host.evict(Bytes(either=10**9)))
        assert not self.kv
        assert not self.states
        assert not self.host_kv
        assert not self.host_states
        assert list(self.cache.nodes) == [0]


class HostMachine(RadixMachine):
    """With a second level: backups and loads start, land and fail at any time in between."""

    write_through = 2
    host: HostTier

    def tokens_to(self, node_id: int) -> Tokens:
        node = self.cache.nodes[node_id]
        data = b"".join(part.key for part in reversed([*node.up_to(None)]))
        return tuple(np.frombuffer(data, np.int32).tolist())

    @rule(data=st.data())
    def start_backup(self, data: st.DataObject) -> None:
        wishes = self.host.due()
        if wishes:
            self.begin_backup(data.draw(st.sampled_from(wishes)))

    @rule()
    def back_up_all(self) -> None:
        while wishes := self.host.due():
            self.land(self.begin_backup(wishes[-1]))

    @rule(data=st.data(), end=st.tuples(_page, _page))
    def push_out_and_come_back(self, data: st.DataObject, end: tuple[Tokens, Tokens]) -> None:
        """What is not in use leaves the device; then a prompt that the host may know returns."""
        self.evict(10**6, 0, 0)
        if self.host_states:
            known = data.draw(st.sampled_from(sorted(self.host_states)))
            self.start_load(known + end[0] + end[1])

    def begin_backup(self, wish: Wish) -> int:
        prefix = self.tokens_to(wish.node)
        missing = [p for p in pages_before(prefix, len(prefix)) if p not in self.host_kv]
        assert wish.pages == len(missing)
        assert wish.state == (prefix in self.states and prefix not in self.host_states)
        slot = self.take(1)[0] if wish.state else None
        pages = self.take(wish.pages)
        job = self.host.start_backup(wish.node, pages, slot)
        assert job.sources == tuple(self.kv[p] for p in missing)
        assert job.targets == pages
        assert job.state == ((self.states[prefix], slot) if wish.state else None)
        self.jobs[job.id] = (job, prefix, missing, len(prefix))
        return job.id

    @rule(tokens=prompts)
    def start_load(self, tokens: Tokens) -> None:
        found = self.cache.lookup(PrefixKey.from_tokens(tokens, PAGE))
        wish = self.host.wanted_for(found)
        assert (wish is None) == (found.host_restore is None)
        if wish is None:
            return
        prefix = tokens[: found.host_restore]
        missing = [p for p in pages_before(prefix, len(prefix)) if p not in self.kv]
        assert (wish.pages, wish.state) == (len(missing), prefix not in self.states)
        slot = self.take(1)[0] if wish.state else None
        pages = self.take(wish.pages)
        job = self.host.start_load(found, pages, slot)
        assert job.sources == tuple(self.host_kv[p] for p in missing)
        assert job.state == ((self.host_states[prefix], slot) if wish.state else None)
        self.jobs[job.id] = (job, prefix, missing, len(prefix) - PAGE * len(missing))

    @precondition(lambda self: self.jobs)
    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        self.land(data.draw(st.sampled_from(sorted(self.jobs))))

    def land(self, job_id: int) -> None:
        job, prefix, copied, _ = self.jobs.pop(job_id)
        landed = self.host.ack(job.id)
        kv, states = (
            (self.host_kv, self.host_states)
            if job.direction == "backup"
            else (self.kv, self.states)
        )
        twice = tuple(n for p, n in zip(copied, job.targets, strict=True) if p in kv)
        assert landed.duplicate_pages == twice
        for p, number in zip(copied, job.targets, strict=True):
            kv.setdefault(p, number)
        assert landed.state_existed == (job.state is not None and prefix in states)
        if job.state is not None:
            states.setdefault(prefix, job.state[1])
        self.forget(landed.evicted)
        with pytest.raises(KdalabError, match="ended already"):
            self.host.ack(job.id)

    @precondition(lambda self: self.jobs)
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        job, *_ = self.jobs.pop(data.draw(st.sampled_from(sorted(self.jobs))))
        self.forget(self.host.fail(job.id))

    @rule(kv=st.integers(0, 60), state=st.integers(0, 80), either=st.sampled_from([0, 0, 50, 150]))
    def evict_from_the_host(self, kv: int, state: int, either: int) -> None:
        pages, slots, on_host = self.locked()
        gone = self.host.evict(Bytes(kv, state, either))
        assert gone.kv_bytes == len(gone.host_pages) * PAGE_BYTES
        assert gone.state_bytes == len(gone.host_states) * STATE_BYTES
        assert not pages & set(gone.pages)
        assert not slots & set(gone.states)
        self.forget(gone)
        free = set(self.host_kv) - on_host
        free_states = set(self.host_states) - on_host
        if gone.kv_bytes < kv or gone.kv_bytes + gone.state_bytes < either:
            assert not free
        if gone.state_bytes < state:
            assert not free_states


class CappedMachine(HostMachine):
    """At most two states a path, the whole-path rule of refreshing, and copies at the first use."""

    retention = Retention(refresh="path", max_states_per_path=2)
    write_through = 1


RadixMachine.TestCase.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
HostMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
CappedMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
TestRadixMachine = RadixMachine.TestCase
TestHostMachine = HostMachine.TestCase
TestCappedMachine = CappedMachine.TestCase
