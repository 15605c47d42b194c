"""Other ranks, other layouts: bit for bit what would have been cut from the whole model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from transfer_cases import (
    CHANNELS,
    HEADS,
    PROMPT,
    TINY,
    K,
    V,
    engine,
    prefilled,
    same,
    small_bundle,
)

from kdalab.errors import KdalabError
from kdalab.transfer import (
    Bundle,
    BundleRefusedError,
    export_request,
    merge,
    relayout,
    reslice,
    resume_request,
    split,
)
from kdalab_kernels import TpRank, gather_shard, scatter_shard_inplace

LAYOUTS = [
    (state, conv) for state in ("v_first", "k_first") for conv in ("time_first", "channel_first")
]


def cut_by_hand(whole: Bundle, size: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Recurrent and conv of one rank by plain indexing, V first and time first."""
    heads = range(rank * HEADS // size, (rank + 1) * HEADS // size)
    rows, before = [], 0
    for width in (K, K, V):
        rows += [before + h * width + i for h in heads for i in range(width)]
        before += HEADS * width
    return whole.recurrent[:, list(heads)], whole.conv[:, :, rows]


@pytest.mark.parametrize("layout", LAYOUTS, ids="-".join)
@pytest.mark.parametrize("source", [1, 2, 4])
@pytest.mark.parametrize("target", [1, 2, 4])
def test_a_rank_gets_what_the_whole_model_has_there(
    source: int, target: int, layout: tuple[str, str]
) -> None:
    whole = small_bundle()
    parts = [relayout(p, *layout) for p in split(whole, source)]
    for rank in range(target):
        got = reslice([Bundle.from_bytes(p.to_bytes()) for p in parts], target, rank)
        assert got.identity.recurrent_layout, got.identity.conv_layout == layout
        assert (got.parallel.tp_size, got.parallel.tp_rank) == (target, rank)
        plain = relayout(got, "v_first", "time_first")
        recurrent, conv = cut_by_hand(whole, target, rank)
        assert torch.equal(plain.recurrent, recurrent)
        assert torch.equal(plain.conv, conv)
        assert torch.equal(got.latent, whole.latent)
    again = merge([reslice(parts, target, r) for r in range(target)])
    assert same(relayout(again, "v_first", "time_first"), whole)


@pytest.mark.parametrize(("source", "target"), [(2, 4), (4, 2), (1, 4), (4, 1)])
def test_pieces_sent_from_rank_to_rank_make_the_same(source: int, target: int) -> None:
    whole = small_bundle()
    parts = split(whole, source)
    for rank in range(target):
        expected = reslice(parts, target, rank)
        states, conv = (torch.full_like(t[None], float("nan")) for t in tuple(expected)[1:])
        for i, part in enumerate(parts):
            ends = TpRank(source, i), TpRank(target, rank)
            piece = gather_shard(part.recurrent[None], part.conv[None], [0], *ends, CHANNELS)
            scatter_shard_inplace(piece, states, conv, [0], *ends, CHANNELS)
        assert torch.equal(states[0], expected.recurrent)
        assert torch.equal(conv[0], expected.conv)


def test_a_layout_is_turned_and_turned_back() -> None:
    whole = small_bundle()
    for layout in LAYOUTS:
        turned = relayout(whole, *layout)
        shape = (V, K) if layout[0] == "v_first" else (K, V)
        assert tuple(turned.recurrent.shape[2:]) == shape
        assert turned.recurrent.is_contiguous()
        assert same(relayout(turned, "v_first", "time_first"), whole)
    with pytest.raises(KdalabError, match="recurrent_layout 'kv'; use v_first or k_first"):
        relayout(whole, "kv")


def test_ranks_that_do_not_belong_together_are_not_joined() -> None:
    a, b = split(small_bundle(0), 2)
    other = split(small_bundle(1), 2)[1]
    with pytest.raises(BundleRefusedError, match="latent: ours rank 0's"):
        merge([a, other])
    with pytest.raises(KdalabError, match=r"ranks \[1, 0\] of 2"):
        merge([b, a])
    with pytest.raises(KdalabError, match=r"ranks \[0\] of 2"):
        merge([a])
    with pytest.raises(KdalabError, match="no bundles"):
        merge([])
    newer = b.changed(identity=replace(b.identity, model_version="v2"))
    with pytest.raises(BundleRefusedError, match="model_version"):
        merge([a, newer])
    with pytest.raises(KdalabError, match="1 ranks to 3"):
        split(small_bundle(), 3)


@pytest.mark.parametrize("size", [2, 4])
def test_decoding_goes_on_from_the_bundles_of_all_ranks(size: int) -> None:
    prefill, decode = prefilled(PROMPT), engine()
    parts = split(export_request(prefill, "P"), size)
    blobs = [relayout(p, "k_first", "channel_first").to_bytes() for p in parts]
    whole = merge([Bundle.from_bytes(b) for b in blobs])
    options: dict[str, Any] = {"max_new_tokens": 6}
    first = prefill.requests["P"].generated
    with pytest.raises(BundleRefusedError, match="recurrent_layout"):
        resume_request(decode, whole, PROMPT, first, **options)
    ours = relayout(whole, "v_first", "time_first")
    request = resume_request(decode, ours, PROMPT, first, **options)
    decode.run()
    assert request.generated == TINY.greedy(PROMPT, 6)
