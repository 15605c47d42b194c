"""Solutions whose specification is plain Python, held against the project's own code as well."""

from __future__ import annotations

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kdalab.cache import Checkpoint, PrefixKey, RadixStateCache, group_layers, layer_specs
from kdalab.exercises.solutions.ex01 import equal_tokens
from kdalab.exercises.solutions.ex04 import compose
from kdalab.exercises.solutions.ex06 import joint_boundary
from kdalab.exercises.solutions.ex16 import group_layers as grouped
from kdalab.exercises.solutions.ex17 import padded_block
from kdalab.exercises.solutions.ex23 import ship_or_replay
from kdalab.spec import PRESETS, preset, state_sizes
from kdalab.transfer.worth import break_even
from kdalab_kernels import AffineSummary
from kdalab_kernels import compose as compose_op


def test_a_checkpoint_weighs_so_many_tokens() -> None:
    for spec in PRESETS.values():
        sizes = state_sizes(spec)
        tokens = equal_tokens(sizes.checkpoint_bytes, sizes.latent_bytes_per_token)
        assert (
            abs(tokens - sizes.checkpoint_equals_tokens) <= 1
        )  # rounded up there, to nearest here
        assert sizes.latent_bytes(tokens) >= sizes.checkpoint_bytes > sizes.latent_bytes(tokens - 1)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    states=st.sets(st.integers(1, 8), min_size=1),
    same=st.integers(0, 34),
    new=st.integers(0, 9),
    page=st.sampled_from([1, 2, 4]),
)
def test_the_joint_boundary_is_where_the_tree_restores(
    states: set[int], same: int, new: int, page: int
) -> None:
    ends = sorted(page * s for s in states)
    text = list(range(1, ends[-1] + 1))
    cache = RadixStateCache(page, page)
    key = PrefixKey.from_tokens(text, page)
    lease = cache.acquire(cache.lookup(key))
    for slot, end in enumerate(ends):
        pages = tuple(range(lease.boundary // page, end // page))
        lease = cache.commit(lease, key, pages, Checkpoint(slot, end)).lease
    prompt = text[:same] + [0] * new + [0]
    found = cache.lookup(PrefixKey.from_tokens(prompt, page))
    kv = list(range(0, found.token_match + 1, page))
    assert joint_boundary(found.token_match, kv, ends, len(prompt), page) == found.restore


def test_summaries_compose_as_the_op_composes_them() -> None:
    M, b = torch.randn(2, 3, 3, dtype=torch.float64), torch.randn(2, 3, 2, dtype=torch.float64)
    mine = compose((M[0], b[0]), (M[1], b[1]))
    ours = compose_op(
        AffineSummary(M[None, None, 0], b[None, None, 0]),
        AffineSummary(M[None, None, 1], b[None, None, 1]),
    )
    torch.testing.assert_close(mine[0], ours.M[0, 0])
    torch.testing.assert_close(mine[1], ours.b[0, 0])


def test_kimi_k3_makes_the_groups_that_the_statement_names() -> None:
    specs = layer_specs(preset("kimi-k3"))
    groups, empty = grouped([(str(s.kind), s.page_bytes) for s in specs])
    assert groups == [list(g.layers) for g in group_layers(specs)]
    assert sorted(map(len, groups)) == [23, 23, 23, 24]
    assert empty == 3
    assert padded_block(576, 814_080, 128) == (1_536, 1_536 * 576 - 814_080)


def test_shipping_wins_from_where_both_lines_cross() -> None:
    for name, bandwidth, rate in (
        ("kimi-k3", 10**10, 20_000),
        ("kimi-linear-48b", 10**9, 50_000),
        ("kimi-linear-48b", 10**8, 50_000),
    ):
        sizes = state_sizes(preset(name))
        fixed, token = sizes.checkpoint_bytes, sizes.latent_bytes_per_token
        _, fewest = ship_or_replay(1, fixed, token, bandwidth, rate)
        tie = break_even(fixed, token, bandwidth, 1 / rate)
        assert (fewest == -1) == math.isinf(tie)
        if fewest != -1:
            assert (fewest - 1) * (1 - 1e-9) <= tie < fewest * (1 + 1e-9)
