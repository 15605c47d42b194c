"""Products of rows and columns under a per-channel decay, and their inverse, by halving.

``A[i, j] = sum_c row_ic k_jc 2^(G_ic - G_jc)`` cannot be pulled apart into ``row 2^G`` times
``k 2^-G``: the second factor overflows. Between two neighbouring blocks of h tokens it can, with
the border between them as the reference: the decay from the border to row i in the later block,
times the decay from column j to the border in the earlier one. Both are at most 1 for any gate.
Blocks of 1, 2, 4, ... tokens cover every pair i > j exactly once.

Rows carry the decay since their block's start and columns that until their block's end, as factors:
when blocks double, the later rows take the earlier block's total on them, and the earlier columns
the later one's. A total is ``2^sum`` of its block's gates, so a slow decay is rounded once a block
and not once a token. Sums are only added to and factors only multiplied: no digits cancel when a
gate of -1000 has gone before, and a row's numbers never depend on a later token. When the last two
blocks have become the tile, rows hold ``row 2^G``, columns ``k 2^(G_last - G)`` and the totals
``2^G_last``.

The same doubling solves the system ``I + Akk``: with X and Y the inverses of the two blocks on the
diagonal and B the products between them, ``[[X, 0], [-Y B X, Y]]`` is the inverse of both. This is
substitution block by block; there is no power of Akk in it, so nothing grows before it cancels.
"""

from typing import NamedTuple

import torch


class Level(NamedTuple):
    """Views of a tile's numbers as pairs of neighbouring blocks of h tokens; p pairs in all."""

    h: int
    late: torch.Tensor  # [p, 2 h, K]: rows of the later block, of q and of beta * k in turn
    early: torch.Tensor  # [p, h, K]: columns of the earlier one
    total_early: torch.Tensor  # [p, 1, K]: decay over the earlier block
    total_late: torch.Tensor  # [p, 1, K]
    gate_early: torch.Tensor  # [p, 1, K]: the totals' logarithms in base 2
    gate_late: torch.Tensor  # [p, 1, K]
    products: torch.Tensor  # [p, 2 h, h], working memory
    of_q: torch.Tensor  # [p, h, h] of products
    of_k: torch.Tensor
    A: torch.Tensor  # [p, h, h]: where the products of q belong
    X: torch.Tensor  # [p, h, h]: the inverse on the earlier block
    Y: torch.Tensor  # on the later one
    corner: torch.Tensor  # below X and beside Y
    half: torch.Tensor  # [p, h, h], working memory
    whole: torch.Tensor  # [p, h, h], working memory


def squares(n: int, C: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """``[n, C, C]`` of zeros with C numbers to spare after each.

    All blocks on the diagonals of all squares are then evenly spaced, so that one batched product
    takes them where they are.
    """
    return torch.zeros((n, C + 1, C), dtype=dtype, device=device)[:, :C]


def levels(
    rows: torch.Tensor,
    k: torch.Tensor,
    G: torch.Tensor,
    total: torch.Tensor,
    A: torch.Tensor,
    T: torch.Tensor,
) -> list[Level]:
    """Views for :func:`decayed_products`, and their working memory; made once for many calls.

    Args:
        rows: ``[n, C, 2, K]``.
        k, G, total: ``[n, C, K]``.
        A, T: from :func:`squares`; zero above the diagonal, T one on it. Only what is below the
            diagonal is written.
    """
    n, C, K = k.shape
    scratch = [k.new_empty(n * C * C // size) for size in (2, 4, 4)]
    out = []
    h = 1
    while h < C:
        p = n * C // (2 * h)

        def block(square: torch.Tensor, first: int, p: int = p, h: int = h) -> torch.Tensor:
            return square.as_strided(
                (p, h, h), (2 * h * (C + 1), C, 1), square.storage_offset() + first
            )

        gates, totals = G.view(p, 2 * h, K), total.view(p, 2 * h, K)
        products = scratch[0][: 2 * p * h * h].view(p, h, 2, h)
        half, whole = (t[: p * h * h].view(p, h, h) for t in scratch[1:])
        level = Level(
            h,
            rows.view(p, 2, 2 * h, K)[:, 1],
            k.view(p, 2, h, K)[:, 0],
            totals[:, :1],
            totals[:, h : h + 1],
            gates[:, :1],
            gates[:, h : h + 1],
            products.view(p, 2 * h, h),
            products[:, :, 0],
            products[:, :, 1],
            block(A, h * C),
            block(T, 0),
            block(T, h * (C + 1)),
            block(T, h * C),
            half,
            whole,
        )
        out.append(level)
        h *= 2
    return out


def decayed_products(
    rows: torch.Tensor,
    k: torch.Tensor,
    G: torch.Tensor,
    total: torch.Tensor,
    A: torch.Tensor,
    spare: torch.Tensor,
    pairs: list[Level],
) -> None:
    """Fill ``Aqk`` and ``(I + Akk)^-1``, and put the decays on rows and columns.

    Args:
        rows: ``[n, C, 2, K]``: scaled q and beta * k; becomes both times ``2^G``.
        k: ``[n, C, K]`` columns; becomes ``k 2^(G_last - G)``.
        G: ``[n, C, K]``: log2-decay of each token; row 0 becomes ``G_last``.
        total: ``[n, C, K]``, any content; row 0 becomes ``2^G_last``.
        A: ``[n, C, C]``: Aqk, written on and below the diagonal.
        spare: ``[n, C, K]``, working memory.
        pairs: :func:`levels` of these rows, k, G and total, of A, and of the inverse.
    """
    torch.mul(rows[:, :, 0], k, out=spare)
    torch.sum(spare, -1, out=A.diagonal(dim1=1, dim2=2))
    rows.mul_(torch.exp2(G, out=total)[:, :, None])
    for at in pairs:
        if at.h == 1:
            # A product of one row and one column is a sum.
            each = spare.view(at.late.shape)
            torch.mul(at.late, at.early, out=each)
            torch.sum(each, -1, keepdim=True, out=at.products)
            torch.neg(at.of_k, out=at.corner)
        else:
            torch.bmm(at.late, at.early.transpose(1, 2), out=at.products)
            torch.bmm(at.of_k, at.X, out=at.half)
            torch.bmm(at.Y, at.half, out=at.whole)
            torch.neg(at.whole, out=at.corner)
        at.A.copy_(at.of_q)
        at.late.mul_(at.total_early)
        at.early.mul_(at.total_late)
        torch.exp2(at.gate_early.add_(at.gate_late), out=at.total_early)
