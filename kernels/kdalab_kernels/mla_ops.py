"""Multi-head latent attention over a paged cache, absorbed form (DeepSeek-V2, section 2.1).

Every cached token is one row of C = R + rope channels that all heads share: the whole row is the
key, its first R channels are the value. The up-projections are folded into q and into what follows,
so that decode reads R + rope numbers a token instead of keys and values of every head.
"""

import torch

from kdalab_kernels import checks, slot_checks
from kdalab_kernels.dispatch import implementation
from kdalab_kernels.slot_checks import Slots

MAX_SPLITS = 1024  # more parts than any device has cores, and a bound on the merge


def mla_decode_paged(
    q: torch.Tensor,
    pages: torch.Tensor,
    block_table: torch.Tensor,
    lengths: Slots,
    scale: float,
    value_dim: int,
    num_splits: int | None = None,
    *,
    check_tables: bool = True,
    backend: str = "auto",
) -> torch.Tensor:
    """One query a sequence against its cached rows.

    Args:
        q: ``[N, H, C]``, absorbed queries.
        pages: ``[P, page, C]`` in q's dtype; a pool or one layer of it, ``pool[:, layer]``.
        block_table: ``[N, max_pages]`` integers: entry i is the page of tokens
            ``[i * page, (i + 1) * page)``. Entries behind a sequence's last token are not read.
        lengths: ``[N]`` cached tokens, the query's own among them; 0 gives an output of 0.
        scale: factor on the scores.
        value_dim: R, at most C.
        num_splits: 1 to 1,024 parts into which the triton kernel cuts every context, to occupy the
            device when N is small; they are merged exactly by their log-sum-exp. None lets it
            choose. The other backends have no use for it.
        check_tables: False skips the check of the numbers in block_table and lengths, which on an
            accelerator makes the host wait. A page out of range is then read from wherever it
            would lie.

    Returns:
        o ``[N, H, R]`` in q's dtype.

    Raises:
        ValueError: naming the argument.
    """
    _checked_pages(q, pages, value_dim, "[N, H, C]")
    if num_splits is not None:
        checks.integer("num_splits", num_splits, 1, MAX_SPLITS)
    checks.number("scale", scale)
    checks.flag("check_tables", check_tables)
    N = q.shape[0]
    table, n = _checked_tables(pages, block_table, "lengths", lengths, N, check_tables)
    run = implementation("mla_decode_paged", backend, q.device, q.dtype)
    o: torch.Tensor = run(q, pages, table, n, scale, value_dim, num_splits or 0)
    return o


def mla_prefill_paged(
    q: torch.Tensor,
    pages: torch.Tensor,
    block_table: torch.Tensor,
    cu_seqlens: torch.Tensor,
    context_lengths: Slots,
    scale: float,
    value_dim: int,
    *,
    check_tables: bool = True,
    backend: str = "auto",
) -> torch.Tensor:
    """The new tokens of N sequences, causal over their cached rows (their own are written already).

    Args:
        q: ``[T, H, C]``, all sequences' queries in one row.
        cu_seqlens: ``[N + 1]`` offsets of the sequences in q.
        context_lengths: ``[N]`` cached tokens of each sequence, its queries included: query i of m
            sees the first ``context - m + 1 + i`` rows.
        pages, block_table, scale, value_dim, check_tables: as in :func:`mla_decode_paged`.

    Returns:
        o ``[T, H, R]`` in q's dtype.
    """
    _checked_pages(q, pages, value_dim, "[T, H, C]")
    checks.number("scale", scale)
    checks.flag("check_tables", check_tables)
    offsets = checks.sequence_offsets(cu_seqlens, 1, q.shape[0])
    if offsets is None:
        raise ValueError("cu_seqlens: expected int32 or int64 of shape [N + 1], given None")
    N = len(offsets) - 1
    table, n = _checked_tables(
        pages, block_table, "context_lengths", context_lengths, N, check_tables
    )
    if check_tables:
        for i, context in enumerate(n.tolist()):
            queries = offsets[i + 1] - offsets[i]
            if context < queries:
                raise ValueError(
                    f"context_lengths: expected at least the {queries} queries of sequence {i}, "
                    f"given {context}"
                )
    run = implementation("mla_prefill_paged", backend, q.device, q.dtype)
    o: torch.Tensor = run(q, pages, table, offsets, n, scale, value_dim)
    return o


def _checked_pages(q: torch.Tensor, pages: torch.Tensor, value_dim: int, axes: str) -> None:
    if checks.floating("q", q).ndim != 3 or q.shape[1] < 1:
        raise ValueError(f"q: expected shape {axes}, given {list(q.shape)}")
    C = q.shape[2]
    slot_checks.pool("pages", pages, "[P, page, C]", (None, None, C))
    if pages.dtype != q.dtype:
        raise ValueError(f"pages: expected the dtype of q, {q.dtype}, given {pages.dtype}")
    checks.same_place(("q", q), ("pages", pages))
    checks.integer("value_dim", value_dim, 1, C)


def _checked_tables(
    pages: torch.Tensor,
    block_table: torch.Tensor,
    name: str,
    lengths: Slots,
    N: int,
    check: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The table ``[N, max_pages]`` and the lengths ``[N]`` as int64 on pages' device."""
    P, page = pages.shape[:2]
    table = slot_checks.integers("block_table", block_table, "[N, max_pages]", (N, None))
    n = slot_checks.integers(name, lengths, "[N]", (N,))
    if check and N:
        most = table.shape[1] * page
        if not bool(((n >= 0) & (n <= most)).all()):
            raise ValueError(f"{name}: expected 0 to {most} tokens, given {n.tolist()}")
        used = torch.arange(table.shape[1], device=n.device)[None] * page < n[:, None]
        wrong = used.to(table.device) & ((table < 0) | (table >= P))
        if bool(wrong.any()):
            row, column = wrong.nonzero()[0].tolist()
            raise ValueError(
                f"block_table: expected pages from 0 to {P - 1}, given "
                f"{int(table[row, column])} at [{row}, {column}]"
            )
    device = pages.device
    return table.to(device, torch.int64).contiguous(), n.to(device, torch.int64).contiguous()
