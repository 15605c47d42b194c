"""FLOP-aware eviction: the formulas, the score, and the cache under it."""

from __future__ import annotations

import pytest
import test_radix_machine as machines
from cache_cases import Book, text
from hypothesis import given, settings
from hypothesis import strategies as st

from kdalab.cache import Bytes, Retention
from kdalab.cache.flops import PrefillFlops
from kdalab.cache.marconi import MarconiOrder, Worth, best_alpha, scores
from kdalab.errors import KdalabError
from kdalab.spec import PRESETS

FLOPS = PrefillFlops(linear=100, pair=2)


@given(a=st.integers(0, 60), b=st.integers(0, 60), c=st.integers(0, 60))
def test_a_span_costs_the_sum_of_its_tokens(a: int, b: int, c: int) -> None:
    a, b, c = sorted((a, b, c))
    assert FLOPS.between(a, c) == sum(100 + 2 * (t + 1) for t in range(a, c))
    assert FLOPS.between(a, c) == FLOPS.between(a, b) + FLOPS.between(b, c)


def test_a_token_costs_two_flops_a_weight_of_the_active_parameters() -> None:
    """Kimi Linear is published as 48B-A3B: 3 billion weights take part, embeddings among them."""
    flops = PrefillFlops.of(PRESETS["kimi-linear-48b"])
    assert 2 * 2.2e9 < flops.linear < 2 * 3.3e9
    assert flops.pair == 7 * 2 * 32 * (192 + 128)


def test_scores_are_normalised_over_the_candidates_and_weighed_by_alpha() -> None:
    found = scores([Worth(0.1, 10), Worth(0.5, 30), Worth(0.3, 20)], 2.0)
    assert [s.recency for s in found] == pytest.approx([0, 1, 0.5])
    assert [s.total for s in found] == pytest.approx([0, 3, 1.5])
    assert scores([Worth(1, 1)], 1)[0].total == 0
    assert scores([], 1) == []


def book(alpha: float) -> Book:
    order = MarconiOrder(FLOPS, page_bytes=1, state_bytes=10, alpha=alpha)
    return Book(4, 8, 1, 10, Retention(order))


@pytest.mark.parametrize(("alpha", "survivor"), [(0.0, "young and short"), (2.0, "old and long")])
def test_long_prefixes_outlive_younger_short_ones_once_alpha_counts(
    alpha: float, survivor: str
) -> None:
    b = book(alpha)
    prompts = {"old and long": text(400, 1), "young and short": text(8, 2)}
    for tokens in prompts.values():
        b.run(tokens, len(tokens))
    b.run(text(8, 3), 8)
    b.run(text(8, 4), 8)
    gone = b.cache.evict(Bytes(either=1))
    assert gone.states
    b.cache.check()
    kept = {name for name, tokens in prompts.items() if b.restore([*tokens, 7, 7])}
    assert kept == {survivor}


def test_a_state_inside_the_tree_leaves_its_kv_to_the_child() -> None:
    b = book(1.0)
    b.run(text(64), 32, 64)
    gone = b.cache.evict(Bytes(state=1))
    assert len(gone.states) == 1
    b.cache.check()
    left = b.cache.lookup(b.key(text(64)))
    assert left.token_match in (0, 64)


def test_the_alpha_that_saves_most_is_chosen_and_the_smallest_of_equals() -> None:
    assert best_alpha(lambda a: -abs(a - 0.7)) == 0.7
    assert best_alpha(lambda a: 1.0) == 0.0
    with pytest.raises(KdalabError, match="no alpha"):
        best_alpha(lambda a: a, ())


def test_a_negative_alpha_is_refused() -> None:
    with pytest.raises(KdalabError, match="use 0"):
        MarconiOrder(FLOPS, 1, 1, -0.1)


class MarconiMachine(machines.RadixMachine):
    """The cache's whole random life, under the FLOP-aware order."""

    retention = Retention(MarconiOrder(FLOPS, machines.PAGE_BYTES, machines.STATE_BYTES, alpha=0.8))


MarconiMachine.TestCase.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)
TestMarconiMachine = MarconiMachine.TestCase
