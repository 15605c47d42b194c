"""Both ways over one trace: each as in its own replay, and the difference with its reasons."""

from __future__ import annotations

import math

import pytest

from kdalab.cache import BlockRetention, PrefillFlops, parse_placement, parse_retention
from kdalab.errors import KdalabError
from kdalab.lab import replay, synthetic_trace
from kdalab.lab.block_replay import block_config, model_layout, replay_blocks
from kdalab.lab.compare import compare_trace
from kdalab.lab.cost import CostModel, cost_model
from kdalab.lab.figures import Comparison
from kdalab.lab.trace import Trace
from kdalab.spec import PRESETS

TRACE = synthetic_trace(150)
SPEC = PRESETS["kimi-linear-48b"]
LEAF = parse_placement("leaf+branch")
COST = CostModel(1e15, 1e12)


def both(trace: Trace = TRACE, budget: int | None = None, **options: object) -> Comparison:
    kept = options.pop("retention", parse_retention("lru"))
    options.setdefault("check_every", 10)
    return compare_trace(trace, SPEC, budget, LEAF, kept, COST, **options)  # type: ignore[arg-type]


def test_without_a_budget_each_way_finds_what_its_own_replay_finds() -> None:
    found = both()
    alone = replay(TRACE, SPEC, LEAF)
    assert (found.radix.hit_tokens, found.radix.states_written) == (
        alone.hit_tokens,
        alone.states_written,
    )
    layout = model_layout(SPEC, 512)
    blocks = replay_blocks(TRACE, block_config(TRACE, layout, None, 512), layout=layout)
    assert found.block.hit_tokens == blocks.hit_tokens
    assert found.block.held_bytes == blocks.held_bytes
    assert found.radix.evicted_states == found.block.evicted_states == 0
    assert found.requests == found.same + found.radix.further + found.block.further == 150


def test_the_first_difference_is_where_restore_points_part_and_carries_both_reasons() -> None:
    found = both()
    first = found.first
    assert first is not None
    assert first.radix_restore != first.block_restore
    assert f"restore {first.radix_restore:,}, " in "\n".join(first.radix_why)
    assert f"restore {first.block_restore:,}, " in "\n".join(first.block_why)
    assert sum("group " in line for line in first.block_why) == 4  # 7 MLA, 3 groups of KDA
    at = int(first.request.split()[-1])
    assert both(Trace("until then", TRACE.requests[: at - 1])).first is None
    until = both(Trace("with it", TRACE.requests[:at]))
    radix_ahead = first.radix_restore > first.block_restore
    assert (until.radix.further, until.block.further) == (radix_ahead, not radix_ahead)


def test_neither_goes_over_the_budget_and_both_evict() -> None:
    budget = 3 << 30
    found = both(budget=budget)
    for way in (found.radix, found.block):
        assert 0 < way.held_bytes <= way.peak_bytes <= budget
        assert way.evicted_states > 0
        assert way.evicted_kv_bytes > 0
        assert way.hit_tokens < found.input_tokens
    assert found.radix.padding_bytes == 0 < found.block.padding_bytes < found.block.held_bytes


def test_time_to_the_first_token_is_the_stated_model() -> None:
    one = Trace("one", TRACE.requests[:1])
    found = both(one, donate=True)
    n = TRACE.requests[0].input_tokens
    cold = PrefillFlops.of(SPEC).between(0, n) / 1e15
    assert found.radix.first_token is not None
    assert found.radix.first_token.mean == pytest.approx(cold)  # a donated snapshot copies nothing
    copied = both(one).radix
    assert copied.first_token is not None
    assert copied.first_token.mean == pytest.approx(cold + 2 * copied.copied_bytes / 1e12)
    assert copied.copies == 1


def test_a_smaller_unit_brings_the_block_cache_closer() -> None:
    def hits(**options: object) -> int:
        return both(**options).block.hit_tokens  # type: ignore[arg-type]

    assert hits(unit=2048) < hits()
    dense = both(block_retention=BlockRetention(None))
    assert dense.block.hit_tokens >= hits()


def test_ranks_share_states_and_repeat_latent_kv() -> None:
    whole, part = both(), both(tp_size=8)
    assert part.radix.hit_tokens == whole.radix.hit_tokens
    assert part.radix.copied_bytes == whole.radix.copied_bytes / 8
    assert part.model == "kimi-linear-48b, one rank of 8"


def test_marconis_retention_is_bound_to_the_models_costs() -> None:
    found = both(budget=3 << 30, retention=parse_retention("marconi:0.5"))
    assert "marconi:0.5" in found.radix.setup
    assert found.radix.evicted_states > 0


def test_a_budget_below_one_request_and_rates_of_zero_are_refused() -> None:
    with pytest.raises(KdalabError, match=r"its active state and one checkpoint\. The budget"):
        both(budget=100 << 20)
    for rate in (0, -1, 1e-300, 0.5, 1e25, math.inf, math.nan, 10**5000, True, "fast"):
        with pytest.raises(KdalabError, match=r"FLOP/s = .*use a number of 1 to 1e\+24"):
            CostModel(rate, 1)  # type: ignore[arg-type]
        with pytest.raises(KdalabError, match=r"bytes/s = .*use a number of 1 to 1e\+24"):
            CostModel(1, rate)  # type: ignore[arg-type]
    for rate in (1, 1e24):
        assert math.isfinite(CostModel(rate, rate).seconds(10**30, 10**30))
    with pytest.raises(KdalabError, match="known: a100"):
        cost_model("abacus")
    with pytest.raises(KdalabError, match="bits ranks; use 1 to 1,048,576"):
        cost_model(tp_size=10**400)
    assert cost_model("h100-sxm", tp_size=2).flops == pytest.approx(2 * 0.4 * 989.4e12)
    assert cost_model(flops=5e14).flops == 5e14
