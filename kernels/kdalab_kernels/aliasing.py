"""Memory that an op writes is its own: no other argument of the call may lie in it.

A backend may read an argument before, between or after its writes, so with shared memory the result
would depend on the backend and on the order of rows. Looked at on the host, from addresses and
strides alone: two layers of one pool lie between each other and share nothing, which is allowed.
"""

from collections import Counter
from itertools import accumulate
from math import gcd

import torch

Named = tuple[str, object]
_MOST_STEPS = 10_000  # far above any layout of pools; past it two tensors count as overlapping


def apart(written: tuple[Named, ...], read: tuple[Named, ...] = ()) -> None:
    """ValueError when a written tensor shares a byte with another argument; all else is skipped.

    Args:
        written: (name, tensor) of what the op writes.
        read: (name, argument) of what it reads; what is no tensor (None, a list) shares nothing.
    """
    spans = [(name, x, *_span(x)) for name, x in written if isinstance(x, torch.Tensor)]
    others = [(name, x, *_span(x)) for name, x in read if isinstance(x, torch.Tensor)]
    for i, (target, x, start, end) in enumerate(spans):
        for name, y, first, last in (*spans[i + 1 :], *others):
            if start < last and first < end and x.device == y.device and share_memory(x, y):
                raise ValueError(
                    f"{name}: expected memory apart from {target}, which this op writes, given a "
                    f"tensor that shares some of it; pass a copy ({name}.clone()), or views of "
                    "the pool without common elements"
                )


def share_memory(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether some byte belongs to an element of both (exact, from addresses and strides).

    A byte of a is ``a0 + sum i_k s_k``. Counting b's indices from its end makes all signs equal:
    a common byte is a solution of ``sum c_k x_k = end of b - a0`` with ``0 <= x_k <= n_k``.
    """
    (start, end), (first, last) = _span(a), _span(b)
    if not (start < last and first < end):
        return False
    counts: Counter[int] = Counter()
    for x in (a, b):
        counts[1] += x.element_size() - 1
        for size, stride in zip(x.shape, x.stride(), strict=True):
            if stride and size > 1:
                counts[stride * x.element_size()] += size - 1
    terms: list[tuple[int, int]] = []
    for c, n in sorted(counts.items()):
        if terms and c % terms[-1][0] == 0 and c // terms[-1][0] <= terms[-1][1] + 1:
            small, many = terms[-1]  # together they reach every multiple of the smaller one
            terms[-1] = (small, many + c // small * n)
        elif n:
            terms.append((c, n))
    return _solvable(terms, last - 1 - start)


def _span(x: torch.Tensor) -> tuple[int, int]:
    """First address of x, and the one after its last; both 0 when it is empty."""
    if not x.numel():
        return 0, 0
    if x.is_contiguous():  # as most are
        reach = x.numel() - 1
    else:
        reach = sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    start = x.data_ptr()
    return start, start + (reach + 1) * x.element_size()


def _solvable(terms: list[tuple[int, int]], goal: int) -> bool:
    """Whether ``sum c x = goal`` has a solution with ``0 <= x <= n``, for (c, n) by rising c."""
    reach = [0, *accumulate(c * n for c, n in terms)]
    steps = [0, *accumulate((c for c, _ in terms), gcd)]
    pending = [(len(terms), goal)]
    for _ in range(_MOST_STEPS):
        if not pending:
            return False
        i, rest = pending.pop()
        if rest == 0:
            return True
        if not 0 < rest <= reach[i] or rest % steps[i]:
            continue
        c, n = terms[i - 1]
        least = max(0, -((reach[i - 1] - rest) // c))
        pending += [(i - 1, rest - c * x) for x in range(least, min(n, rest // c) + 1)]
    return True
