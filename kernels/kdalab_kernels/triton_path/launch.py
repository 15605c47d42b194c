"""What every launch shares: the mode the kernels were built in, tile tables, dtypes."""

import itertools
from functools import lru_cache
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

INTERPRETED: bool = bool(triton.knobs.runtime.interpret)  # fixed when a kernel is decorated
HIP: bool = bool(torch.version.hip)  # AMD: 64 KiB of LDS a block, 64 lanes a warp
KINDS = {torch.float16: tl.float16, torch.bfloat16: tl.bfloat16, torch.float32: tl.float32}


def refuse_float64(op: str, *tensors: torch.Tensor | None) -> None:
    """Triton kernels compute in float32: float64 belongs to the other backends."""
    if any(x is not None and x.dtype == torch.float64 for x in tensors):
        raise ValueError(
            f"{op}: backend='triton' takes float16, bfloat16 or float32, given float64; "
            "use backend='torch' or 'reference'"
        )


def product_kind(dtype: torch.dtype) -> Any:
    """Operand type of matrix products on inputs of dtype.

    bfloat16 multiplies in bfloat16. float16 has too small a range for decayed rows, so its operands
    are float32 (tensor cores then use tf32, with as many digits as float16). The interpreter cannot
    compute with bfloat16 at all, so there it is float32 throughout.
    """
    return tl.bfloat16 if dtype == torch.bfloat16 and not INTERPRETED else tl.float32


def product_precision(dtype: torch.dtype) -> str | None:
    """Of products with float32 operands: exact for float32 inputs, else the card's own default."""
    return "ieee" if dtype == torch.float32 else None


def storage_dtype(dtype: torch.dtype) -> torch.dtype:
    """Of intermediate tensors: the inputs', but float32 where stores would truncate."""
    return torch.float32 if INTERPRETED else dtype


class Tiles(NamedTuple):
    """Sequences cut into tiles of C tokens; all of them lie in one row of tokens.

    Attributes:
        table: ``[n_tiles, 2]`` int32, (sequence, tile within the sequence).
        offsets: ``[N + 1]`` int64, first token of each sequence.
        before: ``[N + 1]`` int64, tiles before each sequence.
        longest_first: ``[N]`` int32, sequences by falling length: long ones must start early.
    """

    table: torch.Tensor
    offsets: torch.Tensor
    before: torch.Tensor
    longest_first: torch.Tensor


def tiles(
    B: int, T: int, cu_seqlens: list[int] | None, C: int, device: torch.device, least: int = 0
) -> Tiles:
    """The tiles of B rows of T tokens, or of packed sequences; at least ``least`` a sequence."""
    cu = tuple(range(0, B * T + 1, T)) if cu_seqlens is None and T else (0,) * (B + 1)
    return _tiles(cu if cu_seqlens is None else tuple(cu_seqlens), C, device, least)


@lru_cache(maxsize=32)
def _tiles(cu: tuple[int, ...], C: int, device: torch.device, least: int) -> Tiles:
    offsets = torch.tensor(cu, dtype=torch.int64)
    lengths = offsets.diff()
    counts = ((lengths + C - 1) // C).clamp(min=least)
    before = torch.tensor([0, *itertools.accumulate(counts.tolist())], dtype=torch.int64)
    owner = torch.repeat_interleave(torch.arange(len(counts)), counts)
    within = torch.arange(len(owner)) - before[owner]
    table = torch.stack([owner, within], dim=1).to(torch.int32)
    order = torch.sort(lengths, descending=True, stable=True).indices.to(torch.int32)
    return Tiles(*(x.contiguous().to(device) for x in (table, offsets, before, order)))


def next_power_of_2(n: int, least: int = 1) -> int:
    """The smallest power of 2 that is at least n and least."""
    return max(least, 1 << max(0, n - 1).bit_length())
