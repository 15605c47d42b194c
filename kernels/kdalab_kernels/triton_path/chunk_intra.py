"""Decayed products inside a tile: ``A[i, j] = sum_c row_ic k_jc 2^(G_ic - G_jc)`` for i >= j.

``2^(G_i - G_j)`` cannot be split into ``2^G_i`` times ``2^-G_j``: the second factor overflows. Two
ways around it, and no exponent is ever a difference of large sums, so nothing cancels either.

*Between blocks of 16 tokens*, by halving: the border between two neighbouring halves is the
reference. The decay from the border to a later row and the decay from an earlier column to the
border are sums of gates, at most 0, for any gate. One matrix product for the halves of 32 tokens,
one for the halves of 64.

*Inside a block*, the first row is the reference as long as it can be: columns whose sum since
the reference exceeds CAP in any channel start again with a reference of their own. A gate bounded
by -5 never needs a second one; -1000 at every token takes one per token.

A is a sum over channels, so the caller goes through them some at a time, to stay in registers.

A row's numbers depend on no later token: which reference a column takes is settled by the tokens
before it, and what later tokens contribute to a row is discarded by ``where``, not by multiplying.
"""

import triton
import triton.language as tl

CAP = tl.constexpr(110.0)  # 15 steps of -5 are 108.2 in base 2; 2^110 leaves 2^17 for k in float32


@triton.jit
def _product(x, E, kt, keep, PRODUCT: tl.constexpr, PRECISION: tl.constexpr):
    return tl.where(keep, tl.dot((x * E).to(PRODUCT), kt, input_precision=PRECISION), 0.0)


@triton.jit
def products_between_blocks(
    q,  # [C, BK] any float, rows of the first product
    k,  # [C, BK] rows of the second, columns of both
    since,  # [NB, 16, BK] log2-decay from the block's start to each token, with it
    until,  # [NB, 16, BK] from after each token to the block's end
    total,  # [NB, BK]
    Aq,  # [C, C] float32, what to add to
    Ak,
    C: tl.constexpr,
    NB: tl.constexpr,
    BK: tl.constexpr,
    PRODUCT: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """``(Aq, Ak)`` with the pairs added whose row lies in a later block than their column."""
    block = tl.arange(0, C) // 16
    b3 = tl.arange(0, NB)
    if NB >= 2:  # odd blocks of 16 read the even ones before them
        E = tl.exp2(tl.where((b3 % 2 == 1)[:, None, None], since, until))
        E = tl.reshape(E, [C, BK])
        kt = tl.trans((k * E).to(PRODUCT))
        keep = (block[:, None] == block[None, :] + 1) & (block[:, None] % 2 == 1)
        Aq += _product(q, E, kt, keep, PRODUCT, PRECISION)
        Ak += _product(k, E, kt, keep, PRODUCT, PRECISION)
    if NB == 4:  # the later 32 tokens read the earlier 32
        total1 = tl.sum(tl.where((b3 == 1)[:, None], total, 0.0), axis=0)
        total2 = tl.sum(tl.where((b3 == 2)[:, None], total, 0.0), axis=0)
        between = tl.where((b3 == 0)[:, None], total1[None, :], 0.0)
        between += tl.where((b3 == 3)[:, None], total2[None, :], 0.0)
        E = tl.exp2(tl.where((b3 >= 2)[:, None, None], since, until) + between[:, None, :])
        E = tl.reshape(E, [C, BK])
        kt = tl.trans((k * E).to(PRODUCT))
        keep = (block[:, None] >= 2) & (block[None, :] < 2)
        Aq += _product(q, E, kt, keep, PRODUCT, PRECISION)
        Ak += _product(k, E, kt, keep, PRODUCT, PRECISION)
    return Aq, Ak


@triton.jit
def products_in_blocks(
    q,  # as above
    k,
    g3,  # [NB, 16, BK] log2-decay of each token
    Aq,
    Ak,
    C: tl.constexpr,
    NB: tl.constexpr,
    BK: tl.constexpr,
    PRODUCT: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """``(Aq, Ak)`` with the pairs i >= j of one block added; above the diagonal stays as it is."""
    i = tl.arange(0, C)
    keep = (i[:, None] >= i[None, :]) & (i[:, None] // 16 == i[None, :] // 16)
    p = tl.arange(0, 16)
    reference = tl.zeros([NB], tl.int32)  # place within each block; 16 when the block is done
    unfinished = True
    while unfinished:
        after = p[None, :] > reference[:, None]
        S = tl.cumsum(tl.where(after[:, :, None], g3, 0.0), axis=1)
        far = tl.min(S, axis=2) < -CAP
        following = tl.min(tl.where(far, p[None, :], 16), axis=1)
        rows = p[None, :] >= reference[:, None]
        columns = rows & (p[None, :] < following[:, None])
        down = tl.exp2(tl.where(columns[:, :, None], -S, 0.0))
        down = tl.where(columns[:, :, None], down, 0.0)
        kt = tl.trans((k * tl.reshape(down, [C, BK])).to(PRODUCT))
        up = tl.reshape(tl.where(rows[:, :, None], tl.exp2(S), 0.0), [C, BK])
        Aq += _product(q, up, kt, keep, PRODUCT, PRECISION)
        Ak += _product(k, up, kt, keep, PRODUCT, PRECISION)
        reference = following
        unfinished = tl.min(following, axis=0) < 16
    return Aq, Ak
