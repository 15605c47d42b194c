"""Small tensors of simple numbers, so that a case that fails can be read."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING

from hypothesis import strategies as st

if TYPE_CHECKING:
    import torch


def tensor(
    draw: st.DrawFn, shape: Sequence[int], values: Sequence[float], dtype: str = "float64"
) -> torch.Tensor:
    """A tensor of ``shape`` with numbers of ``values``, the simplest first."""
    import torch

    n = prod(shape)
    numbers = draw(st.lists(st.sampled_from(values), min_size=n, max_size=n))
    return torch.tensor(numbers, dtype=getattr(torch, dtype)).reshape(tuple(shape))


WHOLE = (0.0, 1.0, -1.0, 2.0, -2.0, 3.0)
"""Numbers whose sums and products are exact."""
