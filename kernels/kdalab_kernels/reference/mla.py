"""Attention over a paged latent cache: the specification, one query at a time.

Absorbed form of multi-head latent attention: all heads share the cached row ``[latent | rope]`` as
their key, and its first value_dim channels as their value.
"""

import torch

from kdalab_kernels.reference.recurrent import accumulation_dtype


def _attend(q: torch.Tensor, rows: torch.Tensor, scale: float, value_dim: int) -> torch.Tensor:
    """q ``[H, C]`` against rows ``[n, C]``, n > 0: ``softmax(scale * q rows^T) rows[:, :R]``."""
    weights = torch.softmax(scale * (q @ rows.t()), dim=-1)
    return weights @ rows[:, :value_dim]


def _rows(pages: torch.Tensor, table: torch.Tensor, n: int, dtype: torch.dtype) -> torch.Tensor:
    """The first n cached rows of one sequence ``[n, C]``, token by token."""
    size = pages.shape[1]
    return torch.stack([pages[int(table[t // size]), t % size] for t in range(n)]).to(dtype)


def mla_decode_paged(
    q: torch.Tensor,
    pages: torch.Tensor,
    block_table: torch.Tensor,
    lengths: torch.Tensor,
    scale: float,
    value_dim: int,
    num_splits: int,
) -> torch.Tensor:
    """The ``reference`` backend of the decode step."""
    dtype = accumulation_dtype(q, pages)
    o = q.new_zeros(*q.shape[:2], value_dim)
    for i, n in enumerate(lengths.tolist()):
        if n:
            rows = _rows(pages, block_table[i], n, dtype)
            o[i] = _attend(q[i].to(dtype), rows, scale, value_dim)
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
    """The ``reference`` backend of prefill: the last query of a sequence sees all its context."""
    dtype = accumulation_dtype(q, pages)
    o = q.new_zeros(*q.shape[:2], value_dim)
    for i, n in enumerate(context_lengths.tolist()):
        start, end = cu_seqlens[i], cu_seqlens[i + 1]
        if end > start:
            rows = _rows(pages, block_table[i], n, dtype)
            for t in range(start, end):
                seen = rows[: n - (end - 1 - t)]
                o[t] = _attend(q[t].to(dtype), seen, scale, value_dim)
    return o
