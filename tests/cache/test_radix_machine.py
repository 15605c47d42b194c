"""Random life of the radix cache against a brute-force model: a dictionary of prefixes."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kdalab.cache import Bytes, Evicted, Lease, PrefixKey, RadixStateCache
from kdalab.spec import StateKind
from kdalab.spec.checkpoint import Checkpoint

PAGE, GRID, PAGE_BYTES, STATE_BYTES = 2, 4, 10, 37

# Two pages to build from, the first far more likely, and now and then a loose token: prompts
# that share much, part at odd places, and end on and off the page.
_page = st.sampled_from([(0, 0), (0, 0), (0, 0), (0, 1)])
prompts = st.builds(
    lambda pages, loose: tuple(t for page in pages for t in page) + loose,
    st.lists(_page, min_size=1, max_size=12),
    st.sampled_from([(), (), (0,), (1,)]),
)


class RadixMachine(RuleBasedStateMachine):
    """``kv`` maps a page-aligned prefix to its page, ``states`` a prefix to its slot."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = RadixStateCache(PAGE, GRID, PAGE_BYTES, STATE_BYTES)
        self.kv: dict[tuple[int, ...], int] = {}
        self.states: dict[tuple[int, ...], int] = {}
        self.leases: dict[int, tuple[Lease, tuple[int, ...], bool]] = {}
        self.next_page = self.next_slot = 0

    # -- the model's own answers -------------------------------------------------------------

    def token_match(self, tokens: tuple[int, ...]) -> int:
        n = 0
        while n + PAGE <= len(tokens) and tokens[: n + PAGE] in self.kv:
            n += PAGE
        return n

    def restore(self, tokens: tuple[int, ...]) -> int:
        known = self.token_match(tokens)
        return max(
            [n for n in range(min(known, len(tokens) - 1) + 1) if tokens[:n] in self.states] + [0]
        )

    def forget(self, evicted: Evicted) -> None:
        pages, slots = set(evicted.pages), set(evicted.states)
        assert len(pages) == len(evicted.pages)
        assert len(slots) == len(evicted.states)
        assert pages <= set(self.kv.values())
        assert slots <= set(self.states.values())
        assert evicted.kv_bytes == len(pages) * PAGE_BYTES
        assert evicted.state_bytes == len(slots) * STATE_BYTES
        for prefix in [p for p, page in self.kv.items() if page in pages]:
            del self.kv[prefix]
        for prefix in [p for p, slot in self.states.items() if slot in slots]:
            del self.states[prefix]

    def locked(self) -> tuple[set[int], set[int]]:
        """Pages and state slots that some lease holds."""
        pages: set[int] = set()
        slots: set[int] = set()
        for lease, tokens, holds_state in self.leases.values():
            pages |= {self.kv[tokens[:n]] for n in range(PAGE, lease.boundary + 1, PAGE)}
            if holds_state and lease.boundary:
                slots.add(self.states[tokens[: lease.boundary]])
        return pages, slots

    # -- rules -------------------------------------------------------------------------------

    @rule(tokens=prompts)
    def look_up(self, tokens: tuple[int, ...]) -> None:
        found = self.cache.lookup(PrefixKey.from_tokens(tokens, PAGE))
        assert found.token_match == self.token_match(tokens)
        assert found.restore == self.restore(tokens)
        assert found.reach[StateKind.MLA_KV] == found.token_match
        shared = found.token_match // GRID * GRID
        deepest = found.reach[StateKind.KDA_RECURRENT]
        assert found.branching == (shared if shared > deepest else None)

    @rule(tokens=prompts)
    def acquire(self, tokens: tuple[int, ...]) -> None:
        lease = self.cache.acquire(self.cache.lookup(PrefixKey.from_tokens(tokens, PAGE)))
        n = self.restore(tokens)
        assert lease.boundary == n
        assert lease.pages == tuple(self.kv[tokens[:i]] for i in range(PAGE, n + 1, PAGE))
        assert (lease.state.slot if lease.state else None) == self.states.get(tokens[:n])
        self.leases[lease.id] = (lease, tokens, n > 0)

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def unlock_state(self, data: st.DataObject) -> None:
        lease, tokens, _ = self.leases[data.draw(st.sampled_from(sorted(self.leases)))]
        self.cache.unlock_state(lease)
        self.leases[lease.id] = (lease, tokens, False)

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        lease, tokens, _ = self.leases[data.draw(st.sampled_from(sorted(self.leases)))]
        choices = range(lease.boundary + GRID, len(tokens) + 1, GRID)
        if not choices:
            return
        self.commit_at(lease, tokens, data.draw(st.sampled_from(list(choices))))

    def commit_at(self, lease: Lease, tokens: tuple[int, ...], boundary: int) -> Lease:
        count = (boundary - lease.boundary) // PAGE
        pages = tuple(range(self.next_page, self.next_page + count))
        self.next_page += count
        slot, self.next_slot = self.next_slot, self.next_slot + 1
        known = max(self.token_match(tokens[:boundary]), lease.boundary)
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
        assert done.lease.pages == tuple(
            self.kv[tokens[:i]] for i in range(PAGE, boundary + 1, PAGE)
        )
        return done.lease

    @rule(tokens=prompts, dense=st.booleans())
    def run_to_the_end(self, tokens: tuple[int, ...], dense: bool) -> None:
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
        lease, _, _ = self.leases.pop(data.draw(st.sampled_from(sorted(self.leases))))
        self.forget(self.cache.release(lease))

    @rule(
        kv=st.integers(0, 60),
        state=st.integers(0, 120),
        either=st.one_of(st.just(0), st.integers(0, 150)),
    )
    def evict(self, kv: int, state: int, either: int) -> None:
        pages, slots = self.locked()
        gone = self.cache.evict(Bytes(kv, state, either))
        assert not pages & set(gone.pages)
        assert not slots & set(gone.states)
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

    def teardown(self) -> None:
        for lease, _, _ in list(self.leases.values()):
            self.forget(self.cache.release(lease))
        self.leases.clear()
        self.forget(self.cache.evict(Bytes(either=10**9)))
        assert not self.kv
        assert not self.states
        assert list(self.cache.nodes) == [0]


RadixMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestRadixMachine = RadixMachine.TestCase
