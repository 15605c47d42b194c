"""INT8 states: the container and the numbers that every backend shares."""

from typing import NamedTuple

import torch

QMAX = 127
AMAX_FLOOR = 1e-8
"""Smallest channel maximum that is divided by: a channel of zeros quantises to exact zeros."""
SCALE_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
HALF_NORMAL, HALF_QUANTUM = 2.0**-14, 2.0**-24
"""float16: the smallest normal number, and the step between all numbers below it."""


class QuantizedStates(NamedTuple):
    """Recurrent states at one byte an element.

    One scale per k-channel (the largest magnitude over V divided by 127): the decay acts per
    k-channel, so a channel grows and fades as one and its V values are of one magnitude.
    """

    q: torch.Tensor
    """``[.., HV, V, K]`` int8, in -127..127."""
    scale: torch.Tensor
    """``[.., HV, 1, K]`` float32, bfloat16 or float16."""


class CheckpointBuffers(NamedTuple):
    """Storage of C checkpoints, all layers of one checkpoint side by side."""

    states: torch.Tensor | QuantizedStates
    """``[C, L, HV, V, K]`` in the active states' dtype, or INT8 with a scale per k-channel."""
    conv: torch.Tensor
    """``[C, L, W - 1, D]``, always in the active conv states' dtype."""


def store_dtype_scale(scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The scale as it will be stored: rounded to nearest; within float16's subnormals rounded up.

    Below 6e-5 float16 has a fixed step, and rounding to nearest may lose a third of the scale (the
    largest values would be clamped) or make it 0. Rounded up, it costs resolution only.
    """
    if dtype == torch.float16:
        up = torch.ceil(scale / HALF_QUANTUM).clamp(min=1.0) * HALF_QUANTUM
        scale = torch.where(scale < HALF_NORMAL, up, scale)
    return scale.to(dtype)
