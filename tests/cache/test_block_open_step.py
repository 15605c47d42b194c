"""While a step is open: whose blocks come back at once, and what a failed forward takes back."""

from __future__ import annotations

import pytest
from block_cases import Bench, text

from kdalab.errors import KdalabError


def test_blocks_of_a_request_in_the_open_step_are_free_when_it_has_ended() -> None:
    bench = Bench(n_blocks=20)
    cache, lease = bench.cache, bench.start(text(40))
    cache.allocate(lease, 32)
    lease = cache.advance(lease, 32)
    held = cache.pool.n_free
    cache.release(lease)
    cache.check()
    assert cache.pool.n_free == held, "the forward may still write them"
    cache.step_done()
    assert cache.pool.n_free == 19


def test_blocks_of_an_idle_request_are_free_at_once_though_a_step_is_open() -> None:
    bench = Bench(n_blocks=20)
    cache = bench.cache
    idle = bench.run(text(30, 1), hold=True)
    other = bench.start(text(40))
    cache.allocate(other, 32)
    cache.advance(other, 32)
    held = cache.pool.n_free
    cache.release(idle)
    cache.check()
    assert cache.pool.n_free == held + 3, "two KV blocks and its state"
    cache.step_done()
    cache.check()


def test_a_failed_forward_takes_back_the_names_of_its_own_step_and_no_others() -> None:
    bench = Bench(retention=None)
    cache, tokens = bench.cache, text(50)
    lease = bench.start(tokens)
    moved = bench.prefill(lease, tokens, 16)
    assert moved is not None
    cache.allocate(moved, 48)
    moved = cache.advance(moved, 48)
    assert bench.lookup(tokens).token_match == 48
    gone = cache.withdraw(moved)
    assert sorted((g.group, k.boundary) for g in gone for k in g.keys) == [
        (0, 32),
        (0, 48),
        (1, 48),
    ]
    found = bench.lookup(tokens)
    assert (found.token_match, found.restore) == (16, 16)
    assert cache.withdraw(moved) == []
    cache.release(moved)
    cache.step_done()
    cache.check()


def test_names_are_only_taken_back_in_the_open_step() -> None:
    bench = Bench()
    lease = bench.run(text(40), hold=True)
    with pytest.raises(KdalabError, match="no part in an open step"):
        bench.cache.withdraw(lease)
