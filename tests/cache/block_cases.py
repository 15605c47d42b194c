"""What the tests of the block cache share: a cache with its memory, run the slow and plain way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kdalab.cache import (
    BlockConfig,
    BlockLookup,
    BlockRetention,
    BlockStateCache,
    Lease,
    Lru,
    MarconiOrder,
    PrefixKey,
    Step,
    plain_groups,
)
from kdalab.errors import InvariantError

Tokens = tuple[int, ...]


class Bench:
    """Beside the cache: what every block really holds.

    ``memory`` maps a state block to the very tokens its state has seen; ``kv`` maps a KV block to
    its tokens by position. Both change only by what a step says: copies first, then the forward.
    Nothing here looks at the cache's own lengths.
    """

    def __init__(
        self,
        block: int = 16,
        n_blocks: int = 400,
        *,
        full_block: int | None = None,
        states: int = 1,
        retention: int | None = 0,
        order: Lru | MarconiOrder | None = None,
        **options: Any,
    ) -> None:
        groups = plain_groups(full_block or block, block, states)
        self.cache = BlockStateCache(
            BlockConfig(
                groups, n_blocks, retention=BlockRetention(retention, order or Lru()), **options
            )
        )
        self.memory: dict[int, Tokens] = {}
        self.kv: dict[int, dict[int, int]] = {}
        self.unit = self.cache.sizes.unit

    def key(self, tokens: Sequence[int]) -> PrefixKey:
        return PrefixKey.from_tokens(tokens, self.unit)

    def lookup(self, tokens: Sequence[int]) -> BlockLookup:
        return self.cache.lookup(self.key(tokens))

    def restore(self, tokens: Sequence[int]) -> int:
        return self.lookup(tokens).restore

    def start(self, tokens: Tokens) -> Lease:
        """Acquire; what is restored must hold the prompt's own beginning."""
        found = self.lookup(tokens)
        lease = self.cache.acquire(found)
        assert found.restore < len(tokens)
        for i in self.cache.state_groups:
            running = self.cache.requests[lease.id].states[i].running
            assert (running is None) == (found.restore == 0)
            if running is not None:
                assert self.memory[running.id] == tokens[: found.restore]
        return lease

    def copies(self, step: Step) -> None:
        """Queued copies are made in order, before the forward."""
        for group, source, target, n in step.copies:
            if group in self.cache.state_groups:
                self.memory[target] = self.memory[source]
            else:
                self.kv[target] = {i: t for i, t in self.kv[source].items() if i < n}

    def forward(self, lease: Lease, tokens: Tokens, step: Step) -> None:
        """Compute tokens [start, end + drafts): states by the step's own words, KV by the table."""
        for work in step.states:
            seen = self.memory[work.read] if work.read else ()
            assert seen == tokens[: step.start], "the state to begin from is of other tokens"
            for boundary, block in work.writes.items():
                self.memory[block] = tokens[:boundary]
        for i in self.cache.kv_groups:
            size, table = self.cache.groups[i].block_tokens, self.cache.table(lease, i)
            for at in range(step.start, step.end + step.drafts):
                self.kv.setdefault(table[at // size], {})[at % size] = tokens[at]
            for at in range(step.end + step.drafts):
                assert self.kv[table[at // size]][at % size] == tokens[at], "KV of other tokens"

    def step(
        self, lease: Lease, tokens: Tokens, end: int, drafts: int = 0, accept: int = 0
    ) -> Lease | None:
        step = self.cache.allocate(lease, end, drafts)
        if step is None:
            self.cache.check()
            return None
        self.cache.check()
        self.copies(step)
        self.forward(lease, tokens, step)
        lease = self.cache.advance(lease, end + accept, self.key(tokens[: end + accept]))
        self.cache.check()
        self.cache.step_done()
        self.check()
        return lease

    def run(self, tokens: Tokens, budget: int = 10**6, hold: bool = False) -> Lease:
        """A whole prompt, chunk by chunk."""
        lease = self.start(tokens)
        while lease.boundary < len(tokens):
            request = self.cache.requests[lease.id]
            end = self.cache.chunk_end(lease, budget)
            assert request.computed < end <= min(request.computed + budget, len(tokens))
            moved = self.prefill(lease, tokens, end)
            assert moved is not None
            lease = moved
        if not hold:
            self.cache.release(lease)
        self.check()
        return lease

    def prefill(self, lease: Lease, tokens: Tokens, end: int) -> Lease | None:
        """One chunk; the prompt's hashes are known from the start."""
        step = self.cache.allocate(lease, end)
        if step is None:
            return None
        self.copies(step)
        self.forward(lease, tokens, step)
        lease = self.cache.advance(lease, end)
        self.cache.check()
        self.cache.step_done()
        self.check()
        return lease

    def check(self) -> None:
        """The reference check: every named block holds what its name claims, and no less."""
        self.cache.check()
        for block in self.cache.pool.blocks:
            for key in block.keys:
                if block.fresh:
                    continue
                if block.group in self.cache.state_groups:
                    held = self.memory[block.id]
                    if len(held) != key.boundary or self.hash(held) != key.hash:
                        raise InvariantError(
                            f"{block}: key of {key.boundary} tokens, state of {len(held)}"
                        )
                else:
                    size = self.cache.groups[block.group].block_tokens
                    first = (key.boundary - 1) // size * size
                    held_kv = self.kv[block.id]
                    assert all(i in held_kv for i in range(key.boundary - first)), block

    def hash(self, tokens: Tokens) -> bytes:
        return self.cache.chain(self.key(tokens)).at(len(tokens))


def text(n: int, seed: int = 0) -> Tokens:
    return tuple(seed * 1000 + i for i in range(n))
