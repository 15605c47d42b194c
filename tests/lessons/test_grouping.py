"""Groups and layouts against published numbers and a sum over layers."""

from __future__ import annotations

import pytest

from kdalab.errors import KdalabError
from kdalab.lessons import play_groups


@pytest.mark.parametrize(
    ("tp", "kv", "exact", "block"),
    [(8, "fp8", 1413.3, 1536), (1, "fp8", 11306.7, 11392), (8, "bf16", 706.7, 768)],
)
def test_kimi_k3s_attention_block_is_the_published_one(tp, kv, exact, block):
    run = play_groups("kimi-k3", tp, kv, 128, 131072, 8)
    assert round(run.exact, 1) == exact
    assert run.block == block
    assert run.page_bytes >= run.state_bytes
    assert "holds no state" in run.refusal


@pytest.mark.parametrize("model", ["kimi-k3", "kimi-linear-48b", "glm-5.3-flash", "qwen3-next-80b"])
@pytest.mark.parametrize("one_group", [False, True])
def test_data_padding_and_empty_places_add_up_to_the_bytes_taken(model, one_group):
    context, states = 40_000, 5
    run = play_groups(model, 1, "bf16", 64, context, states, one_group)
    for x in run.layouts:
        taken = 0
        for i, group in enumerate(x.layout.groups):
            blocks = -(-context // x.block) if group.spec.token_bytes else states
            taken += blocks * x.layout.stride
            layers = len(group.layers) * group.spec.page_bytes
            assert x.used[i] == layers
            assert x.used[i] + x.pages[i] + x.places[i] == x.layout.stride
        assert x.used_total + x.lost_total == taken
    padded, packed, fitted = run.layouts
    assert sum(packed.pages) == sum(fitted.pages) == 0
    assert fitted.layout.stride <= packed.layout.stride <= padded.layout.stride
    assert one_group or packed.layout.stride == padded.layout.stride


def test_one_group_a_kind_leaves_the_attention_block_mostly_empty():
    dealt = play_groups("kimi-k3", 8, "fp8", 128, 131072, 8).layouts[0]
    single = play_groups("kimi-k3", 8, "fp8", 128, 131072, 8, one_group=True).layouts[0]
    assert len(dealt.layout.groups) == 4
    assert len(single.layout.groups) == 2
    assert single.places[0] == (69 - 24) * 1536 * 576
    assert single.lost_total > 5 * dealt.lost_total


def test_what_does_not_exist_is_refused():
    with pytest.raises(KdalabError, match="use one of"):
        play_groups("nobody", 1, "fp8", 128, 1024, 1)
    with pytest.raises(KdalabError, match="per rank"):
        play_groups("tiny", 8, "fp8", 128, 1024, 1)
