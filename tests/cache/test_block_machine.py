"""Random life of the block cache: requests of any shape in shared steps, beside a memory that knows
what every block really holds, and a lookup by trying every boundary."""

from __future__ import annotations

from math import lcm

import pytest
from block_cases import Bench, Tokens
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kdalab.cache import Bytes, CacheMode, GroupKind, Lease, MarconiOrder, Step
from kdalab.errors import KdalabError

# block of states, block of attention, unit, and what the kernel can do
SHAPES = [
    (4, 4, None, 0),
    (8, 4, None, 0),
    (8, 8, 2, 0),
    (4, 8, 2, 0),
    (12, 8, 2, 0),
    (12, 12, 3, 1),
    (16, 16, 4, 2),
]

# Mostly the same unit over and over, and now and then another: much is shared, at odd lengths.
prompts = st.builds(
    lambda parts, loose: tuple(t for part in parts for t in part) + loose,
    st.lists(st.sampled_from([(0, 0), (0, 0), (0, 0), (1, 0), (0, 0, 0)]), min_size=1, max_size=20),
    st.sampled_from([(), (), (1,), (0, 1)]),
)


class BlockMachine(RuleBasedStateMachine):
    """``running`` maps a lease to the tokens it will compute."""

    order: MarconiOrder | None = None

    def __init__(self) -> None:
        super().__init__()
        self.running: dict[int, tuple[Lease, Tokens]] = {}
        self.names: dict[bytes, Tokens] = {}
        self.seen: list[Tokens] = []

    @initialize(
        shape=st.sampled_from(SHAPES),
        mode=st.sampled_from([CacheMode.ALIGN] * 4 + [CacheMode.ALL, CacheMode.NONE]),
        interval=st.sampled_from([None, 0, 1, 2]),
        states=st.integers(1, 2),
        n_blocks=st.integers(12, 120),
        speculative=st.booleans(),
    )
    def build(
        self,
        shape: tuple[int, int, int | None, int],
        mode: CacheMode,
        interval: int | None,
        states: int,
        n_blocks: int,
        speculative: bool,
    ) -> None:
        block, full, unit, kernel = shape
        aligned = mode is CacheMode.ALIGN
        scheduler = lcm(block, full)
        self.bench = Bench(
            block,
            n_blocks,
            full_block=full,
            states=states,
            retention=interval and interval * scheduler,
            order=self.order,
            mode=mode,
            unit=unit if aligned else None,
            kernel_grid=kernel if aligned else 0,
            speculative=speculative,
        )
        self.cache = self.bench.cache

    # -- a lookup by trying every boundary ---------------------------------------------------

    def learn(self, tokens: Tokens) -> None:
        self.seen.append(tokens)
        unit = self.bench.unit
        for n in range(unit, len(tokens) + 1, unit):
            self.names[self.bench.hash(tokens[:n])] = tokens[:n]

    def known(self, group: int) -> set[Tokens]:
        return {self.names[name] for name in self.cache.pool.tables[group]}

    def reach(self, group: int, tokens: Tokens) -> int:
        """KV known from the first token on: whole blocks, then the best partial one."""
        known, size = self.known(group), self.cache.groups[group].block_tokens
        whole = 0
        while whole + size <= len(tokens) and tokens[: whole + size] in known:
            whole += size
        if self.cache.mode is not CacheMode.ALIGN:
            return whole
        return max(
            n
            for n in range(whole, min(whole + size, len(tokens) + 1))
            if n == whole or tokens[:n] in known
        )

    def restore(self, tokens: Tokens) -> int:
        match = min(self.reach(g, tokens) for g in self.cache.kv_groups)
        grid = self.cache.reader.align
        drop = min(self.cache.reader.drop, min(match, (len(tokens) - 1) // grid * grid))
        top = min(match, (len(tokens) - 1) // grid * grid) - drop
        states = [self.known(g) for g in self.cache.state_groups]
        if self.cache.mode is CacheMode.NONE:
            return 0
        good = [n for n in range(grid, top + 1, grid) if all(tokens[:n] in s for s in states)]
        return max([*good, 0])

    # -- requests ----------------------------------------------------------------------------

    @precondition(lambda self: len(self.running) < 4)
    @rule(tokens=prompts)
    def begin(self, tokens: Tokens) -> None:
        self.learn(tokens)
        found = self.bench.lookup(tokens)
        assert found.restore == self.restore(tokens)
        lease = self.bench.start(tokens)
        assert lease.boundary == found.restore
        self.running[lease.id] = (lease, tokens)

    @precondition(lambda self: len(self.running) < 4 and self.seen)
    @rule(data=st.data(), more=prompts)
    def begin_again(self, data: st.DataObject, more: Tokens) -> None:
        """The same prompt, a continuation of it, or one that parts from it on the way."""
        old = data.draw(st.sampled_from(self.seen))
        self.begin((old[: data.draw(st.integers(0, len(old)))] + more)[:80])

    @rule(tokens=prompts, budget=st.integers(1, 40))
    def whole_prompt(self, tokens: Tokens, budget: int) -> None:
        self.learn(tokens)
        lease = self.bench.start(tokens)
        while lease.boundary < len(tokens):
            moved = self.bench.prefill(lease, tokens, self.cache.chunk_end(lease, budget))
            if moved is None:
                break
            lease = moved
        self.cache.release(lease)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), wild=st.booleans())
    def shared_step(self, data: st.DataObject, wild: bool) -> None:
        """Several requests scheduled one after the other; then all copies, then the forward.
        ``wild`` chunks end wherever they like."""
        chosen = data.draw(st.sets(st.sampled_from(sorted(self.running)), min_size=1))
        done: list[tuple[Lease, Tokens, Step]] = []
        for lease_id in sorted(chosen):
            lease, tokens = self.running[lease_id]
            if lease.boundary >= len(tokens):
                continue
            end = self.cache.chunk_end(lease, data.draw(st.integers(1, 40)))
            if wild:
                end = data.draw(st.integers(lease.boundary + 1, len(tokens)))
            step = self.cache.allocate(lease, end)
            self.cache.check()
            if step is None:
                continue
            moved = self.cache.advance(lease, end)
            self.cache.check()
            self.running[lease_id] = (moved, tokens)
            done.append((moved, tokens, step))
            other = self.bench.lookup(tokens)
            if other.deferred:
                with pytest.raises(KdalabError, match="computed in this step"):
                    self.cache.acquire(other)
        for _, _, step in done:
            self.bench.copies(step)
        for lease, tokens, step in done:
            self.bench.forward(lease, tokens, step)
        leaver = data.draw(st.sampled_from([None, *sorted(chosen)]))
        if leaver is not None and data.draw(st.booleans()):
            self.cache.release(self.running.pop(leaver)[0])  # before the step has ended
            self.cache.check()
        self.cache.step_done()

    @precondition(lambda self: self.running)
    @rule(data=st.data(), drafts=st.integers(0, 3))
    def decode(self, data: st.DataObject, drafts: int) -> None:
        lease, tokens = self.running[data.draw(st.sampled_from(sorted(self.running)))]
        if lease.boundary < len(tokens):
            return
        accept = data.draw(st.integers(0, drafts))
        longer = tokens + (0,) * (1 + drafts)
        self.learn(longer)
        moved = self.bench.step(lease, longer, len(tokens) + 1, drafts, accept)
        if moved is not None:
            self.running[lease.id] = (moved, longer[: len(tokens) + 1 + accept])

    @precondition(lambda self: self.running)
    @rule(data=st.data(), midway=st.booleans())
    def leave(self, data: st.DataObject, midway: bool) -> None:
        """Finished or aborted, also between allocation and forward."""
        lease, tokens = self.running.pop(data.draw(st.sampled_from(sorted(self.running))))
        if midway:
            step = self.cache.allocate(lease, max(len(tokens), lease.boundary + 1))
            if step is not None:
                self.bench.copies(step)
        self.cache.release(lease)
        self.cache.check()
        self.cache.step_done()
        with pytest.raises(KdalabError, match="not held"):
            self.cache.release(lease)

    @rule(kv=st.integers(0, 6), state=st.integers(0, 6))
    def evict(self, kv: int, state: int) -> None:
        used = {b.id for b in self.cache.pool.blocks if b.ref}
        gone = self.cache.evict(Bytes(kv, state))
        assert not used & {*gone.pages, *gone.states}
        left = [b for b in self.cache.pool.free_blocks() if b.keys]
        if gone.kv_bytes < kv:
            assert not any(b.group in self.cache.kv_groups for b in left)
        if gone.state_bytes < state:
            assert not any(b.group in self.cache.state_groups for b in left)

    @rule(tokens=prompts)
    def lookup_changes_nothing_and_is_right(self, tokens: Tokens) -> None:
        self.learn(tokens)
        found = self.bench.lookup(tokens)
        assert found == self.bench.lookup(tokens)
        assert found.restore == self.restore(tokens) <= max(0, len(tokens) - 1)
        by_group = {g.name: g for g in found.groups}
        for i in self.cache.kv_groups:
            assert by_group[self.cache.groups[i].name].tokens == self.reach(i, tokens)
        assert all(found.restore <= g.tokens for g in found.groups if g.kind is not GroupKind.FULL)

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "bench"):
            self.bench.check()

    def teardown(self) -> None:
        if hasattr(self, "bench"):
            for lease, _ in self.running.values():
                self.cache.release(lease)
            self.cache.step_done()
            self.cache.check()
            assert self.cache.pool.n_free == len(self.cache.pool.blocks) - 1


BlockMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestBlockMachine = BlockMachine.TestCase
