"""The reference check of align mode: how many tokens has each block's state really seen?

Only a map from block to a count is kept beside the cache, so blocks and prompts may have their real
sizes. Whatever the chunks, every named state block must have seen just what its name claims.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kdalab.cache import (
    BlockConfig,
    BlockRetention,
    BlockStateCache,
    HashChain,
    Lease,
    PrefixKey,
    Step,
    plain_groups,
)

SHAPES = [(16, 16), (16, 4), (64, 16), (528, 16), (1536, 128), (8192, 128), (12_288, 128)]
STREAM = np.arange(200_000, dtype=np.int32)


@dataclass
class Counted:
    """A cache, and ``seen``: tokens that each block's state has really seen."""

    cache: BlockStateCache
    seen: dict[int, int] = field(default_factory=dict)

    def forward(self, step: Step) -> None:
        for copy in step.copies:
            if copy.group in self.cache.state_groups:
                self.seen[copy.target] = self.seen[copy.source]
        for work in step.states:
            assert (self.seen[work.read] if work.read else 0) == step.start
            self.seen.update({block: boundary for boundary, block in work.writes.items()})

    def check(self) -> None:
        self.cache.check()
        for group in self.cache.state_groups:
            for block in self.cache.pool.tables[group].values():
                (key,) = block.keys
                assert self.seen[block.id] == key.boundary
                whole = HashChain(prompt(key.boundary, self.cache.sizes.unit), key_unit(self))
                assert key.hash == whole.at(key.boundary)

    def step(self, lease: Lease, end: int, drafts: int = 0, accept: int = 0) -> Lease:
        step = self.cache.allocate(lease, end, drafts)
        assert step is not None
        self.forward(step)
        key = prompt(end + accept, self.cache.sizes.unit) if drafts else None
        lease = self.cache.advance(lease, end + accept, key)
        self.cache.step_done()
        return lease


def key_unit(counted: Counted) -> int:
    return counted.cache.sizes.unit


def prompt(n: int, unit: int) -> PrefixKey:
    return PrefixKey.from_tokens(STREAM[:n], unit)  # type: ignore[arg-type]


lengths = st.tuples(st.integers(1, 4), st.sampled_from([-1, 0, 1, 7]), st.booleans())


@settings(max_examples=120, deadline=None)
@given(
    shape=st.sampled_from(SHAPES),
    kernel=st.sampled_from([0, 16, 64]),
    interval=st.sampled_from([None, 0, 1, 2]),
    speculative=st.booleans(),
    turns=st.lists(lengths, min_size=1, max_size=4),
    data=st.data(),
)
def test_every_named_state_has_seen_just_what_its_name_claims(
    shape: tuple[int, int],
    kernel: int,
    interval: int | None,
    speculative: bool,
    turns: list[tuple[int, int, bool]],
    data: st.DataObject,
) -> None:
    block, unit = shape
    cache = BlockStateCache(
        BlockConfig(
            plain_groups(block, block, 2),
            120,
            unit=unit,
            retention=BlockRetention(interval and interval * block),
            speculative=speculative,
            kernel_grid=kernel,
        )
    )
    counted = Counted(cache)
    for blocks, off, fine in turns:
        n = max(2, blocks * block + off + (data.draw(st.integers(0, 5)) * unit if fine else 0))
        lease = cache.acquire(cache.lookup(prompt(n, unit)))
        restored = lease.boundary
        if lease.state is not None:
            assert counted.seen[lease.state.slot] == restored < n
        while lease.boundary < n:
            budget = data.draw(st.sampled_from([unit, block // 3 + 1, block, 3 * block + 5, 10**6]))
            budget = max(budget, n // 40)
            start, end = lease.boundary, cache.chunk_end(lease, budget)
            assert start < end <= min(n, start + budget)
            lease = counted.step(lease, end)
        counted.check()
        for _ in range(data.draw(st.integers(0, 3))):
            drafts = data.draw(st.integers(1, 3))
            accept = data.draw(st.integers(0, drafts))
            lease = counted.step(lease, lease.boundary + 1, drafts, accept)
        counted.check()
        cache.release(lease)
        # The same prompt again comes as far as its tail, which retention never leaves out.
        tail = (n - 1) // unit * unit - (unit if speculative else 0)
        assert cache.lookup(prompt(n, unit)).restore >= max(0, tail)
