"""The triangular system of a tile: ``(I + L)^-1`` for a strictly lower L.

Rows one after another inside blocks of 16 (forward substitution, all blocks side by side), then two
blocks become one by ``[[X, 0], [B, Y]]^-1 = [[X^-1, 0], [-Y^-1 B X^-1, Y^-1]]``. Both are stable.
The tempting series ``(I - L)(I + L^2)(I + L^4)...`` is exact algebra, and loses every digit when
keys are nearly parallel and decay is slow.
"""

import triton
import triton.language as tl


@triton.jit
def unit_lower_inverse(L, C: tl.constexpr, NB: tl.constexpr, PRECISION: tl.constexpr):
    """``(I + L)^-1 [C, C]`` of a strictly lower L ``[C, C]`` float32, C = 16 NB."""
    b = tl.arange(0, NB)
    p = tl.arange(0, 16)
    diagonal = b[:, None, None, None] == b[None, None, :, None]
    L4 = tl.reshape(L, [NB, 16, NB, 16])
    D = tl.sum(tl.where(diagonal, L4, 0.0), axis=2)  # the blocks on the diagonal, [NB, 16, 16]
    X = tl.zeros_like(D) + tl.where(p[:, None] == p[None, :], 1.0, 0.0)[None, :, :]
    for i in tl.range(1, 16):
        here = (p == i)[None, :, None]
        row = tl.sum(tl.where(here, D, 0.0), axis=1)
        X -= tl.where(here, tl.sum(row[:, :, None] * X, axis=1)[:, None, :], 0.0)
    inverse = tl.reshape(tl.where(diagonal, X[:, :, None, :], 0.0), [C, C])

    block = tl.arange(0, C) // 16
    if NB >= 2:
        pair = (block[:, None] == block[None, :] + 1) & (block[:, None] % 2 == 1)
        half = tl.dot(inverse, tl.where(pair, L, 0.0), input_precision=PRECISION)
        inverse -= tl.dot(half, inverse, input_precision=PRECISION)
    if NB == 4:
        halves = (block[:, None] >= 2) & (block[None, :] < 2)
        half = tl.dot(inverse, tl.where(halves, L, 0.0), input_precision=PRECISION)
        inverse -= tl.dot(half, inverse, input_precision=PRECISION)
    return inverse
