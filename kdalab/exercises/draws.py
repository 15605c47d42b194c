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
    """A tensor of ``shape`` with numbers of ``values``, the simplest first.

    Sides of up to three are the end of one of three: that a shape becomes smaller moves no number
    to another place of the choices. The end, because there the last number that is not 0 stands
    once the others have been made simple.
    """
    import torch

    whole = [max(3, side) for side in shape]
    n = prod(whole)
    numbers = draw(st.lists(st.sampled_from(values), min_size=n, max_size=n))
    all_of_it = torch.tensor(numbers, dtype=getattr(torch, dtype)).reshape(whole)
    return all_of_it[
        tuple(slice(w - side, w) for w, side in zip(whole, shape, strict=True))
    ].contiguous()


WHOLE = (0.0, 1.0, -1.0, 2.0, -2.0, 3.0)
"""Numbers whose sums and products are exact."""
