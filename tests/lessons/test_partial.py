"""Partial hits against sums by hand: the last unit below the prompt's end, where a state stands."""

from __future__ import annotations

import pytest

from kdalab.errors import KdalabError
from kdalab.lessons import play_partial


@pytest.mark.parametrize("shared", [1, 63, 64, 65, 256, 257, 400, 448, 512, 1000])
@pytest.mark.parametrize("unit", [16, 64, None])
@pytest.mark.parametrize("parts", [1, 2])
def test_the_retry_of_a_prompt_restores_at_its_last_unit(shared, unit, parts):
    block = 256
    fine = unit or block // parts
    run = play_partial(shared, block, unit, parts=parts)
    assert run.sizes.unit == fine
    assert run.lookup.restore == (shared - 1) // fine * fine


def test_the_articles_examples():
    assert play_partial(400, 256, 64).lookup.restore == 384
    assert play_partial(400, 256, None).lookup.restore == 256
    assert play_partial(4_500, 8192, 128).lookup.restore == 4_480
    assert play_partial(4_500, 8192, None).lookup.restore == 0
    assert play_partial(100, 128, 32).lookup.restore == 96


def test_a_search_asks_in_the_order_that_its_kind_must():
    run = play_partial(4_500, 1536, 64, beyond=900)
    full, state, *_ = run.searches
    whole = [p for i, p in enumerate(full.probes) if p.boundary == (i + 1) * 1536]
    assert [p.found for p in whole] == [True, True, False]
    fine = [p.boundary for p in full.probes[len(whole) :]]
    assert [p.boundary for p in whole] == [1536, 3072, 4608]
    assert fine == sorted(fine, reverse=True)
    asked = [p.boundary for p in state.probes]
    assert asked == sorted(asked, reverse=True)
    assert [p.found for p in state.probes[:-1]] == [False] * (len(asked) - 1)


def test_watching_a_lookup_changes_neither_its_answer_nor_the_cache():
    from kdalab.cache import BlockConfig, BlockStateCache, PrefixKey, plain_groups
    from kdalab.lessons.block_watch import watched_lookup

    cache = BlockStateCache(BlockConfig(plain_groups(64, 64), 40, unit=16))
    chain = cache.chain(PrefixKey.from_tokens(range(200), 16))
    lease = cache.acquire(cache.lookup(chain))
    while lease.boundary < 200:
        end = cache.chunk_end(lease, 200)
        cache.allocate(lease, end)
        lease = cache.advance(lease, end)
        cache.step_done()
    tables = cache.pool.tables
    watched, searches = watched_lookup(cache, chain)
    assert watched == cache.lookup(chain)
    assert cache.pool.tables is tables
    assert not {"full_reach", "state_at", "own_reach"} & set(vars(cache.reader))
    assert [s.reach for s in searches] == [192, 192, 192][: len(searches)]
    cache.check()


def test_sizes_that_do_not_go_together_are_refused():
    with pytest.raises(KdalabError, match="does not divide"):
        play_partial(400, 128, 48)
    with pytest.raises(KdalabError, match="1 or more shared"):
        play_partial(0, 128, 64)


@pytest.mark.parametrize("unit", [64, None])
@pytest.mark.parametrize(("shared", "beyond"), [(400, 0), (650, 300), (255, 0), (1000, 10)])
def test_what_is_computed_again_is_replayed_or_has_no_name(shared, beyond, unit):
    run = play_partial(shared, 256, unit, beyond=beyond)
    found = run.lookup
    own = found.n_tokens - shared
    assert run.again == shared - found.restore
    assert run.again == found.replay + (found.new - own)  # the lookup counts the nameless as new
