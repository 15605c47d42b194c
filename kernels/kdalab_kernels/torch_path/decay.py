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
        rows: ``[n, C, 2, K]``: scaled q and beta * k.
        k: ``[n, C, K]`` columns.
        G: ``[n, C, K]`` per-token log2-decay; becomes the sum from the tile's start to each token.
        to_end: ``[n, C, K]``, any content; becomes the sum from after each token to the tile's end.
        A: ``[n, C, 2, C]``; written on and below the diagonal for q, below it for beta * k.
        buffers: working memory.
    """
    n, C, K = k.shape
    E, later, earlier = buffers.E[:n], buffers.half_rows[:n], buffers.half_cols[:n]
    to_end.zero_()
    torch.mul(rows[:, :, 0], k, out=E)
    A[:, :, 0].diagonal(dim1=1, dim2=2).copy_(E.sum(-1))
    h = 1
    while h < C:
        pairs = C // (2 * h)
        halves = (n, pairs, 2, h, K)
        since_early, since_late = G.view(halves).unbind(2)
        until_early, _ = to_end.view(halves).unbind(2)
        E_early, E_late = E.view(halves).unbind(2)
        torch.exp2(until_early, out=E_early)
        torch.exp2(since_late, out=E_late)
        late_rows = later.view(n, pairs, h, 2, K)
        early_k = earlier.view(n, pairs, h, K)
        torch.mul(rows.view(n, pairs, 2, h, 2, K).select(2, 1), E_late.unsqueeze(3), out=late_rows)
        torch.mul(k.view(halves).select(2, 0), E_early, out=early_k)
        products = torch.bmm(late_rows.view(-1, 2 * h, K), early_k.view(-1, h, K).transpose(1, 2))
        # The block below the diagonal of every pair: tile, pair, row, q or k, column.
        strides = (2 * C * C, 2 * h * (2 * C + 1), 2 * C, C, 1)
        below = A.as_strided((n, pairs, h, 2, h), strides, A.storage_offset() + h * 2 * C)
        below.copy_(products.view(n, pairs, h, 2, h))
        until_early += since_late[:, :, -1:]
        since_late += since_early[:, :, -1:]
        h *= 2
