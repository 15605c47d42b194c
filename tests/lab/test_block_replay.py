"""A trace through the block cache: sums close, and more states never mean fewer hits."""

from __future__ import annotations

import pytest

from kdalab.cache import BlockConfig, BlockRetention, BlockStateCache, plain_groups
from kdalab.errors import KdalabError
from kdalab.lab.block_replay import BlockReplayResult, block_config, model_layout, replay_blocks
from kdalab.lab.synthetic import synthetic_trace
from kdalab.spec import PRESETS

TRACE = synthetic_trace(120)


def run(n_blocks: int = 20_000, retention: int | None = 0, block: int = 1024) -> BlockReplayResult:
    config = BlockConfig(
        plain_groups(block, block, 3), n_blocks, unit=512, retention=BlockRetention(retention)
    )
    return replay_blocks(TRACE, config, check_every=10)


def test_what_is_hit_was_known_and_what_was_known_is_hit_or_replayed() -> None:
    result = run()
    assert 0 < result.hit_tokens <= result.known_tokens <= result.input_tokens
    assert result.known_tokens == result.hit_tokens + result.replayed_tokens
    assert result.evicted_kv_blocks == result.evicted_state_blocks == 0


def test_dense_states_hit_no_less_and_cost_more() -> None:
    reachable, dense = run(), run(retention=None)
    assert dense.hit_tokens >= reachable.hit_tokens
    assert dense.states_written > reachable.states_written


def test_a_small_pool_evicts_and_one_below_a_request_is_refused() -> None:
    largest = max(r.input_tokens for r in TRACE)
    small = run(n_blocks=largest // 1024 + 40)
    assert small.evicted_kv_blocks > 0
    assert small.hit_tokens <= run().hit_tokens
    assert small.peak_blocks <= largest // 1024 + 39
    with pytest.raises(KdalabError, match="does not fit"):
        run(n_blocks=largest // 2048)


@pytest.mark.parametrize("retention", [0, None])
def test_a_budget_beyond_what_the_trace_can_fill_makes_no_more_blocks(
    retention: int | None,
) -> None:
    layout = model_layout(PRESETS["kimi-k3"], 512)
    kept = BlockRetention(retention)
    free = block_config(TRACE, layout, None, 512, retention=kept)
    # An independent count: a pool twice as large, which is not capped, finds and holds the same.
    large = BlockConfig(
        layout.groups, 2 * free.n_blocks, unit=512, retention=kept, block_bytes=layout.stride
    )
    huge = block_config(TRACE, layout, 10**33, 512, retention=kept)
    assert huge == free
    found, same = (replay_blocks(TRACE, c, layout=layout) for c in (huge, large))
    assert found.evicted_kv_blocks == found.evicted_state_blocks == 0
    for name in ("hit_tokens", "known_tokens", "states_written", "held_blocks", "peak_bytes"):
        assert getattr(found, name) == getattr(same, name)


def test_a_pool_of_more_blocks_than_objects_fit_is_refused_before_one_is_made() -> None:
    config = BlockConfig(plain_groups(512, 512, 3), 10**30, unit=512)
    with pytest.raises(KdalabError, match=r"a number of 100 bits blocks; take at most 16,777,216"):
        BlockStateCache(config)
