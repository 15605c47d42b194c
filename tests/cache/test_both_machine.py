"""Both caches beside one brute-force model: prefixes, and the boundaries at which states exist.

On any workload each may restore only where a state of just that prefix stands, with KV all the way
to it. Where their policies mean the same, and nothing was evicted, both restore where the model
says. The memories here know what every page, slot and block really holds; they never ask a cache.
"""

from __future__ import annotations

from typing import Any

from block_cases import Bench
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from kdalab.cache import (
    Bytes,
    Evicted,
    Lease,
    MarconiOrder,
    Placement,
    PrefixKey,
    RadixStateCache,
    parse_placement,
)
from kdalab.spec.checkpoint import Checkpoint

Tokens = tuple[int, ...]

# Mostly one unit over and over, and now and then another: much is shared, at odd lengths.
prompts = st.builds(
    lambda parts, loose: tuple(t for part in parts for t in part) + loose,
    st.lists(st.sampled_from([(0, 0), (0, 0), (0, 0), (1, 0)]), min_size=1, max_size=16),
    st.sampled_from([(), (0,), (1,), (2, 2, 2)]),
)


class Tree:
    """The radix cache with its memory: ``pages`` and ``states`` map numbers to the prefix that
    they hold, up to the page's end, or that the state has seen."""

    def __init__(self, page: int, grid: int, placement: Placement) -> None:
        self.cache, self.placement = RadixStateCache(page, grid), placement
        self.page = page
        self.pages: dict[int, Tokens] = {}
        self.states: dict[int, Tokens] = {}
        self.n = 0

    def key(self, tokens: Tokens) -> PrefixKey:
        return PrefixKey.from_tokens(tokens, self.page)

    def restore(self, tokens: Tokens) -> int:
        return self.cache.lookup(self.key(tokens)).restore

    def serve(self, tokens: Tokens) -> int:
        found = self.cache.lookup(self.key(tokens))
        lease = self.cache.acquire(found)
        at = lease.boundary
        assert at == found.restore < len(tokens)
        assert [self.pages[p] for p in lease.pages] == [
            tokens[:end] for end in range(self.page, at + 1, self.page)
        ]
        assert (lease.state is None) == (at == 0)
        if lease.state is not None:
            assert self.states[lease.state.slot] == tokens[:at]
            self.cache.unlock_state(lease)
        wanted = self.placement.boundaries(len(tokens), at, found.branching, self.cache.grid)
        for boundary in wanted:
            lease = self.commit(lease, tokens, boundary)
        self.forget(self.cache.release(lease))
        return at

    def commit(self, lease: Lease, tokens: Tokens, boundary: int) -> Lease:
        ends = range(lease.boundary + self.page, boundary + 1, self.page)
        pages = tuple(range(self.n, self.n + len(ends)))
        state = self.n + len(ends)
        self.n = state + 1
        self.pages.update(zip(pages, (tokens[:end] for end in ends), strict=True))
        self.states[state] = tokens[:boundary]
        done = self.cache.commit(lease, self.key(tokens), pages, Checkpoint(state, boundary))
        for page in done.duplicate_pages:
            del self.pages[page]
        if done.state_existed:
            del self.states[state]
        return done.lease

    def forget(self, gone: Evicted) -> None:
        for page in gone.pages:
            del self.pages[page]  # a stale read raises KeyError from now on
        for state in gone.states:
            del self.states[state]


