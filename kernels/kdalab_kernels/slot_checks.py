"""Checks of slot numbers, pools and page tables: on the host, before any memory is touched."""

from collections.abc import Sequence
from typing import NoReturn

import torch

from kdalab_kernels.checks import floating, given, tensor

PADDING = -1
"""The slot of a row that takes no part: nothing is read or written for it."""

MOST = 1 << 63
Slots = torch.Tensor | Sequence[int]


def _fail(name: str, expected: str, given: object) -> NoReturn:
    raise ValueError(f"{name}: expected {expected}, given {given}")


def integers(name: str, x: object, axes: str, shape: tuple[int | None, ...]) -> torch.Tensor:
    """An int32 or int64 tensor of this shape (None: any); a sequence of integers is taken too."""
    if isinstance(x, Sequence) and not isinstance(x, str | bytes | bytearray):
        for i in x:
            if not isinstance(i, int) or isinstance(i, bool) or not -MOST <= i < MOST:
                _fail(name, f"integers {axes}", f"{given(i)} among them")
        x = torch.tensor(x, dtype=torch.int64)
    if not isinstance(x, torch.Tensor):
        _fail(name, f"integers {axes}", given(x))
    x = tensor(name, x)
    if x.dtype not in (torch.int32, torch.int64):
        _fail(name, "dtype int32 or int64", x.dtype)
    if not _fits(x, shape):
        _fail(name, f"shape {axes} = {_sizes(shape)}", list(x.shape))
    return x


def _fits(x: torch.Tensor, shape: tuple[int | None, ...]) -> bool:
    pairs = zip(x.shape, shape, strict=False)
    return x.ndim == len(shape) and all(want is None or have == want for have, want in pairs)


def _sizes(shape: tuple[int | None, ...]) -> str:
    return f"[{', '.join('any' if want is None else str(want) for want in shape)}]"


def slots(
    name: str,
    given: Slots,
    n_slots: int,
    device: torch.device,
    n_rows: int | None = None,
    *,
    distinct: bool = False,
    padding: bool = True,
    host: bool = True,
) -> torch.Tensor:
    """``[n_rows]`` slot numbers as a contiguous int64 tensor on device.

    Args:
        n_rows: how many are expected; None for any number.
        distinct: refuse a slot that is named twice (two rows would write it).
        padding: let ``-1`` stand for a row that is skipped.
        host: read and check the numbers. Slots on an accelerator make the host wait for it.
    """
    index = integers(name, given, "[N]", (n_rows,))
    if host:
        lowest = PADDING if padding else 0
        seen: dict[int, int] = {}
        for row, slot in enumerate(index.tolist()):
            if not lowest <= slot < n_slots:
                rest = " or -1 for a row without one" if padding else ""
                _fail(name, f"slots from 0 to {n_slots - 1}{rest}", f"{slot} in row {row}")
            if distinct and slot != PADDING and seen.setdefault(slot, row) != row:
                _fail(
                    name, "every slot at most once", f"slot {slot} in rows {seen[slot]} and {row}"
                )
    return index.to(device, torch.int64).contiguous()


def pool(name: str, x: object, axes: str, shape: tuple[int | None, ...]) -> torch.Tensor:
    """A floating-point pool of this shape (None: any size) in which no two elements share memory.

    Views are welcome: a pool ``[slot, layer, HV, V, K]`` seen through ``[:, layer]`` is one.
    """
    t = floating(name, x)
    if not _fits(t, shape):
        _fail(name, f"shape {axes} = {_sizes(shape)}", list(t.shape))
    own_memory(name, t)
    return t


def own_memory(name: str, x: torch.Tensor) -> None:
    """Refuse a view in which elements may share memory: what is written in place must be its own.

    Axes in the order of their strides must each step over all that the smaller ones span.
    """
    spanned = 1
    axes = [(stride, size) for size, stride in zip(x.shape, x.stride(), strict=True) if size > 1]
    for stride, size in sorted(axes):
        if stride < spanned:
            _fail(
                name,
                "memory of its own for every element",
                f"an expanded or overlapping view, shape {list(x.shape)} strides {x.stride()}",
            )
        spanned += stride * (size - 1)


def finite(name: str, x: torch.Tensor, slot: int) -> None:
    """No NaN and no infinity in what is about to be kept (CPU only: a reduction over x)."""
    if x.numel():
        low, high = torch.aminmax(x.detach())
        if not bool(low.isfinite() & high.isfinite()):
            _fail(name, f"a finite state in slot {slot}", "NaN or infinity")
