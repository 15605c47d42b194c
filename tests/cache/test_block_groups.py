"""Groups, padding and block sizes: published numbers, and sums that must close."""

from __future__ import annotations

from itertools import pairwise

import pytest

from kdalab.cache import (
    BlockConfig,
    BlockRetention,
    BlockStateCache,
    CacheMode,
    GroupKind,
    attention_block,
    block_sizes,
    group_layers,
    layer_specs,
    packed_layout,
    padded_layout,
    plain_groups,
)
from kdalab.errors import KdalabError
from kdalab.spec import PRESETS


def test_kimi_k3_on_eight_ranks_with_fp8_kv_has_blocks_of_1536_tokens() -> None:
    k3 = PRESETS["kimi-k3"].with_dtypes(kv="fp8")
    (state,) = {s for s in layer_specs(k3, tp_size=8, align=128) if s.kind is GroupKind.STATE}
    assert state.page_bytes == 814_080
    assert attention_block(814_080, 576, 128) == 1536
    assert attention_block(6_512_640, 576, 128) == 11_392
    groups = group_layers(layer_specs(k3, tp_size=8, align=128))
    assert [len(g.layers) for g in groups] == [24, 23, 23, 23]
    layout = padded_layout(groups)
    assert layout.page_padding(0) == 0
    assert layout.page_padding(1) == 23 * (1536 * 576 - 814_080)  # pages made larger
    assert layout.place_padding(1) == 1536 * 576  # one place without a layer
    assert layout.place_padding(0) == 0


@pytest.mark.parametrize("name", ["kimi-linear-48b", "kimi-k3"])
@pytest.mark.parametrize("make", [padded_layout, packed_layout])
def test_used_bytes_and_paddings_add_up_to_the_block(name: str, make) -> None:  # type: ignore[no-untyped-def]
    spec = PRESETS[name]
    groups = group_layers(layer_specs(spec, align=64))
    layers = sorted(n for g in groups for n in g.layers)
    assert layers == list(range(spec.num_layers))
    layout = make(groups)
    for i, group in enumerate(groups):
        real = len(group.layers) * group.spec.page_bytes
        assert layout.used_bytes(i) == real
        assert real + layout.page_padding(i) + layout.place_padding(i) == layout.stride
        at = sorted((p.offset, p.offset + p.spec.held_bytes) for p in layout.places if p.group == i)
        assert all(a[1] <= b[0] for a, b in pairwise(at))
        assert at[-1][1] <= layout.stride
    if make is packed_layout:
        assert all(layout.page_padding(i) == 0 for i in range(len(groups)))


def test_an_attention_page_too_small_for_a_state_is_refused_when_padded_but_can_be_packed() -> None:
    specs = layer_specs(PRESETS["kimi-linear-48b"], block=64)
    with pytest.raises(KdalabError, match="use blocks of at least"):
        padded_layout(group_layers(specs))
    assert packed_layout(group_layers(specs)).page_padding(0) == 0


def test_the_three_block_sizes() -> None:
    groups = plain_groups(48, 32)
    assert block_sizes(groups).scheduler == 96
    assert block_sizes(groups).unit == 16
    assert block_sizes(groups, 8).unit == 8
    with pytest.raises(KdalabError, match="use a divisor of 16"):
        block_sizes(groups, 12)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"retention": BlockRetention(100)}, "is not a multiple of the scheduler's block"),
        ({"unit": 8, "mode": CacheMode.ALL}, "needs cache mode align"),
        ({"kernel_grid": 16, "mode": CacheMode.NONE}, "needs mode align"),
        ({"groups": plain_groups(16, 16, 0), "retention": BlockRetention(16)}, "without a state"),
        ({"n_blocks": 1}, "take 2 or more"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(options: dict, message: str) -> None:  # type: ignore[type-arg]
    with pytest.raises(KdalabError, match=message):
        BlockStateCache(BlockConfig(**{"groups": plain_groups(16, 16), "n_blocks": 9, **options}))


def test_a_negative_interval_is_refused() -> None:
    with pytest.raises(KdalabError, match="use None"):
        BlockRetention(-16)