class Model:
    """Dictionaries only: what has been computed, and which prefixes have a state by policy."""

    def __init__(self, block: int) -> None:
        self.block = block
        self.known: set[Tokens] = set()
        self.computed: set[Tokens] = set()
        self.states: set[Tokens] = set()

    def restore(self, tokens: Tokens) -> int:
        """The last boundary with a state that leaves a token to compute."""
        steps = range(self.block, len(tokens), self.block)
        return max((n for n in steps if tokens[:n] in self.states), default=0)

    def serve(self, tokens: Tokens, dense: bool) -> None:
        n, block = len(tokens), self.block
        every = range(block, n + 1, block)
        match = max((b for b in every if tokens[:b] in self.known), default=0)
        deepest = max((b for b in every if b <= match and tokens[:b] in self.states), default=0)
        wanted = {*every} if dense else {(n - 1) // block * block}
        if match > deepest:  # a second prompt shares what has no state yet
            wanted.add(match)
        self.known |= {tokens[:b] for b in every}
        self.states |= {tokens[:b] for b in wanted if b}

    def compute(self, tokens: Tokens) -> None:
        """Every boundary of ``tokens`` may have a state from now on."""
        self.computed |= {tokens[:b] for b in range(len(tokens) + 1)}


class BothMachine(RuleBasedStateMachine):
    """One workload through both. ``equal`` is the policy under which they must agree, if any."""

    order: MarconiOrder | None = None

    @initialize(
        policy=st.sampled_from(["dense", "reachable", "any", "any"]),
        block=st.sampled_from([4, 6]),
        odd=st.sampled_from(
            [
                {"block": 8, "unit": 2},
                {"block": 12, "full_block": 8, "unit": 2, "retention": None},
                {"block": 4, "retention": 8},
                {"block": 8, "unit": 4, "speculative": True},
                {"block": 4, "mode": "all", "retention": None},
                {"block": 8, "unit": 2, "kernel_grid": 2},
            ]
        ),
        placement=st.sampled_from(["every:8", "leaf", "all", "leaf+branch", "tail-first:8"]),
        few=st.booleans(),
    )
    def build(
        self, policy: str, block: int, odd: dict[str, Any], placement: str, few: bool
    ) -> None:
        self.policy, self.evicted, self.seen = policy, False, [(0,) * 8]
        if policy == "any":
            self.tree = Tree(2, 4, parse_placement(placement))
            self.bench = Bench(n_blocks=24 if few else 500, states=2, order=self.order, **odd)
            self.model = Model(2)
            return
        form = "all" if policy == "dense" else "leaf+branch"
        self.tree = Tree(block, block, parse_placement(form))
        retention = None if policy == "dense" else 0
        self.bench = Bench(block, 2_000, states=2, retention=retention, order=self.order)
        self.model = Model(block)

    def serve(self, tokens: Tokens, budget: int) -> None:
        dense, block = self.policy == "dense", self.model.block
        if self.policy == "reachable" and len(tokens) % block == 0:
            # At n tokens on the grid the tree leaves its state at n and blocks at n - unit.
            tokens = (*tokens, 3)
        self.seen.append(tokens)
        self.lookups_agree(tokens)
        self.tree.serve(tokens)
        lease = self.bench.start(tokens)
        while lease.boundary < len(tokens):
            end = self.bench.cache.chunk_end(lease, block if dense else budget)
            moved = self.bench.prefill(lease, tokens, end)  # checks state and KV token by token
            if moved is None:
                break  # the pool is too small for it
            lease = moved
        self.bench.cache.release(lease)
        self.model.serve(tokens, dense)
        self.model.compute(tokens)

    def lookups_agree(self, tokens: Tokens) -> None:
        tree, blocks = self.tree.restore(tokens), self.bench.restore(tokens)
        for restore in (tree, blocks):
            assert 0 <= restore < max(1, len(tokens))
            assert restore == 0 or tokens[:restore] in self.model.computed
        if self.policy != "any" and not self.evicted:
            assert tree == blocks == self.model.restore(tokens)

    def check(self) -> None:
        self.tree.cache.check()
        self.bench.check()
        pages, states = self.tree.cache.cached_pages, self.tree.cache.cached_states
        assert (len(self.tree.pages), len(self.tree.states)) == (pages, states)

    @rule(tokens=prompts, budget=st.integers(2, 40))
    def a_prompt(self, tokens: Tokens, budget: int) -> None:
        self.serve(tokens, budget)
        self.check()

    @rule(data=st.data(), more=prompts, budget=st.integers(2, 40))
    def one_that_parts_from_another(self, data: st.DataObject, more: Tokens, budget: int) -> None:
        old = data.draw(st.sampled_from(self.seen))
        self.serve((old[: data.draw(st.integers(0, len(old)))] + more)[:60], budget)
        self.check()

    @rule(tokens=prompts)
    def a_question(self, tokens: Tokens) -> None:
        self.lookups_agree(tokens)
        self.check()

    @precondition(lambda self: len(self.seen) > 3)
    @rule(kv=st.integers(0, 4), state=st.integers(0, 4), either=st.integers(0, 3))
    def pressure(self, kv: int, state: int, either: int) -> None:
        need = Bytes(kv, state, either)
        self.tree.forget(self.tree.cache.evict(need))
        self.bench.cache.evict(need)
        self.evicted = self.evicted or any(need)
        self.check()


BothMachine.TestCase.settings = settings(max_examples=120, stateful_step_count=25, deadline=None)
TestBothMachine = BothMachine.TestCase
