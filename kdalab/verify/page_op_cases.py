"""How the ops on pages, and on what travels, are drawn and called; see :mod:`kdalab.verify.ops`."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate

import torch

import kdalab_kernels as kk
from kdalab.verify.ops import Call, Draw, OpCase, Tensors


def _paged(draw: Draw, contexts: list[int], page: int) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Pages ``[P, page, C]``, a table ``[N, max_pages]`` of pages in no order, and R.

    Rows behind a context, and pages that no context uses, are NaN: nobody may read them.
    """
    R, rope = draw.one_of((16, 16), (60, 4), (40, 8))
    used = [-(-n // page) for n in contexts]
    total = sum(used) + 2
    free = torch.randperm(total, generator=draw.random).tolist()
    table = torch.full((len(contexts), max(max(used), 1)), total - 1)
    pages = torch.full((total, page, R + rope), torch.nan, dtype=torch.float64)
    for row, (n, count) in enumerate(zip(contexts, used, strict=True)):
        for i in range(count):
            table[row, i] = free.pop()
            rows = min(page, n - i * page)
            pages[table[row, i], :rows] = draw.normal(rows, R + rope)
    return pages, table, R


def _mla_decode(draw: Draw) -> tuple[Tensors, Call]:
    lengths = list(draw.one_of((1,), (64, 5), (33, 0, 100)))
    page, H, splits = draw.one_of(16, 64), draw.one_of(1, 3), draw.one_of(None, 1, 3)
    pages, table, R = _paged(draw, lengths, page)
    inputs = {"q": draw.normal(len(lengths), H, pages.shape[2]), "pages": pages}

    def call(x: Tensors, backend: str) -> Iterable[torch.Tensor]:
        more: Tensors = {"scale": 0.2, "value_dim": R, "num_splits": splits, "backend": backend}
        return [kk.mla_decode_paged(**x, block_table=table, lengths=lengths, **more)]

    return inputs, call


def _mla_prefill(draw: Draw) -> tuple[Tensors, Call]:
    new, before = draw.one_of(((1,), (0,)), ((20,), (64,)), ((7, 0, 17), (0, 3, 40)))
    contexts = [a + b for a, b in zip(new, before, strict=True)]
    pages, table, R = _paged(draw, contexts, draw.one_of(16, 64))
    inputs = {"q": draw.normal(sum(new), draw.one_of(1, 3), pages.shape[2]), "pages": pages}
    offsets = torch.tensor([0, *accumulate(new)])

    def call(x: Tensors, backend: str) -> Iterable[torch.Tensor]:
        more: Tensors = {"scale": 0.2, "value_dim": R, "backend": backend}
        return [
            kk.mla_prefill_paged(
                **x, block_table=table, cu_seqlens=offsets, context_lengths=contexts, **more
            )
        ]

    return inputs, call


def _gather(draw: Draw) -> tuple[Tensors, Call]:
    ids = draw.one_of([3], [0, 5, 5, -1], [4, 2, 1])
    inputs = {"pages": draw.normal(6, draw.one_of(16, 64), draw.one_of(8, 20))}
    return inputs, lambda x, backend: [kk.gather_pages(**x, page_ids=ids, backend=backend)]


def _scatter(draw: Draw) -> tuple[Tensors, Call]:
    ids = draw.one_of([3], [0, 5, -1], [4, 2, 1])
    page, C = draw.one_of(16, 64), draw.one_of(8, 20)
    inputs = {"buffer": draw.normal(len(ids), page, C), "pages": draw.normal(6, page, C)}

    def call(x: Tensors, backend: str) -> Iterable[torch.Tensor]:
        kk.scatter_pages_inplace(**x, page_ids=ids, backend=backend)
        return [x["pages"]]

    return inputs, call


_HEADS, _CHANNELS = 4, (16, 16, 24)  # of the whole model: value heads; q, k and v channels


def _shards(draw: Draw) -> tuple[kk.TpRank, kk.TpRank]:
    sizes = draw.one_of((1, 2), (4, 2), (2, 4), (2, 1), (2, 2))
    source, target = (kk.TpRank(size, int(draw.uniform(1) * size)) for size in sizes)
    return source, target


def _pools(draw: Draw, rank: kk.TpRank) -> Tensors:
    return {
        "states": draw.normal(3, 2, _HEADS // rank.size, 20, 16),
        "conv": draw.normal(3, 2, 3, sum(_CHANNELS) // rank.size),
    }


def _gather_shard(draw: Draw) -> tuple[Tensors, Call]:
    source, target = _shards(draw)
    slots = draw.one_of([2], [0, 1], [1, -1])

    def call(x: Tensors, backend: str) -> Iterable[torch.Tensor]:
        return kk.gather_shard(
            **x, slots=slots, source=source, target=target, channels=_CHANNELS, backend=backend
        )

    return _pools(draw, source), call


def _scatter_shard(draw: Draw) -> tuple[Tensors, Call]:
    source, target = _shards(draw)
    theirs = _pools(draw, source)
    slots = draw.one_of([2], [0, 1], [1, -1])
    which: Tensors = {"source": source, "target": target, "channels": _CHANNELS}
    sent = kk.gather_shard(**theirs, slots=[0, 1][: len(slots)], **which, backend="reference")
    inputs = {**_pools(draw, target), "sent_states": sent.states, "sent_conv": sent.conv}

    def call(x: Tensors, backend: str) -> Iterable[torch.Tensor]:
        piece = kk.ShardPiece(x["sent_states"], x["sent_conv"])
        pools = {"states": x["states"], "conv": x["conv"]}
        kk.scatter_shard_inplace(piece, **pools, slots=slots, **which, backend=backend)
        return pools.values()

    return inputs, call


PAGE_CASES: dict[str, OpCase] = {
    "mla_decode_paged": OpCase(_mla_decode),
    "mla_prefill_paged": OpCase(_mla_prefill),
    "gather_pages": OpCase(_gather, exact=True),
    "scatter_pages_inplace": OpCase(_scatter, exact=True),
    "gather_shard": OpCase(_gather_shard, exact=True),
    "scatter_shard_inplace": OpCase(_scatter_shard, exact=True),
}
