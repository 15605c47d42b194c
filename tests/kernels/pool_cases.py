"""Pools whose free slots and strides betray a stray read or write."""

import torch
from kernel_cases import state

POISON = float("nan")
BACKENDS = ("torch", "reference")


def strided(x: torch.Tensor) -> torch.Tensor:
    """The same values, seen through a layer axis: slots lie twice as far apart as they are long."""
    wide = torch.full((x.shape[0], 2, *x.shape[1:]), POISON).to(x.dtype)
    wide[:, 1] = x
    return wide[:, 1]


def states(n: int, *rest: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    """Random states ``[n, *rest]`` whose k-channels differ in size by a factor of a thousand."""
    rng = torch.Generator().manual_seed(seed)
    size = 10 ** (3 * torch.rand((n, *rest[:-2], 1, rest[-1]), generator=rng) - 3)
    return (torch.randn((n, *rest), generator=rng) * size).to(dtype)


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal shape and bits, NaN included."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    kind = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
    return torch.equal(a.contiguous().view(kind), b.contiguous().view(kind))


__all__ = ["BACKENDS", "POISON", "same_bits", "state", "states", "strided"]
