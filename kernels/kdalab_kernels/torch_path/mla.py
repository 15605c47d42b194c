"""Attention over a paged latent cache: one sequence at a time, its pages gathered once.

A sequence is computed by calls of its own, so its bits do not depend on the rest of the batch.
"""

import torch

from kdalab_kernels import checks

BLOCK_BYTES = 1 << 25
"""Scores of one block of queries."""


def _rows(pages: torch.Tensor, table: torch.Tensor, n: int, dtype: torch.dtype) -> torch.Tensor:
    """The first n cached rows of one sequence ``[n, C]``; nothing behind them is looked at."""
    size = pages.shape[1]
    return pages[table[: -(-n // size)]].flatten(0, 1)[:n].to(dtype)


def mla_decode_paged(
    q: torch.Tensor,
    pages: torch.Tensor,
    block_table: torch.Tensor,
    lengths: torch.Tensor,
    scale: float,
    value_dim: int,
    num_splits: int,
) -> torch.Tensor:
    """As :func:`kdalab_kernels.mla_decode_paged`, for checked arguments; one split."""
    checks.no_gradient("mla_decode_paged", q, pages)
    dtype = torch.promote_types(q.dtype, torch.float32)
    o = q.new_zeros(*q.shape[:2], value_dim)
    for i, n in enumerate(lengths.tolist()):
        if n:
            rows = _rows(pages, block_table[i], n, dtype)
            weights = torch.softmax((q[i].to(dtype) * scale) @ rows.t(), dim=-1)
            o[i] = weights @ rows[:, :value_dim]
    return o


def mla_prefill_paged(
    q: torch.Tensor,
    pages: torch.Tensor,
    block_table: torch.Tensor,
    cu_seqlens: list[int],
    context_lengths: torch.Tensor,
    scale: float,
    value_dim: int,
) -> torch.Tensor:
    """As :func:`kdalab_kernels.mla_prefill_paged`, for checked arguments, in blocks of queries."""
    checks.no_gradient("mla_prefill_paged", q, pages)
    dtype = torch.promote_types(q.dtype, torch.float32)
    H = q.shape[1]
    o = q.new_empty(*q.shape[:2], value_dim)
    for i, n in enumerate(context_lengths.tolist()):
        start, end = cu_seqlens[i], cu_seqlens[i + 1]
        if end == start:
            continue
        rows = _rows(pages, block_table[i], n, dtype)
        step = max(1, BLOCK_BYTES // (4 * H * n))
        for a in range(start, end, step):
            b = min(end, a + step)
            seen = n - (end - b)  # rows before the end of this block
            keys = rows[:seen]
            scores = (q[a:b].to(dtype) * scale) @ keys.t()  # [queries, H, rows]
            later = torch.ones(b - a, seen, dtype=torch.bool, device=q.device)
            scores.masked_fill_(later.triu_(seen - (b - a) + 1)[:, None], -torch.inf)
            o[a:b] = (torch.softmax(scores, dim=-1) @ keys[:, :value_dim]).to(q.dtype)
    return o
