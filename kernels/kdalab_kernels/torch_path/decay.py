"""Products of rows and columns under a per-channel decay, by recursive halving.

``A[i, j] = sum_c row_ic k_jc 2^(G_ic - G_jc)`` cannot be pulled apart into ``row 2^G`` times
``k 2^-G``: the second factor overflows. Between two neighbouring blocks of h tokens it can, with
the border between them as the reference: the decay from the border to row i in the later block,
times the decay from column j to the border in the earlier one. Both exponents are at most 0 for any
gate. Blocks of 1, 2, 4, ... tokens cover every pair i > j exactly once.

The two exponents are running sums *within* the blocks, built by adding the neighbour's total when
blocks double. Nothing is subtracted, so no digits cancel when a gate of -1000 has gone before, and
a row's numbers never depend on a later token.
"""

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from kdalab_kernels.torch_path.chunk import Buffers


def decayed_products(
    rows: torch.Tensor,
    k: torch.Tensor,
    G: torch.Tensor,
    to_end: torch.Tensor,
    A: torch.Tensor,
    buffers: "Buffers",
) -> None:
    """Fill A and turn per-token gates into running sums.

    Args:
        rows: ``[n, 2, C, K]``: scaled q and beta * k.
        k: ``[n, C, K]`` columns.
        G: ``[n, C, K]`` per-token log2-decay; becomes the sum from the tile's start to each token.
        to_end: ``[n, C, K]``, any content; becomes the sum from after each token to the tile's end.
        A: ``[n, 2, C, C]``; written on and below the diagonal for q, below it for beta * k.
        buffers: working memory.
    """
    n, C, K = k.shape
    E, later, earlier = buffers.E[:n], buffers.half_rows[:n], buffers.half_cols[:n]
    torch.mul(rows[:, 0], k, out=E)
    A[:, 0].diagonal(dim1=1, dim2=2).copy_(E.sum(-1))
    h = 1
    while h < C:
        pairs = C // (2 * h)
        halves = (n, pairs, 2, h, K)
        since_early, since_late = G.view(halves).unbind(2)
        until_early, until_late = to_end.view(halves).unbind(2)
        E_early, E_late = E.view(halves).unbind(2)
        late = rows.view(n, 2, pairs, 2, h, K).select(3, 1).transpose(1, 2)
        late_rows = later.view(n, pairs, 2, h, K)
        early_k = k.view(halves).select(2, 0)
        torch.exp2(since_late, out=E_late)
        if h == 1:
            # Nothing lies between a single column and the border, and a product of one row and
            # one column is a sum.
            torch.mul(late, E_late.mul_(early_k).unsqueeze(2), out=late_rows)
            products = late_rows.sum(-1)
            until_early.copy_(since_late)
            until_late.zero_()
        else:
            torch.mul(late, E_late.unsqueeze(2), out=late_rows)
            torch.exp2(until_early, out=E_early)
            columns = torch.mul(early_k, E_early, out=earlier.view(n, pairs, h, K))
            columns_T = columns.view(-1, h, K).transpose(1, 2)
            products = torch.bmm(late_rows.view(-1, 2 * h, K), columns_T)
            until_early += since_late[:, :, -1:]
        # The block below the diagonal of every pair: tile, pair, q or k, row, column.
        strides = (2 * C * C, 2 * h * (C + 1), C * C, C, 1)
        below = A.as_strided((n, pairs, 2, h, h), strides, A.storage_offset() + h * C)
        below.copy_(products.view(n, pairs, 2, h, h))
        since_late += since_early[:, :, -1:]
        h *= 2
